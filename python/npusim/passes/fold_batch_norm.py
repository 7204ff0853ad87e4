"""Folds batch norm with fixed statistics into the convolution or linear before it.

With s = weight / sqrt(var + eps), norm(conv(x)) = conv(x) with weights W*s and bias
(b - mean)*s + beta. These are graph ops over weights, which the init method computes at load.
Weights of 16 bits would be rounded once more: a convolution keeps those it has, and s becomes
factors of its sums, float32 as its bias. A batch norm that nothing can absorb becomes a scale and a
shift per channel, for the pointwise fusion to take in.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.analysis.batch_norm import BATCH_NORMS, FLOATS_16_BIT, cast, has_fixed_statistics
from npusim.analysis.fused_nodes import (
    FusedProducer,
    channels,
    is_plain,
    producer_of,
    replay,
    reshaped,
    scaled,
    with_bias,
)
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import TensorType
from npusim.targets.target_config import TargetConfig


def fold_batch_norm(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph without batch norms over fixed statistics."""

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        return _visit(node, target, rewriter)

    return rewrite(graph, visit)


def _visit(node: Node, target: TargetConfig, rewriter: Rewriter) -> Answer:
    if node.op not in BATCH_NORMS or not has_fixed_statistics(node, rewriter):
        return None
    (x,) = node.inputs[:1]
    assert x is not None
    producer = producer_of(x, node, rewriter)
    if producer is not None and is_plain(producer.node) and producer.channel_axis() == 1:
        folded = _fold(node, producer, target.conv_vectors >= 2, rewriter)
        if folded is not None:
            return folded
    return _standalone(node, x, rewriter)


def _scale_and_shift(node: Node, dtype: str, rewriter: Rewriter) -> tuple[str, str]:
    """Emits weight / sqrt(var + eps) and beta - mean * scale, computed in a dtype."""
    _, weight, beta, mean, var = (
        None if i is None else cast(i, dtype, node, rewriter) for i in (None, *node.inputs[1:])
    )
    assert mean is not None and var is not None
    type = rewriter.types[var]
    attrs = {"other": node.attrs["eps"], "alpha": 1}
    scale = rewriter.emit("aten.add.Scalar", (var,), type, attrs, like=node)
    scale = rewriter.emit("aten.rsqrt.default", (scale,), type, like=node)
    if weight is not None:
        scale = rewriter.emit("aten.mul.Tensor", (scale, weight), type, like=node)
    shift = rewriter.emit("aten.mul.Tensor", (mean, scale), type, like=node)
    if beta is None:
        return scale, rewriter.emit("aten.neg.default", (shift,), type, like=node)
    shift = rewriter.emit("aten.sub.Tensor", (beta, shift), type, {"alpha": 1}, like=node)
    return scale, shift


def _fold(node: Node, producer: FusedProducer, factors: bool, rewriter: Rewriter) -> Answer:
    conv = producer.node
    weight = conv.inputs[1]
    assert weight is not None and node.inputs[4] is not None
    dtype = rewriter.types[node.inputs[4]].dtype
    if rewriter.types[weight].dtype != dtype:
        return None
    if conv.op == "npu.conv" and dtype in FLOATS_16_BIT and factors:
        return replay(producer, _with_factors(node, conv, rewriter), _single(node), rewriter)
    if conv.attrs.get("transposed", False) and conv.attrs["groups"] != 1:  # see `scaled`
        return None
    scale, shift = _scale_and_shift(node, dtype, rewriter)
    pair = scaled(conv, scale, "aten.mul.Tensor", rewriter)
    if pair is None:
        return None
    bias = with_bias(pair[1], shift, node, rewriter)
    folded = replace(conv, inputs=(conv.inputs[0], pair[0], bias, None))
    return replay(producer, folded, _single(node), rewriter)


def _with_factors(node: Node, conv: Node, rewriter: Rewriter) -> Node:
    """Returns the convolution with the norm as factors of its sums and bias."""
    x, weight, bias, _ = conv.inputs
    scale, shift = _scale_and_shift(node, "float32", rewriter)
    if bias is not None:
        bias = cast(bias, "float32", node, rewriter)
        type = rewriter.types[bias]
        bias = rewriter.emit("aten.mul.Tensor", (bias, scale), type, like=node)
    bias = with_bias(bias, shift, node, rewriter)
    if rewriter.types[bias].rank == 1:
        rows = tuple(reshaped(v, (1, channels(conv)), node, rewriter) for v in (bias, scale))
        type = TensorType("float32", (2, channels(conv)))
        attrs: dict[str, Attr] = {"tensors": 2, "dim": 0}
        bias = rewriter.emit("aten.cat.default", rows, type, attrs, like=node)
    return replace(conv, inputs=(x, weight, bias, None))


def _standalone(node: Node, x: str, rewriter: Rewriter) -> Node:
    type = rewriter.types[x]
    scale, shift = _scale_and_shift(node, type.dtype, rewriter)
    shape = (type.shape[1], *(1,) * (type.rank - 2))
    scale, shift = (reshaped(v, shape, node, rewriter) for v in (scale, shift))
    plain = TensorType(type.dtype, type.shape)
    product = rewriter.emit("aten.mul.Tensor", (x, scale), plain, like=node)
    return become(_single(node), "aten.add.Tensor", (product, shift), {"alpha": 1})


def _single(node: Node) -> Node:
    """Returns the node with its first result only; nobody reads the others."""
    return replace(node, outputs=node.outputs[:1])
