"""Multiplies images before they are resized and joined: fewer pixels are multiplied.

A 1x1 convolution of images that lie beside each other as channels is a sum of 1x1 convolutions of
each. One of an enlarged image is that of the image, enlarged: interpolation weighs pixels, the
same for all channels, and the product channels, the same for all pixels. So

    act(conv(cat(x0, resize(x1), resize(x2))) + bias)

becomes act(conv0(x0) + bias + (resize(conv1(x1)) + resize(conv2(x2)))), as heads of segmentation
have it. Results differ by roundings; an infinity in x1 spreads as far as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, rewrite
from npusim.ir.types import TensorType
from npusim.ops.fused import NO_EPILOGUE
from npusim.targets.target_config import TargetConfig

_MODES = ("nearest", "bilinear", "linear", "trilinear", "bicubic")
_RESIZES = frozenset(
    f"aten.upsample_{mode}{rank}d.{overload}"
    for mode in _MODES
    for rank in (1, 2, 3)
    for overload in ("vec", "default")
)
_LEAST_CHANNELS = 64  # multiply-adds that a pixel saves for each result that is resized and added
_LEAST_GROWTH = 2  # of the number of pixels
_MOST_GROWTH = 2  # of the number of channels, all of which are resized then


def move_products_before_resizes(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with 1x1 convolutions of joined images taken apart where that saves."""
    return rewrite(graph, _visit)


@dataclass(frozen=True, slots=True)
class _Part:
    """One of the images that are joined: its value and channels, and the resize that moves."""

    value: str
    begin: int
    end: int
    resize: Node | None


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    joined = _joined(node, rewriter)
    if joined is None:
        return None
    parts = _parts(joined, node, rewriter)
    moved = [part for part in parts if part.resize is not None]
    kept = [part for part in parts if part.resize is None]
    if not moved:
        return None
    if not kept:  # the bias and what else comes behind the sums is a convolution's to do
        kept = [replace(moved.pop(), resize=None)]
    if not moved:
        return None
    enlarged = [_enlarged(part, node, rewriter) for part in moved]
    total = enlarged[0]
    for value in enlarged[1:]:
        attrs: dict[str, Attr] = {"alpha": 1}
        total = rewriter.emit("aten.add.Tensor", (total, value), node.type, attrs, like=node)
    x, weight = _beside(kept, joined, node, rewriter)
    return replace(
        node, inputs=(x, weight, node.inputs[2], total), attrs={**node.attrs, "residual": 1}
    )


def _joined(node: Node, rewriter: Rewriter) -> Node | None:
    """Returns the concatenation of channels that a 1x1 convolution of float32 alone reads."""
    if node.op != "npu.conv" or node.type.dtype != "float32" or node.is_symbolic:
        return None
    x, weight = node.inputs[:2]
    if x is None or weight is None or node.inputs[3] is not None or weight not in rewriter.static:
        return None
    kernel = rewriter.types[weight].shape[2:]
    ones = (1,) * len(kernel)
    plain = node.attrs["groups"] == 1 and not node.attrs["transposed"]
    unmoved = all(node.attrs[name] == (0,) * len(kernel) for name in ("padding", "padding_back"))
    joined = rewriter.producer(x)
    if not plain or not unmoved or kernel != ones or node.attrs["stride"] != ones:
        return None
    if joined is None or joined.op != "aten.cat.default" or not rewriter.only_feeds(x, node):
        return None
    return joined if joined.attrs.get("dim", 0) in (1, 1 - joined.type.rank) else None


def _parts(joined: Node, node: Node, rewriter: Rewriter) -> list[_Part]:
    parts: list[_Part] = []
    at = 0
    for value in joined.inputs:
        assert value is not None
        channels = rewriter.types[value].shape[1]
        resize = rewriter.producer(value)
        if resize is not None and not _pays(resize, value, joined, node, rewriter):
            resize = None
        parts.append(_Part(value, at, at + channels, resize))
        at += channels
    return parts


def _pays(resize: Node, value: str, joined: Node, node: Node, rewriter: Rewriter) -> bool:
    """Tells whether an image is enlarged by so much that multiplying it before saves time."""
    if resize.op not in _RESIZES or not rewriter.only_feeds(value, joined):
        return False
    x = resize.inputs[0]
    assert x is not None
    small, large = rewriter.types[x], rewriter.types[value]
    channels = large.shape[1]
    grows = prod(large.shape[2:]) >= _LEAST_GROWTH * prod(small.shape[2:]) > 0
    return grows and channels >= _LEAST_CHANNELS and node.type.shape[1] <= _MOST_GROWTH * channels


def _enlarged(part: _Part, node: Node, rewriter: Rewriter) -> str:
    """Emits the product of an image as it is before it is enlarged, and enlarges that."""
    assert part.resize is not None
    x = part.resize.inputs[0]
    assert x is not None
    small = rewriter.types[x].shape
    type = TensorType(node.type.dtype, (small[0], node.type.shape[1], *small[2:]))
    weight = _columns(node, part.begin, part.end, rewriter)
    attrs = {**node.attrs, **NO_EPILOGUE}
    product = rewriter.emit("npu.conv", (x, weight, None, None), type, attrs, like=node)
    inputs = (product, *part.resize.inputs[1:])
    return rewriter.emit(part.resize.op, inputs, node.type, part.resize.attrs, like=part.resize)


def _beside(kept: Sequence[_Part], joined: Node, node: Node, rewriter: Rewriter) -> tuple[str, str]:
    """Returns the images that are multiplied as they were, beside each other, and their weight."""
    weights = [_columns(node, part.begin, part.end, rewriter) for part in kept]
    if len(kept) == 1:
        return kept[0].value, weights[0]
    channels = sum(part.end - part.begin for part in kept)
    values = [part.value for part in kept]
    found = []
    for operands, like in ((values, joined.type), (weights, rewriter.types[weights[0]])):
        type = TensorType(like.dtype, (like.shape[0], channels, *like.shape[2:]))
        attrs: dict[str, Attr] = {"tensors": len(kept), "dim": 1}
        found.append(rewriter.emit("aten.cat.default", operands, type, attrs, like=joined))
    return found[0], found[1]


def _columns(node: Node, begin: int, end: int, rewriter: Rewriter) -> str:
    """Returns the part of a convolution's weight for some channels that come in."""
    weight = node.inputs[1]
    assert weight is not None
    whole = rewriter.types[weight]
    type = TensorType(whole.dtype, (whole.shape[0], end - begin, *whole.shape[2:]))
    bounds: dict[str, Attr] = {"dim": 1, "start": begin, "end": end, "step": 1}
    return rewriter.emit("aten.slice.Tensor", (weight,), type, bounds, like=node)
