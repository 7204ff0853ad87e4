"""Moves permutations of rows from before a product by weights to behind it.

A product treats every row alike, so rows may come in the order they lie in. Attention layers swap
batch and sequence before their first product and back after their last: behind the products, such
permutations meet others and cancel, or only say in which order somebody reads. They stay where the
result is computed with at once, which then has the order that the model's code chose.
"""

from __future__ import annotations

from npusim.analysis.shapes import VIEWS
from npusim.analysis.view_chain import view_chain, views_to
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import TensorType
from npusim.targets.target_config import TargetConfig


def move_permutations(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with rows multiplied in the order they lie in."""
    viewed = {o.value: False for o in (*graph.outputs, *graph.updates)}
    for node in graph.nodes:
        for value in node.inputs:
            if value is not None:
                viewed[value] = viewed.get(value, True) and node.op in VIEWS

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        if node.op != "npu.linear" or not viewed.get(node.outputs[0].name, False):
            return None
        return _visit(node, rewriter)

    return rewrite(graph, visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    x, *others = node.inputs
    if x is None or others[-1] is not None or not node.type.rank:
        return None
    chain = view_chain(x, rewriter)
    *rows, last = chain.dims
    given = [factor for dim in rows for factor in dim]
    sorted_rows = sorted(given, key=chain.place)
    if given == sorted_rows:
        return None
    sizes = tuple(factor.size for factor in sorted_rows)
    dtype, depth, columns = node.type.dtype, rewriter.types[x].shape[-1], node.type.shape[-1]
    order = tuple(chain.place(factor) for factor in (*sorted_rows, *last))
    lying = chain.root
    for op, shape, attrs in views_to(
        rewriter.types[chain.root].shape, chain, order, (*sizes, depth)
    ):
        lying = rewriter.emit(op, (lying,), TensorType(dtype, shape), attrs, like=node)
    product = rewriter.emit(
        node.op, (lying, *others), TensorType(dtype, (*sizes, columns)), node.attrs, like=node
    )
    dims = {"dims": (*(sorted_rows.index(factor) for factor in given), len(given))}
    shape = (*(factor.size for factor in given), columns)
    if shape == node.type.shape:
        return become(node, "aten.permute.default", (product,), dims)
    permuted = rewriter.emit(
        "aten.permute.default", (product,), TensorType(dtype, shape), dims, like=node
    )
    return become(node, "aten.view.default", (permuted,), {"size": node.type.shape})
