"""Sums and means of bytes, and other quantizations of them, as depthwise products with ones.

What a described machine does to bytes between two quantizations has its arithmetic then: sums of
int32, and the way back to bytes that its file says. A summand of floats, one a channel, is an
integer beside sums of 64ths of a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from types import MappingProxyType

import numpy as np

from npusim.abi.requantization import FLOAT32
from npusim.analysis.int8_epilogues import by_rule, with_other_bytes
from npusim.analysis.int8_operands import (
    BIAS,
    SCALE,
    X_ZERO,
    Y_ZERO,
    scale_of_one,
    times,
    with_whole_bias,
)
from npusim.analysis.match import of_node
from npusim.analysis.quantized_values import (
    Dequantized,
    Quantization,
    bytes_of,
    dequantized,
    number_of,
    vector_of,
)
from npusim.analysis.shapes import ints
from npusim.ir.graph import Attr, Node
from npusim.ir.rewriter import Answer, Rewriter, become
from npusim.ir.types import TensorType
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.int8_reference import BYTES, INT8_CONV, OPERANDS

_IMAGE = 4  # dimensions of what has channels in its second one
_NOTHING: Mapping[str, Attr] = MappingProxyType({})
_PARTS = 64  # of a step, that summands of floats are counted in
_MOST = 2**22  # bytes of a window, whose sum stays below 2**31
_ZEROS: tuple[int, ...] = (0, 0)
_ONES: tuple[int, ...] = (1, 1)
_POOLS = ("aten.adaptive_avg_pool2d.default", "aten._adaptive_avg_pool2d.default")


def elementwise(node: Node, written: Quantization, rule: str, rewriter: Rewriter) -> Answer:
    """Returns a product that makes the bytes of a node; None where bytes are not all of it.

    Args:
        node: makes the bytes, as `written` says.
        rule: how sums become bytes: FLOAT32, or a rounding of integers.
    """
    value, act = written.value, "copy"
    behind = rewriter.producer(value)
    if behind is not None and of_node(behind, "relu", rewriter) is not None:
        value, act = behind.inputs[0] or "", "relu"
    made = _Made(node, written, rule, act, rewriter)
    found = dequantized(value, rewriter)
    if found is not None:
        return made.requantized(found)
    producer = rewriter.producer(value)
    if producer is None or producer.type.shape != node.type.shape:
        return None
    summands = of_node(producer, "add", rewriter)
    if summands is None:
        return made.mean(producer)
    for own, other in (summands, summands[::-1]):
        a = dequantized(own, rewriter) if isinstance(own, str) else None
        if a is not None and isinstance(other, str):
            return made.sum(a, other)
    return None


class _Made:
    """The node to replace, and the products that may stand in its place."""

    def __init__(
        self, node: Node, written: Quantization, rule: str, act: str, rewriter: Rewriter
    ) -> None:
        self._node, self._written, self._rule = node, written, rule
        self._act, self._rewriter = act, rewriter

    def requantized(self, x: Dequantized) -> Answer:
        """The bytes of x in other steps."""
        scale = self._step(x, 1)
        inputs = None if scale is None else self._inputs(x, self._shape, 1, self._constant(scale))
        return None if inputs is None else self._product(inputs, self._shape)

    def sum(self, a: Dequantized, other: str) -> Answer:
        """The sum of the bytes of a with others, or with floats known before, one a channel."""
        b, types = dequantized(other, self._rewriter), self._rewriter.types
        a = replace(a, scale=1.0 if a.scale is None else a.scale)
        if types[a.source].numel != self._node.type.numel:
            return None
        if b is None or types[b.source].dtype not in BYTES:
            return self._shifted(a, other)
        if types[b.source].numel != self._node.type.numel:
            return None
        b = replace(b, scale=1.0 if b.scale is None else b.scale)
        inputs = self._inputs(a, self._shape, 1, scale_of_one(self._rewriter))
        if inputs is None:
            return None
        kind = types[a.source].dtype
        joined = with_other_bytes(
            inputs, kind, a, b, self._written, self._node, self._rule, self._rewriter
        )
        if joined is None:
            return None
        joined[7] = self._viewed(bytes_of(b, self._node, self._rewriter), self._shape)
        return self._product(joined, self._shape, {"residual": 1})

    def mean(self, pool: Node) -> Answer:
        """The means of windows of bytes, where every window has as many elements."""
        x = dequantized(pool.inputs[0] or "", self._rewriter)
        window = None if x is None else _window(pool, self._rewriter)
        if x is None or window is None:
            return None
        count, shape, attrs = window
        scale = self._step(x, count)
        if scale is None:
            return None
        source = self._rewriter.types[pool.inputs[0] or ""].shape
        inputs = self._inputs(x, source, 1, self._constant(scale), ints_of(attrs, "kernel"))
        own = {name: value for name, value in attrs.items() if name != "kernel"}
        return None if inputs is None else self._product(inputs, shape, own)

    def _shifted(self, a: Dequantized, other: str) -> Answer:
        rewriter, shape = self._rewriter, self._node.type.shape
        type = rewriter.types[other]
        aligned = (1,) * (len(shape) - type.rank) + type.shape
        step, scale = number_of(self._written.scale, rewriter), number_of(a.scale, rewriter)
        if other not in rewriter.static or type.dtype != "float32":
            return None
        if aligned != (1,) * (len(shape) - 1) + shape[-1:] or not step or scale is None:
            return None
        bias = other
        if type.rank != 1:
            flat = TensorType("float32", shape[-1:])
            attrs: dict[str, Attr] = {"size": flat.shape}
            bias = rewriter.emit("aten.view.default", (bias,), flat, attrs, like=self._node)
        parts = self._constant(np.float32(scale) / np.float32(_PARTS))
        inputs = self._inputs(a, _in_rows(shape), _PARTS, parts)
        if inputs is None:
            return None
        inputs[BIAS] = bias
        if self._rule != FLOAT32:
            inputs = list(with_whole_bias(tuple(inputs), self._node, rewriter))
        known, op = self._constant(np.float32(step)), "mul" if self._written.inverted else "div"
        for at in (SCALE, BIAS):
            value = inputs[at]
            inputs[at] = None if value is None else times(value, known, self._node, rewriter, op)
        return self._product(inputs, _in_rows(shape))

    @property
    def _shape(self) -> tuple[int, ...]:
        shape = self._node.type.shape
        return shape if len(shape) == _IMAGE else _in_rows(shape)

    def _step(self, x: Dequantized, count: int) -> np.float32 | None:
        """Returns how many steps of the result a sum of 1 is, of which `count` are averaged."""
        own = number_of(x.scale, self._rewriter) if x.scale is not None else 1.0
        step = number_of(self._written.scale, self._rewriter)
        if own is None or not step:
            return None
        return np.float32(own * step / count if self._written.inverted else own / (step * count))

    def _constant(self, scale: np.float32) -> str:
        data = np.asarray([scale], "<f4").tobytes()
        return self._rewriter.constant("scale", TensorType("float32", (1,)), data)

    def _inputs(
        self,
        x: Dequantized,
        shape: Sequence[int],
        weight: int,
        scale: str,
        kernel: Sequence[int] = (),
    ) -> list[str | None] | None:
        """Returns the operands of a depthwise product of x with one number."""
        types, node, rank = self._rewriter.types, self._node, self._node.type.rank
        kind, zero = types[x.source].dtype, None
        if kind not in BYTES or not all(shape):
            return None
        if x.zero is not None:
            zero = vector_of(x.zero, kind, -1, rank, node, self._rewriter)
            if zero is None or types[zero].numel != 1:
                return None
        y_zero: str | None = None
        if self._written.zero is not None:
            number = number_of(self._written.zero, self._rewriter)
            if number is None:
                return None
            y_zero = vector_of(number, node.type.dtype, -1, rank, node, self._rewriter)
            if y_zero is None:
                return None
        taps = tuple(kernel) or (1,) * (len(shape) - 2)
        ones = TensorType("int8", (shape[1], 1, *taps))
        data = np.full(ones.shape, weight, np.int8).tobytes()
        inputs: list[str | None] = [None] * OPERANDS
        inputs[0] = self._viewed(bytes_of(x, node, self._rewriter), shape)
        inputs[1] = self._rewriter.constant("ones", ones, data)
        inputs[X_ZERO], inputs[SCALE], inputs[Y_ZERO] = zero, scale, y_zero
        return inputs

    def _viewed(self, value: str, shape: Sequence[int]) -> str:
        kind = self._rewriter.types[value]
        if kind.shape == tuple(shape):
            return value
        type, attrs = TensorType(kind.dtype, tuple(shape)), {"size": tuple(shape)}
        return self._rewriter.emit("aten.view.default", (value,), type, attrs, like=self._node)

    def _product(
        self,
        inputs: Sequence[str | None],
        shape: Sequence[int],
        more: Mapping[str, Attr] = _NOTHING,
    ) -> Answer:
        """Returns the product, of a shape with channels in its second dimension, in place."""
        node, rank = self._node, len(shape) - 2
        attrs: dict[str, Attr] = {
            "stride": (1,) * rank,
            "padding": (0,) * rank,
            "padding_back": (0,) * rank,
            "dilation": (1,) * rank,
            "groups": shape[1],
            "dtype": node.type.dtype,
            **NO_EPILOGUE,
            "act": self._act,
            **by_rule(self._rule),
            **more,
        }
        if tuple(shape) == node.type.shape:
            return become(node, INT8_CONV, inputs, attrs)
        type = TensorType(node.type.dtype, tuple(shape))
        made = self._rewriter.emit(INT8_CONV, inputs, type, attrs, like=node)
        return become(node, "aten.view.default", (made,), {"size": node.type.shape})


def _in_rows(shape: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of the same elements with the innermost dimension as channels."""
    return (prod(shape[:-1]), shape[-1], 1) if shape else (1, 1, 1)


def ints_of(attrs: dict[str, Attr], name: str) -> tuple[int, ...]:
    """Returns an attribute that is a list of numbers."""
    value = attrs[name]
    assert isinstance(value, tuple)
    return tuple(n for n in value if isinstance(n, int))


def _window(pool: Node, rewriter: Rewriter) -> tuple[int, tuple[int, ...], dict[str, Attr]] | None:
    """Returns by what a pool divides, the shape of images it makes, and attributes of a product.

    None where it is no mean over height and width, or windows at the border have fewer elements.
    """
    source = rewriter.types[pool.inputs[0] or ""]
    if source.rank != _IMAGE or not all(isinstance(n, int) for n in source.shape):
        return None
    kernel, stride, padding = tuple(source.shape[2:]), _ONES, _ZEROS
    shape: tuple[int, ...] = (*source.shape[:2], 1, 1)
    if pool.op == "aten.mean.dim":
        dims = sorted(d % _IMAGE for d in ints(pool, "dim")) if pool.attrs.get("dim") else []
        if dims != [2, 3] or pool.type.dtype != source.dtype:
            return None
    elif pool.op in _POOLS:
        if pool.type.shape != shape:
            return None
    elif pool.op == "aten.avg_pool2d.default":
        kernel = _pair(pool, "kernel_size", (0, 0))
        stride, padding = _pair(pool, "stride", kernel), _pair(pool, "padding", (0, 0))
        counted = pool.attrs.get("count_include_pad", True) or padding == (0, 0)
        if not counted or pool.attrs.get("ceil_mode") or pool.attrs.get("divisor_override"):
            return None
        shape = pool.type.shape
    else:
        return None
    count = prod(kernel)
    if not 0 < count <= _MOST:
        return None
    attrs: dict[str, Attr] = {"stride": stride, "padding": padding, "padding_back": padding}
    return count, shape, {**attrs, "kernel": kernel}


def _pair(node: Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    given = node.attrs.get(name)
    if not given and given != 0:
        return default
    found = (given,) if isinstance(given, int) else ints(node, name)
    return tuple(found) * 2 if len(found) == 1 else tuple(found)
