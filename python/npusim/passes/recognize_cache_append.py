"""Recognises the append to a cache: rows written at position + arange(t) of [b, heads, s, d].

index_copy and index_put along the sequence dimension become `npu.cache_append` where their index
is proved to be that range (analysis/causal.py). A position outside the cache was an error or, if
negative, counted from the end; it is an error of the run afterwards.
"""

from __future__ import annotations

from npusim.analysis.causal import is_position_range
from npusim.analysis.fused_nodes import reshaped
from npusim.analysis.known_values import analyse
from npusim.analysis.shapes import integer
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, reading, rewrite
from npusim.ir.types import TensorType
from npusim.targets.target_config import TargetConfig

CACHE_APPEND = "npu.cache_append"
_SEQUENCE = 2  # the dimension of a cache [batch, heads, sequence, size] that positions count


def recognize_cache_append(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with appends to caches as the op they are."""
    if not any(_operands(node) for node in graph.nodes):
        return graph
    known = analyse(graph)

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        operands = _operands(node)
        if operands is None:
            return None
        cache, index, rows = operands
        position = is_position_range(known.get(index), rewriter.types[index])
        if position is None or rewriter.types[position].dtype != "int64":
            return None
        if not _fits(rewriter.types[cache], rewriter.types[rows], rewriter.types[index]):
            return None
        position = reshaped(position, (1,), node, rewriter)
        return become(node, CACHE_APPEND, (rows, cache, position))

    return rewrite(graph, visit)


def _operands(node: Node) -> tuple[str, str, str] | None:
    """Returns (cache, index, rows) of a write along the sequence dimension alone."""
    with reading(node):
        if node.op == "aten.index_copy.default":
            cache, index, rows = node.inputs
            along = integer(node, "dim") % max(node.type.rank, 1)
        elif node.op == "aten.index_put.default" and not node.attrs.get("accumulate", False):
            cache, *indices, rows = node.inputs
            given = [dim for dim, i in enumerate(indices) if i is not None]
            along, index = (given[0], indices[given[0]]) if len(given) == 1 else (-1, None)
        else:
            return None
    if cache is None or index is None or rows is None or along != _SEQUENCE:
        return None
    return cache, index, rows


def _fits(cache: TensorType, rows: TensorType, index: TensorType) -> bool:
    """Tells whether the rows are written as they are: neither broadcast nor converted."""
    if cache.rank != 4 or rows.dtype != cache.dtype or index.rank != 1:
        return False
    batch, heads, _, size = cache.shape
    return rows.shape == (batch, heads, index.shape[0], size)
