"""`npu.linear` and `npu.conv` as the passes see them: channels, epilogue, views behind them.

Owns what folding and fusing passes share; decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, inverse, permutation
from npusim.ir.graph import Attr, Node
from npusim.ir.rewriter import Rewriter, become
from npusim.ir.types import TensorType

FLOAT_PRODUCTS = ("npu.linear", "npu.conv")
KERNEL_DTYPES = ("float32", "float16", "bfloat16")  # of gemm and conv


@dataclass(frozen=True)
class FusedProducer:
    """A linear or conv, and the views between its result and the node that reads it.

    Attributes:
        node: the linear or conv.
        views: reshapes and permutations, in order, each read by nothing but the next.
    """

    node: Node
    views: tuple[Node, ...]

    def channel_axis(self) -> int | None:
        """Returns the dimension that holds the channels behind the views; None when split."""
        axis = self.node.type.rank - 1 if self.node.op == "npu.linear" else 1
        shape = self.node.type.shape
        for view in self.views:
            if view.op in PERMUTATIONS:
                axis = permutation(view, len(shape)).index(axis)
            else:
                moved = _axis_after_reshape(shape, axis, view.type.shape)
                if moved is None:
                    return None
                axis = moved
            shape = view.type.shape
        return axis


def producer_of(
    value: str, reader: Node, rewriter: Rewriter, ops: Sequence[str] = FLOAT_PRODUCTS
) -> FusedProducer | None:
    """Returns the linear or conv whose result only `reader` reads, perhaps through views.

    Args:
        ops: what counts as one.
    """
    views: list[Node] = []
    node = reader
    while rewriter.only_feeds(value, node) and node.inputs.count(value) == 1:
        producer = rewriter.producer(value)
        if producer is None or value in rewriter.static:
            return None
        if producer.op in ops:
            return FusedProducer(producer, tuple(reversed(views)))
        if producer.op not in RESHAPES | PERMUTATIONS or producer.inputs[0] is None:
            return None
        views.append(producer)
        value, node = producer.inputs[0], producer
    return None


def replay(producer: FusedProducer, fused: Node, root: Node, rewriter: Rewriter) -> Node:
    """Returns what takes the place of `root` when `fused` absorbs it: the last view, or `fused`.

    Args:
        fused: the producer's node with new inputs and attributes.
    """
    if not producer.views:
        return replace(fused, name=root.name, outputs=root.outputs, source=root.source)
    value = rewriter.emit(
        fused.op, fused.inputs, fused.type, fused.attrs, like=root, name=fused.name
    )
    *inner, last = producer.views
    for view in inner:
        value = rewriter.emit(view.op, (value,), view.type, view.attrs, like=view)
    return become(root, last.op, (value,), last.attrs)


def undo_views(value: str, producer: FusedProducer, like: Node, rewriter: Rewriter) -> str:
    """Emits the inverse of the views and returns the value as it would be before them."""
    shapes = [producer.node.type.shape, *(v.type.shape for v in producer.views)]
    for view, before in zip(reversed(producer.views), reversed(shapes[:-1]), strict=True):
        type = TensorType(rewriter.types[value].dtype, before)
        if view.op in PERMUTATIONS:
            attrs: dict[str, Attr] = {"dims": inverse(permutation(view, len(before)))}
            value = rewriter.emit("aten.permute.default", (value,), type, attrs, like=like)
        else:
            value = rewriter.emit("aten.view.default", (value,), type, {"size": before}, like=like)
    return value


def is_plain(node: Node) -> bool:
    """Tells whether a linear or conv has neither activation nor residual yet."""
    return node.attrs["act"] == "copy" and node.attrs["residual"] == 0


def channels(node: Node) -> int:
    """Returns how many output channels a linear or conv has."""
    return node.type.shape[-1 if node.op == "npu.linear" else 1]


def channel_vector(
    value: str, axis: int, result: TensorType, like: Node, rewriter: Rewriter
) -> str | None:
    """Returns a static operand as a vector over the channels, or None when it is none.

    Args:
        axis: the dimension of `result` that holds the channels.
        result: what the operand is broadcast to.
    """
    type = rewriter.types[value]
    count = result.shape[axis]
    aligned = (1,) * (result.rank - type.rank) + type.shape
    only_channels = all(n == (count if d == axis else 1) for d, n in enumerate(aligned))
    if value not in rewriter.static or type.rank > result.rank or not only_channels:
        return None
    return reshaped(value, (count,), like, rewriter)


def reshaped(value: str, shape: Sequence[int], like: Node, rewriter: Rewriter) -> str:
    """Returns a value in another shape; itself when it has that shape."""
    type = rewriter.types[value]
    if type.shape == tuple(shape):
        return value
    target = TensorType(type.dtype, tuple(shape))
    return rewriter.emit("aten.view.default", (value,), target, {"size": target.shape}, like=like)


def with_bias(bias: str | None, vector: str, like: Node, rewriter: Rewriter) -> str:
    """Returns a linear's or conv's bias with a static vector over its channels added to it."""
    if bias is None:
        return vector
    type = rewriter.types[bias]  # of the vector's dtype, or wider
    if type.rank == 2:  # others follow the bias
        count = type.shape[1]
        pad: dict[str, Attr] = {"pad": (0, 0, 0, type.shape[0] - 1), "value": 0}
        padded = TensorType(rewriter.types[vector].dtype, type.shape)
        vector = reshaped(vector, (1, count), like, rewriter)
        vector = rewriter.emit("aten.constant_pad_nd.default", (vector,), padded, pad, like=like)
    return rewriter.emit("aten.add.Tensor", (bias, vector), type, {"alpha": 1}, like=like)


def scaled(node: Node, scale: str, op: str, rewriter: Rewriter) -> tuple[str, str | None] | None:
    """Emits a linear's or conv's weight and bias, scaled by a static vector over its channels.

    Args:
        op: "aten.mul.Tensor" or "aten.div.Tensor".

    Returns:
        The new weight and bias; None for a layout that does not hold channels in one dimension.
    """
    weight, bias = node.inputs[1], node.inputs[2]
    assert weight is not None
    if bias is not None and rewriter.types[bias].rank == 2:  # its factors are there to be scaled
        return weight, rewriter.emit(op, (bias, scale), rewriter.types[bias], like=node)
    type = rewriter.types[weight]
    transposed = node.attrs.get("transposed", False)
    if transposed and node.attrs["groups"] != 1:
        return None
    axis = 1 if transposed else 0
    shape = tuple(-1 if d == axis else 1 for d in range(type.rank))
    wide = tuple(channels(node) if n < 0 else n for n in shape)
    factor = reshaped(scale, wide, node, rewriter)
    weight = rewriter.emit(op, (weight, factor), type, like=node)
    if bias is not None:
        bias = rewriter.emit(op, (bias, scale), rewriter.types[bias], like=node)
    return weight, bias


def _axis_after_reshape(old: Sequence[int], axis: int, new: Sequence[int]) -> int | None:
    """Returns where a dimension is after a reshape that keeps it whole, or None."""
    before = prod(old[:axis])
    for position in range(len(new)):
        if prod(new[:position]) == before and new[position] == old[axis]:
            return position
    return None
