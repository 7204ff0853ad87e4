"""Joins views of views: two reshapes become one, two permutations one or, cancelling, none.

A permutation that moves extents of 1 only becomes a reshape, so that it can join its neighbours.
Longer chains become a reshape, a permutation and a reshape, or less.
"""

from __future__ import annotations

from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, keeps_order, permutation
from npusim.analysis.view_chain import view_chain, views_to
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import TensorType
from npusim.targets.target_config import TargetConfig


def simplify_views(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with chains of reshapes and permutations shortened."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op not in RESHAPES | PERMUTATIONS:
        return None
    shorter = _shorten_chain(node, rewriter)
    if shorter is not None:
        return shorter
    if node.op in RESHAPES:
        return _join_reshapes(node, rewriter)
    return _join_permutations(node, rewriter)


def _shorten_chain(node: Node, rewriter: Rewriter) -> Answer:
    """Writes a chain of three views and more in as few as it takes."""
    (x,) = node.inputs
    assert x is not None
    chain = view_chain(x, rewriter, node)
    root = rewriter.types[chain.root]
    order = [chain.place(factor) for dim in chain.dims for factor in dim]
    views = views_to(root.shape, chain, order, node.type.shape)
    if chain.length < 3 or len(views) >= chain.length:
        return None
    if not views:
        return chain.root
    value = chain.root
    before = rewriter.producer(value)
    if views[0][0] in RESHAPES and before is not None and before.op in RESHAPES:
        value = before.inputs[0] or value
    for op, shape, attrs in views[:-1]:
        value = rewriter.emit(op, (value,), TensorType(root.dtype, shape), attrs, like=node)
    op, _, attrs = views[-1]
    return become(node, op, (value,), attrs)


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
