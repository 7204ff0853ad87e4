"""Joins what an attention over a cache needs done first into one `npu.rope_append`.

The rotation of its queries, that of its keys with their append to the cache, and the append of its
values read the same tables and the same position: one op does all, and gives the queries and both
caches. Queries and keys that somebody else reads before the append stay apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from npusim.analysis.shapes import RESHAPES
from npusim.ir.graph import Graph, Node
from npusim.ir.rewrite import rebuild
from npusim.ir.rewriter import reading
from npusim.passes.recognize_cache_append import CACHE_APPEND
from npusim.passes.recognize_cached_attention import CACHED_ATTENTION
from npusim.passes.recognize_rope import ROPE
from npusim.targets.target_config import TargetConfig

ROPE_APPEND = "npu.rope_append"


Parts = tuple[Node, Node, Node, Node]  # rope of q, rope of k, append of k, append of v


def fuse_rope_append(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with rotations and appends of each attention fused."""
    return fuse_parts(graph, CACHED_ATTENTION, _parts, _fused)


def fuse_parts(
    graph: Graph,
    attention_op: str,
    parts_of: Callable[[Node, Graph], Parts | None],
    fused_of: Callable[[Node, Node, Node, Node], Node],
) -> Graph:
    """Returns the graph with the parts before each attention fused, as far as they are there.

    Args:
        graph: in which attentions are `attention_op`.
        parts_of: returns the parts before an attention, or None.
        fused_of: returns the node that does the work of all four.
    """
    places = {node.name: index for index, node in enumerate(graph.nodes)}
    replacements: dict[str, list[Node]] = {}
    for attention in graph.nodes:
        if attention.op != attention_op:
            continue
        with reading(attention):
            parts = parts_of(attention, graph)
            if parts is None or any(part.name in replacements for part in parts):
                continue
            fused = fused_of(*parts)
        if not _depends(fused, parts, graph, places):
            replacements.update((part.name, []) for part in parts)
            replacements[max(parts, key=lambda part: places[part.name]).name] = [fused]
    if not replacements:
        return graph
    return rebuild(graph, [new for n in graph.nodes for new in replacements.get(n.name, [n])])


def parts_before(attention: Node, append_op: str, graph: Graph) -> Parts | None:
    """Returns the parts before an attention that nobody else reads and that rotate alike, or None.

    Where the appends go to is for the caller to compare.
    """
    rope_q, keys, values = (graph.producers.get(value or "") for value in attention.inputs[:3])
    if rope_q is None or keys is None or values is None or keys is values:
        return None
    if (rope_q.op, keys.op, values.op) != (ROPE, append_op, append_op):
        return None
    rope_k = graph.producers.get(keys.inputs[0] or "")
    if rope_k is None or rope_k.op != ROPE or rope_k is rope_q:
        return None
    angles = zip(rope_q.inputs[1:], rope_k.inputs[1:], strict=True)
    if rope_q.attrs != rope_k.attrs or not all(_same_elements(a, b, graph) for a, b in angles):
        return None
    own = all(len(list(_readers(n.output.name, graph))) == 1 for n in (rope_q, rope_k))
    return (rope_q, rope_k, keys, values) if own else None


def _parts(attention: Node, graph: Graph) -> Parts | None:
    parts = parts_before(attention, CACHE_APPEND, graph)
    if parts is None:
        return None
    rope_q, _, keys, values = parts
    same_place = _same_elements(keys.inputs[2], values.inputs[2], graph)
    return parts if same_place and _tokens(rope_q, graph) == _tokens(values, graph) else None


def _tokens(node: Node, graph: Graph) -> int:
    """Returns how many tokens a rotation or an append is about."""
    return graph.types[node.inputs[0] or ""].shape[2]


def _readers(value: str, graph: Graph) -> Iterator[str]:
    """Yields the nodes that read a value, and an entry for what is seen outside."""
    yield from (node.name for node in graph.users[value])
    if value in graph.output_values:
        yield ""


def _same_elements(a: str | None, b: str | None, graph: Graph) -> bool:
    """Tells whether two operands are the same elements, if in two shapes of one value."""
    return _origin(a, graph) == _origin(b, graph)


def _origin(value: str | None, graph: Graph) -> str | None:
    """Returns what a value is reshaped from."""
    while value is not None:
        node = graph.producers.get(value)
        if node is None or node.op not in RESHAPES:
            break
        value = node.inputs[0]
    return value


def _fused(rope_q: Node, rope_k: Node, keys: Node, values: Node) -> Node:
    q, cos, sin = rope_q.inputs
    v, v_cache, _ = values.inputs
    _, k_cache, position = keys.inputs
    return replace(
        rope_q,
        op=ROPE_APPEND,
        inputs=(q, rope_k.inputs[0], v, cos, sin, k_cache, v_cache, position),
        outputs=(rope_q.output, keys.output, values.output),
    )


def _depends(fused: Node, parts: Parts, graph: Graph, places: dict[str, int]) -> bool:
    """Tells whether an operand is computed from a result; it could not be one node then."""
    results = {value.name for value in fused.outputs}
    first = min(places[part.name] for part in parts)
    pending = [i for i in fused.inputs if i is not None]
    seen: set[str] = set()
    while pending:
        value = pending.pop()
        if value in results:
            return True
        node = graph.producers.get(value)
        if value not in seen and node is not None and places[node.name] > first:
            seen.add(value)
            pending += [i for i in node.inputs if i is not None]
    return False
