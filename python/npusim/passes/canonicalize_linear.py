"""Turns matrix products with a static right side into `npu.linear`.

linear, mm, addmm and matmul, whose right side depends on weights alone, become one op whose weight
is [n, k]; a transposition that needs is computed at load, or cancels with one that is there.
Products of two computed tensors stay, as do float64 and integers, which gemm does not take.
"""

from __future__ import annotations

from npusim.analysis.fused_nodes import KERNEL_DTYPES, channel_vector
from npusim.analysis.shapes import PERMUTATIONS, permutation
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import TensorType
from npusim.ops.fused import NO_EPILOGUE
from npusim.targets.target_config import TargetConfig


def canonicalize_linear(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with every product by weights written as `npu.linear`."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op == "aten.linear.default":
        x, weight, bias = (*node.inputs, None)[:3]
        return _linear(node, x, weight, bias, rewriter)
    if node.op in ("aten.mm.default", "aten.matmul.default"):
        return _product(node, node.inputs[0], node.inputs[1], None, rewriter)
    if node.op == "aten.addmm.default":
        bias, x, matrix = node.inputs
        unscaled = node.attrs.get("alpha", 1) == 1 and node.attrs.get("beta", 1) == 1
        assert bias is not None
        if not unscaled or not _fits(x, matrix, rewriter):
            return None
        vector = channel_vector(bias, 1, node.type, node, rewriter)
        return None if vector is None else _product(node, x, matrix, vector, rewriter)
    return None


def _fits(x: str | None, matrix: str | None, rewriter: Rewriter) -> bool:
    """Tells whether x times a matrix is gemm's business: static right side, computed left one."""
    if x is None or matrix is None or matrix not in rewriter.static or x in rewriter.static:
        return False
    a, b = rewriter.types[x], rewriter.types[matrix]
    return b.rank == 2 and a.rank > 0 and a.dtype == b.dtype and a.dtype in KERNEL_DTYPES


def _product(
    node: Node, x: str | None, matrix: str | None, bias: str | None, rewriter: Rewriter
) -> Answer:
    if not _fits(x, matrix, rewriter):
        return None
    assert matrix is not None
    return _linear(node, x, _transposed(matrix, node, rewriter), bias, rewriter)


def _linear(
    node: Node, x: str | None, weight: str | None, bias: str | None, rewriter: Rewriter
) -> Answer:
    if not _fits(x, weight, rewriter):
        return None
    if bias is not None and (bias not in rewriter.static or rewriter.types[bias].rank != 1):
        return None
    return become(node, "npu.linear", (x, weight, bias, None), NO_EPILOGUE)


def _transposed(matrix: str, like: Node, rewriter: Rewriter) -> str:
    """Returns the transposed matrix: what is before a transposition, or a new one."""
    producer = rewriter.producer(matrix)
    if producer is not None and producer.op in PERMUTATIONS and permutation(producer, 2) == (1, 0):
        (source,) = producer.inputs
        assert source is not None
        return source
    k, n = rewriter.types[matrix].shape
    type = TensorType(rewriter.types[matrix].dtype, (n, k))
    return rewriter.emit("aten.permute.default", (matrix,), type, {"dims": (1, 0)}, like=like)
