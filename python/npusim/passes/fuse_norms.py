"""Folds an RMS norm into the product that alone reads it, where the target normalises on the way.

Of few rows of x, every group of a product's columns computes the norm again, which costs less than
a command of its own while the weights are what takes time. Of many rows, the product in front
of the norm does a part of it (`ops/norm_between.py`), so there has to be one.
"""

from __future__ import annotations

from math import prod

from npusim.analysis.fused_nodes import KERNEL_DTYPES
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ops.norm_between import (
    NORMED_GATED_LINEAR,
    NORMED_LINEAR,
    begins_with_norm,
    is_over_pages,
    leaves_norm,
)
from npusim.ops.normed_quantized_linear import NORMED_QUANTIZED_LINEAR, takes_norm
from npusim.ops.quantized_linear import QUANTIZED_LINEAR
from npusim.targets.target_config import TargetConfig

_NORM = "aten.rms_norm.default"
_FUSED = {
    "npu.linear": NORMED_LINEAR,
    "npu.gated_linear": NORMED_GATED_LINEAR,
    QUANTIZED_LINEAR: NORMED_QUANTIZED_LINEAR,
}


def fuse_norms(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with norms folded into products."""

    over_pages = is_over_pages(graph)

    def on_the_way(norm: Node, product: Node, rewriter: Rewriter) -> bool:
        if product.op == QUANTIZED_LINEAR:
            x, weight = (rewriter.types[name or ""] for name in norm.inputs[:2])
            return target.has("normed_quantized_linear") and takes_norm(x, weight)
        if begins_with_norm(prod(product.type.shape[:-1]), target.rows_normed):
            return True
        before = rewriter.producer(norm.inputs[0])
        if before is None or not target.leaves_norms:
            return False
        return leaves_norm(before, rewriter.types, over_pages)

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        norm = rewriter.producer(node.inputs[0]) if node.op in _FUSED else None
        if norm is None or not _is_row_norm(norm, node, rewriter):
            return None
        if not on_the_way(norm, node, rewriter):
            return None
        x, weight = norm.inputs[:2]
        attrs = {**node.attrs, "eps": norm.attrs["eps"]}
        return become(node, _FUSED[node.op], (x, weight, *node.inputs[1:]), attrs)

    return rewrite(graph, visit)


def _is_row_norm(norm: Node, product: Node, rewriter: Rewriter) -> bool:
    """Tells whether a node is an RMS norm over rows of x, weighted, that a product alone reads."""
    if norm.op != _NORM or not rewriter.only_feeds(norm.output.name, product):
        return False
    x, weight = (*norm.inputs, None)[:2]
    dims, eps = norm.attrs["normalized_shape"], norm.attrs.get("eps")
    if x is None or weight is None or not isinstance(dims, tuple) or len(dims) != 1:
        return False
    floats = (x, weight) if product.op == QUANTIZED_LINEAR else (x, weight, product.inputs[1])
    dtypes = {rewriter.types[i].dtype for i in floats if i is not None}
    return isinstance(eps, float) and len(dtypes) == 1 and dtypes <= set(KERNEL_DTYPES)
