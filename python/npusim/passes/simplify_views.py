"""Joins views of views: two reshapes become one, two permutations one or, cancelling, none.

A permutation that moves extents of 1 only becomes a reshape, so that it can join its neighbours.
"""

from __future__ import annotations

from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, keeps_order, permutation
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.targets.target_config import TargetConfig


def simplify_views(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with chains of reshapes and permutations shortened."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op in RESHAPES:
        return _join_reshapes(node, rewriter)
    if node.op in PERMUTATIONS:
        return _join_permutations(node, rewriter)
    return None


def _join_reshapes(node: Node, rewriter: Rewriter) -> Answer:
    """Reads the reshape's input through the reshape before it, if there is one."""
    (x,) = node.inputs
    inner = rewriter.producer(x)
    if inner is not None and inner.op in RESHAPES:
        x = inner.inputs[0]
    elif node.op == "aten.view.default":
        return None
    assert x is not None
    if rewriter.types[x].shape == node.type.shape:
        return x
    return become(node, "aten.view.default", (x,), {"size": node.type.shape})


def _join_permutations(node: Node, rewriter: Rewriter) -> Answer:
    (x,) = node.inputs
    assert x is not None
    dims = permutation(node, node.type.rank)
    inner = rewriter.producer(x)
    if inner is not None and inner.op == "aten.permute.default":
        before = permutation(inner, inner.type.rank)
        (x,) = inner.inputs
        assert x is not None
        dims = tuple(before[d] for d in dims)
    if dims == tuple(range(len(dims))):
        return x
    if keeps_order(rewriter.types[x].shape, dims):
        return _join_reshapes(become(node, "aten.reshape.default", (x,)), rewriter)
    joined = become(node, "aten.permute.default", (x,), {"dims": dims})
    return None if joined == node else joined
