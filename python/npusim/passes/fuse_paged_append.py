"""Joins what an attention over pages needs done first into one `npu.paged_rope_append`.

The rotation of its queries, that of its keys with their append, and the append of its values read
the same angles and the same tables. Queries and keys that somebody else reads stay apart.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.ir.graph import Graph, Node
from npusim.ir.rewrite import rebuild
from npusim.ir.rewriter import reading
from npusim.ops.paged import PAGED_APPEND, PAGED_ATTENTION
from npusim.ops.paged_rope import PAGED_ROPE_APPEND
from npusim.passes.fuse_rope_append import Parts, depends, readers, same_elements
from npusim.passes.recognize_rope import ROPE
from npusim.targets.target_config import TargetConfig


def fuse_paged_append(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with rotations and appends before each attention over pages fused."""
    places = {node.name: index for index, node in enumerate(graph.nodes)}
    replacements: dict[str, list[Node]] = {}
    for attention in graph.nodes:
        if attention.op != PAGED_ATTENTION:
            continue
        with reading(attention):
            parts = _parts(attention, graph)
            if parts is None or any(part.name in replacements for part in parts):
                continue
            fused = _fused(*parts)
        if not depends(fused, parts, graph, places):
            replacements.update((part.name, []) for part in parts)
            replacements[max(parts, key=lambda part: places[part.name]).name] = [fused]
    if not replacements:
        return graph
    return rebuild(graph, [new for n in graph.nodes for new in replacements.get(n.name, [n])])


def _parts(attention: Node, graph: Graph) -> Parts | None:
    """Returns (rope of q, rope of k, append of k, append of v) before an attention."""
    rope_q, keys, values = (graph.producers.get(v or "") for v in attention.inputs[:3])
    if rope_q is None or keys is None or values is None or keys is values:
        return None
    if (rope_q.op, keys.op, values.op) != (ROPE, PAGED_APPEND, PAGED_APPEND):
        return None
    rope_k = graph.producers.get(keys.inputs[0] or "")
    if rope_k is None or rope_k.op != ROPE or rope_k is rope_q:
        return None
    if keys.inputs[2:] != values.inputs[2:] or keys.inputs[2:] != attention.inputs[3:]:
        return None
    angles = zip(rope_q.inputs[1:], rope_k.inputs[1:], strict=True)
    if rope_q.attrs != rope_k.attrs or not all(same_elements(a, b, graph) for a, b in angles):
        return None
    own = all(len(list(readers(n.output.name, graph))) == 1 for n in (rope_q, rope_k))
    return (rope_q, rope_k, keys, values) if own else None


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
