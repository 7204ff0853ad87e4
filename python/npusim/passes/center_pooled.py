"""Shifts what max pooling leaves after a batch norm to around zero, where 16-bit floats are finer.

The maximum of n values with a norm's mean and deviation lies in a band well above zero, and most
of a 16-bit float's digits would go into the place of that band, the channel shift. 1x1
convolutions can do with y - shift instead, as W·y = W·(y - shift) + W·shift, the last of which
joins their bias. The shift leaves the value before the pooling, as an offset of the convolution
there (fuse_epilogues), in float32 before it is rounded. It is one number a channel, from the norm's
weight and bias. A target
whose convolutions take no offsets (`conv_vectors`) would round before, and gain nothing.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from statistics import NormalDist

from npusim.analysis.batch_norm import BATCH_NORMS, FLOATS_16_BIT, cast, has_fixed_statistics
from npusim.analysis.fused_nodes import channels, reshaped, with_bias
from npusim.analysis.shapes import ints
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, rewrite
from npusim.ir.types import TensorType
from npusim.ops.fused import CONV_VECTORS
from npusim.targets.target_config import TargetConfig

_POOLS = tuple(f"aten.max_pool{rank}d.default" for rank in (1, 2, 3))


def center_pooled(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with shifts taken out of 16-bit results of poolings before convolutions."""
    if target.conv_vectors < CONV_VECTORS:
        return graph
    shifts: dict[str, str] = {}  # of a pooling's result: the value taken out of it, one a channel

    def visit(node: Node, rewriter: Rewriter) -> Answer:
        if node.op in _POOLS and _read_by_points(node, graph):
            norm = _norm_after(node, rewriter)
            return None if norm is None else _centered(node, norm, shifts, rewriter)
        if node.op == "npu.conv" and node.inputs[0] in shifts:
            return _corrected(node, shifts[node.inputs[0]], rewriter)
        return None

    return rewrite(graph, visit)


def _read_by_points(node: Node, graph: Graph) -> bool:
    """Tells whether nobody but convolutions of single positions reads a value of 16-bit floats."""
    value = node.output.name
    if node.type.dtype not in FLOATS_16_BIT or value in graph.output_values:
        return False
    readers = graph.users.get(value, ())
    return bool(readers) and all(_is_point(reader, value, graph) for reader in readers)


def _is_point(node: Node, x: str, graph: Graph) -> bool:
    if node.op != "npu.conv" or node.inputs[0] != x or node.inputs.count(x) != 1:
        return False
    weight = node.inputs[1]
    assert weight is not None
    pads = (*ints(node, "padding"), *ints(node, "padding_back"))
    plain = node.attrs["groups"] == 1 and not node.attrs["transposed"]
    points = all(size == 1 for size in graph.types[weight].shape[2:])
    return plain and points and not any(pads) and weight in graph.static_values


def _norm_after(node: Node, rewriter: Rewriter) -> Node | None:
    """Returns the batch norm of a convolution that a pooling reads through a relu alone."""
    relu = rewriter.producer(node.inputs[0])
    if (
        relu is None
        or relu.op != "aten.relu.default"
        or not rewriter.only_feeds(relu.output.name, node)
    ):
        return None
    norm = rewriter.producer(relu.inputs[0])
    if (
        norm is None
        or norm.op not in BATCH_NORMS
        or not rewriter.only_feeds(norm.outputs[0].name, relu)
    ):
        return None
    conv = rewriter.producer(norm.inputs[0])
    told = has_fixed_statistics(norm, rewriter) and None not in norm.inputs[1:3]
    return norm if told and conv is not None and conv.op == "npu.conv" else None


def _centered(node: Node, norm: Node, shifts: dict[str, str], rewriter: Rewriter) -> Node:
    """Returns the pooling over what it read less its shift."""
    x = node.inputs[0]
    assert x is not None
    type = rewriter.types[x]
    shift = _channel_shift(node, norm, rewriter)
    shifts[node.output.name] = shift
    vector = TensorType(type.dtype, rewriter.types[shift].shape)
    lower = rewriter.emit("aten.neg.default", (shift,), vector, like=norm)
    lower = reshaped(lower, (type.shape[1], *(1,) * (type.rank - 2)), norm, rewriter)
    plain = TensorType(type.dtype, type.shape)
    x = rewriter.emit("aten.add.Tensor", (x, lower), plain, {"alpha": 1}, like=norm)
    return replace(node, inputs=(x, *node.inputs[1:]))


def _channel_shift(node: Node, norm: Node, rewriter: Rewriter) -> str:
    """Emits relu(beta + |weight| * m): m is about the mean of the greatest of the window's n.

    By Blom, "Statistical Estimates and Transformed Beta-Variables", 1958.
    """
    _, weight, beta = norm.inputs[:3]
    assert weight is not None and beta is not None
    n = prod(ints(node, "kernel_size", node.type.rank - 2))
    greatest: dict[str, Attr] = {"other": NormalDist().inv_cdf((n - 0.375) / (n + 0.25))}
    weight, beta = (cast(v, "float32", norm, rewriter) for v in (weight, beta))
    type = rewriter.types[beta]
    shift = rewriter.emit("aten.abs.default", (weight,), type, like=norm)
    shift = rewriter.emit("aten.mul.Scalar", (shift,), type, greatest, like=norm)
    shift = rewriter.emit("aten.add.Tensor", (shift, beta), type, {"alpha": 1}, like=norm)
    shift = rewriter.emit("aten.relu.default", (shift,), type, like=norm)
    return cast(shift, node.type.dtype, norm, rewriter)


def _corrected(node: Node, shift: str, rewriter: Rewriter) -> Node:
    """Returns a convolution of what lacks a shift, with its part of the result in the bias."""
    x, weight, bias, addend = node.inputs
    assert weight is not None
    weight, shift = (cast(v, "float32", node, rewriter) for v in (weight, shift))
    matrix = TensorType("float32", rewriter.types[weight].shape[:2])
    weight = reshaped(weight, matrix.shape, node, rewriter)
    part = rewriter.emit("aten.mul.Tensor", (weight, shift), matrix, like=node)
    vector = TensorType("float32", (channels(node),))
    over: dict[str, Attr] = {"dim": (1,), "keepdim": False}
    part = rewriter.emit("aten.sum.dim_IntList", (part,), vector, over, like=node)
    if bias is not None:
        part = with_bias(cast(bias, "float32", node, rewriter), part, node, rewriter)
    return replace(node, inputs=(x, node.inputs[1], part, addend))
