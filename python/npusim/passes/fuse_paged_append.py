"""Joins what an attention over pages needs done first into one `npu.paged_rope_append`.

The rotation of its queries, that of its keys with their append, and the append of its values read
the same angles and the same tables. Queries and keys that somebody else reads stay apart.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.ir.graph import Graph, Node
from npusim.ops.paged import PAGED_APPEND, PAGED_ATTENTION
from npusim.ops.paged_rope import PAGED_ROPE_APPEND
from npusim.passes.fuse_rope_append import Parts, fuse_parts, parts_before
from npusim.targets.target_config import TargetConfig


def fuse_paged_append(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with rotations and appends before each attention over pages fused."""
    return fuse_parts(graph, PAGED_ATTENTION, _parts, _fused)


def _parts(attention: Node, graph: Graph) -> Parts | None:
    parts = parts_before(attention, PAGED_APPEND, graph)
    if parts is None:
        return None
    _, _, keys, values = parts
    same_place = keys.inputs[2:] == values.inputs[2:] == attention.inputs[3:]
    return parts if same_place else None


def _fused(rope_q: Node, rope_k: Node, keys: Node, values: Node) -> Node:
    q, cos, sin = rope_q.inputs
    _, k_pool, *places = keys.inputs
    v, v_pool = values.inputs[:2]
    return replace(
        rope_q,
        op=PAGED_ROPE_APPEND,
        inputs=(q, rope_k.inputs[0], v, cos, sin, k_pool, v_pool, *places),
        outputs=(rope_q.output, keys.output, values.output),
    )
