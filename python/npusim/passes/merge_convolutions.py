"""Merges convolutions of one input whose results are added into one convolution.

Blocks that train with branches (RepVGG, arXiv:2101.03697; MobileOne, arXiv:2206.04040) add up
convolutions of different windows and a scale and shift per channel. All are sums over pixels
around one place, so where every window lies within the largest, the sum is one convolution, whose
weights are the sums of theirs, computed at load. No pixel is read that was not read before: zeros
for the taps that a window lacks are added to weights that are there.

float32 alone, where sums of weights are rounded as results are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.analysis.fused_nodes import channel_vector, is_plain, reshaped, with_bias
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, rewrite
from npusim.ir.types import TensorType
from npusim.targets.target_config import TargetConfig

_CONV = "npu.conv"
_MOST = 2.0**16  # of a number that is added to a bias, which it must not swallow or overflow


def merge_convolutions(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with sums of convolutions of one input as one convolution."""
    return rewrite(graph, _visit)


@dataclass(frozen=True)
class _Branch:
    """What is added to a convolution of the same input.

    Attributes:
        weight, bias: static; of a scale per channel, the scale and the shift.
        padding, dilation: of its window, by dimension.
        window: its extents.
    """

    weight: str
    bias: str | None
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    window: tuple[int, ...]


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op == "aten.add.Scalar":
        return _with_number(node, rewriter)
    if node.op != "aten.add.Tensor" or node.attrs.get("alpha", 1) != 1:
        return None
    for at, other in (node.inputs[:2], node.inputs[1::-1]):
        conv = _convolution(at, node, rewriter)
        if conv is None or other is None:
            continue
        beside = _convolution(other, node, rewriter)
        branch = _beside(conv, beside, rewriter) if beside else _scale(conv, other, node, rewriter)
        offsets = None if branch is None else _offsets(conv, branch, rewriter)
        if branch is not None and offsets is not None:
            return _merged(node, conv, branch, offsets, rewriter)
    return None


def _with_number(node: Node, rewriter: Rewriter) -> Answer:
    """Adds a number to the bias: Python's `sum`, and loops like it, begin with 0."""
    conv, number = _convolution(node.inputs[0], node, rewriter), node.attrs["other"]
    finite = isinstance(number, (int, float)) and abs(number) < _MOST
    if conv is None or not finite or node.attrs.get("alpha", 1) != 1:
        return None
    x, weight, bias, _ = conv.inputs
    type = TensorType("float32", (conv.type.shape[1],))
    if bias is None:
        data = np.full(type.shape, number, np.float32).tobytes()
        bias = rewriter.constant("bias", type, data)
    else:
        attrs: dict[str, Attr] = {"other": number, "alpha": 1}
        bias = rewriter.emit("aten.add.Scalar", (bias,), type, attrs, like=node)
    return replace(conv, name=node.name, inputs=(x, weight, bias, None), outputs=node.outputs)


def _convolution(value: str | None, node: Node, rewriter: Rewriter) -> Node | None:
    """Returns the convolution over weights whose result only a node reads."""
    conv = rewriter.producer(value)
    if value is None or conv is None or conv.op != _CONV or not is_plain(conv):
        return None
    if not rewriter.only_feeds(value, node) or node.inputs.count(value) != 1:
        return None
    weights = [i for i in conv.inputs[1:3] if i is not None]
    types = [rewriter.types[i] for i in weights]
    if conv.attrs["transposed"] or {t.dtype for t in (conv.type, *types)} != {"float32"}:
        return None
    whole = types[0].rank == conv.type.rank and all(t.rank == 1 for t in types[1:])
    return conv if whole and set(weights) <= rewriter.static else None


def _beside(conv: Node, other: Node, rewriter: Rewriter) -> _Branch | None:
    same = ("stride", "groups")
    if conv.inputs[0] != other.inputs[0] or any(conv.attrs[k] != other.attrs[k] for k in same):
        return None
    weight = other.inputs[1]
    assert weight is not None
    attrs: Any = other.attrs
    window = rewriter.types[weight].shape[2:]
    return _Branch(weight, other.inputs[2], attrs["padding"], attrs["dilation"], window)


def _scale(conv: Node, value: str, node: Node, rewriter: Rewriter) -> _Branch | None:
    """Returns x * scale + shift as the branch of one pixel that it is."""
    add = rewriter.producer(value)
    x = conv.inputs[0]
    assert x is not None
    if add is None or add.op != "aten.add.Tensor" or add.attrs.get("alpha", 1) != 1:
        return None
    product = rewriter.producer(add.inputs[0])
    if product is None or product.op != "aten.mul.Tensor" or product.inputs[0] != x:
        return None
    if not rewriter.only_feeds(value, node) or rewriter.types[x] != conv.type:
        return None
    if set(conv.attrs["stride"]) != {1}:  # type: ignore[arg-type]
        return None
    parts = [
        None if i is None else channel_vector(i, 1, conv.type, node, rewriter)
        for i in (product.inputs[1], add.inputs[1])
    ]
    if None in parts:
        return None
    scale, shift = parts
    ones = (1,) * (conv.type.rank - 2)
    weight = _diagonal(str(scale), conv.attrs["groups"], len(ones), node, rewriter)  # type: ignore[arg-type]
    return _Branch(weight, shift, (0,) * len(ones), ones, ones)


def _diagonal(scale: str, groups: int, dims: int, node: Node, rewriter: Rewriter) -> str:
    """Returns the weight [C, C / groups, 1, …] that multiplies each channel by its scale.

    Entries of a diagonal lie one more than a row apart: a zero after each row of one, C times.
    """
    count = rewriter.types[scale].shape[0]
    each = count // groups

    def emit(op: str, x: str, shape: tuple[int, ...], attrs: dict[str, Attr]) -> str:
        return rewriter.emit(op, (x,), TensorType("float32", shape), attrs, like=node)

    column = reshaped(scale, (groups, each, 1), node, rewriter)
    pad: dict[str, Attr] = {"pad": (0, each), "value": 0}
    rows = emit("aten.constant_pad_nd.default", column, (groups, each, each + 1), pad)
    flat = reshaped(rows, (groups, each * (each + 1)), node, rewriter)
    cut: dict[str, Attr] = {"dim": 1, "start": 0, "end": each * each, "step": 1}
    square = emit("aten.slice.Tensor", flat, (groups, each * each), cut)
    return reshaped(square, (count, each, *(1,) * dims), node, rewriter)


def _offsets(conv: Node, branch: _Branch, rewriter: Rewriter) -> tuple[int, ...] | None:
    """Returns where a branch's window lies in a convolution's, in taps; None: not within it."""
    assert conv.inputs[1] is not None
    window = rewriter.types[conv.inputs[1]].shape[2:]
    attrs: Any = conv.attrs
    found = []
    for size, padding, dilation, small, its_padding, its_dilation in zip(
        *(window, attrs["padding"], attrs["dilation"]),
        *(branch.window, branch.padding, branch.dilation),
        strict=True,
    ):
        offset, apart = divmod(padding - its_padding, dilation)
        if apart or (small > 1 and its_dilation != dilation):
            return None
        if offset < 0 or offset + small > size:
            return None
        found.append(offset)
    return tuple(found)


def _merged(
    node: Node, conv: Node, branch: _Branch, offsets: tuple[int, ...], rewriter: Rewriter
) -> Node:
    x, weight, bias, _ = conv.inputs
    assert weight is not None
    type = rewriter.types[weight]
    added = branch.weight
    around = zip(offsets, branch.window, type.shape[2:], strict=True)
    pads = [(before, whole - before - size) for before, size, whole in around]
    if any(map(any, pads)):
        pad: dict[str, Attr] = {"pad": tuple(n for p in reversed(pads) for n in p), "value": 0}
        added = rewriter.emit("aten.constant_pad_nd.default", (added,), type, pad, like=node)
    weight = rewriter.emit("aten.add.Tensor", (weight, added), type, {"alpha": 1}, like=node)
    if branch.bias is not None:
        bias = with_bias(bias, branch.bias, node, rewriter)
    inputs = (x, weight, bias, None)
    return replace(conv, name=node.name, inputs=inputs, outputs=node.outputs, source=node.source)
