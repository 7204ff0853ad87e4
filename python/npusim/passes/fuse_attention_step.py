"""Joins rotation, append and attention of one new token into one `npu.attention_step`.

Where the target has such a kernel and it takes the shapes. The attention alone must read the
queries, and nobody may read the caches between the append and the attention.
"""

from __future__ import annotations

from npusim.ir.graph import Graph, Node
from npusim.ir.rewrite import rebuild
from npusim.ir.rewriter import become, reading
from npusim.ops.attention_step import ATTENTION_STEP, is_step
from npusim.passes.fuse_rope_append import ROPE_APPEND
from npusim.passes.recognize_cached_attention import CACHED_ATTENTION
from npusim.targets.target_config import TargetConfig


def fuse_attention_step(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with the attention of single tokens fused."""
    replacements: dict[str, list[Node]] = {}
    for attention in graph.nodes:
        if attention.op != CACHED_ATTENTION:
            continue
        with reading(attention):
            prepared = _prepared(attention, graph)
            if prepared is not None:
                replacements[prepared.name] = []
                replacements[attention.name] = [_fused(prepared, attention)]
    if not replacements:
        return graph
    return rebuild(graph, [new for n in graph.nodes for new in replacements.get(n.name, [n])])


def _prepared(attention: Node, graph: Graph) -> Node | None:
    """Returns the node that rotates and appends for an attention and nobody before it."""
    q, k, v, position = attention.inputs
    prepared = graph.producers.get(q or "")
    if prepared is None or prepared.op != ROPE_APPEND or prepared.inputs[7] != position:
        return None
    turned, keys, values = (value.name for value in prepared.outputs)
    caches = (graph.types[keys], graph.types[values])
    if (q, k, v) != (turned, keys, values) or not is_step(graph.types[turned], *caches):
        return None
    if turned in graph.output_values or len(graph.users[turned]) != 1:
        return None
    place = graph.positions[attention.name]
    readers = (user for value in (keys, values) for user in graph.users[value])
    return prepared if all(graph.positions[user.name] >= place for user in readers) else None


def _fused(prepared: Node, attention: Node) -> Node:
    node = become(attention, ATTENTION_STEP, prepared.inputs, {**prepared.attrs, **attention.attrs})
    outputs = (attention.output, *prepared.outputs[1:])
    return Node(node.name, node.op, node.inputs, outputs, node.attrs, node.source)
