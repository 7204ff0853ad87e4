"""Turns matrix products over one element into `aten.mul.Tensor`.

A [.., m, 1] by [.., 1, n] has no sum in it: each result is one product, rounded once, as `mul`
rounds it (a product that is -0 stays so; PyTorch's own sum may begin with +0). What makes its
operands and reads its result is then computed with it, in one pointwise command.
"""

from __future__ import annotations

from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.targets.target_config import TargetConfig

_PRODUCTS = ("aten.matmul.default", "aten.mm.default", "aten.bmm.default")


def recognize_outer_products(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with every product over an inner extent of 1 written as `aten.mul`."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op not in _PRODUCTS or None in node.inputs:
        return None
    a, b = (rewriter.types[i] for i in node.inputs if i is not None)
    if min(a.rank, b.rank) < 2 or a.shape[-1] != 1 or b.shape[-2] != 1:
        return None  # a vector's own extent is no extent of the result
    return become(node, "aten.mul.Tensor", node.inputs)
