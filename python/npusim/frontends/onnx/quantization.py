"""Quantized operators: linear quantization and products of quantized tensors.

Integers go through float arithmetic that is exact for them: a product of two 8-bit numbers summed
over fewer than 256 elements fits a float32, more go through int64.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.casts import cast
from npusim.frontends.onnx.kinds import CARRIERS, NARROW, is_integer, limits
from npusim.frontends.onnx.matmul import convolved, windows
from npusim.frontends.onnx.registry import Call, translation

MAX_PARAMETERS = 1 << 14  # elements of a scale or zero point that a graph holds as a constant


def fixed(call: Call, t: Tensor) -> Tensor:
    """Returns a scale or zero point with its numbers in the graph, where passes can read them."""
    if t.data is None or t.key is None or t.data.size > MAX_PARAMETERS:
        return t
    return call.graph.known(t.data, kind=t.kind, needs=t.needs)


def _spread(call: Call, t: Tensor, x: Tensor) -> Tensor:
    """Returns a scale or zero point broadcast along its axis, or over its blocks."""
    t, block = fixed(call, t), call.int("block_size")
    if t.rank <= 1:
        if t.rank == 0 or t.shape[0] == 1:
            return t.view(())
        axis = call.int("axis", 1) % x.rank
        return t.view([t.shape[0] if d == axis else 1 for d in range(x.rank)])
    if not block:
        return t
    axis = call.int("axis", 1) % x.rank
    places = np.minimum(np.arange(x.shape[axis]) // block, t.shape[axis] - 1)
    return t.op("index_select.default", axis, call.graph.known(places))


@translation("QuantizeLinear")
def _quantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    to = zero.kind if zero is not None else call.int("output_dtype") or TensorProto.UINT8
    precision = CARRIERS[call.int("precision") or TensorProto.FLOAT]
    wide = x.to(precision) / _spread(call, scale, x).to(precision)
    if to in NARROW:
        return cast(wide, to, bool(call.int("saturate", 1)))
    whole = wide.op("round.default")
    if zero is not None:
        whole = whole + _spread(call, zero, x).to(precision)
    low, high = limits(to)
    return whole.op("clamp.default", low, high).to(CARRIERS[to], to)


@translation("DequantizeLinear")
def _dequantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    to = call.int("output_dtype") or scale.kind
    factor = _spread(call, scale, x).to("float32")
    if x.kind in (TensorProto.INT32, TensorProto.UINT32) and zero is not None:
        wide = (x.to("int64") - _spread(call, zero, x).to("int64")).to("float32")
    else:
        wide = x.to("float32", TensorProto.FLOAT)
        if zero is not None:
            wide = wide - _spread(call, zero, x).to("float32", TensorProto.FLOAT)
    return (wide * factor).to(CARRIERS[to], to)


@translation("DynamicQuantizeLinear")
def _dynamic_quantize(call: Call, x: Tensor) -> list[Tensor]:
    return dynamically_quantized(x)


def dynamically_quantized(x: Tensor) -> list[Tensor]:
    """Returns x as uint8 over its own range, the scale and the zero point."""
    dims = list(range(x.rank))
    high = x.op("amax.default", dims).op("clamp.default", 0.0, None)
    low = x.op("amin.default", dims).op("clamp.default", None, 0.0)
    scale = (high - low) / 255.0
    one = x.graph.full((), 1.0, x.dtype)  # the scale of nothing but zeros
    scale = x.graph.op("where.self", high.equals(low), one, scale)
    zero = (low * -1.0 / scale).op("clamp.default", 0.0, 255.0).op("round.default")
    whole = ((x / scale).op("round.default") + zero).op("clamp.default", 0.0, 255.0)
    kind = TensorProto.UINT8
    return [whole.to("uint8", kind), scale, zero.to("uint8", kind)]


def _shifted(call: Call, x: Tensor, zero: Tensor | None, rows: bool) -> Tensor:
    """Returns x - zero as exact integers; a zero point may be one a row, or a column."""
    wide = x.to("int64", TensorProto.INT64)
    if zero is None:
        return wide
    zero = fixed(call, zero)
    if zero.rank == 1 and zero.shape[0] > 1 and rows:
        zero = zero.view((zero.shape[0], 1))
    return wide - (zero.view(()) if zero.shape == (1,) else zero).to("int64", TensorProto.INT64)


def _requantized(total: Tensor, scale: Tensor, zero: Tensor, like: int) -> Tensor:
    low, high = limits(like)
    wide = total.to("float32", TensorProto.FLOAT) * scale
    whole = wide.op("round.default") + zero.to("float32", TensorProto.FLOAT)
    return whole.op("clamp.default", low, high).to(CARRIERS[like], like)


@translation("MatMulInteger")
def _matmul_integer(
    call: Call, a: Tensor, b: Tensor, a_zero: Tensor | None = None, b_zero: Tensor | None = None
) -> Tensor:
    product = _shifted(call, a, a_zero, True).op("matmul.default", _shifted(call, b, b_zero, False))
    return product.to("int32", TensorProto.INT32)


@translation("QLinearMatMul")
def _qlinear_matmul(
    call: Call,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
) -> Tensor:
    product = _shifted(call, a, a_zero, True).op("matmul.default", _shifted(call, b, b_zero, False))
    scale = _number(call, a_scale) * _number(call, b_scale) / _number(call, y_scale)
    return _requantized(product, scale, _number(call, y_zero), y_zero.kind)


def _number(call: Call, t: Tensor) -> Tensor:
    t = fixed(call, t)
    t = t.view(()) if t.shape == (1,) else t
    return t.to("float32", TensorProto.FLOAT) if not is_integer(t.kind) else t


def _conv_integer(
    call: Call, x: Tensor, w: Tensor, x_zero: Tensor | None, w_zero: Tensor | None
) -> Tensor:
    """Convolves in float32, which is exact while sums stay below 2^24."""
    wide = x.to("float32", TensorProto.FLOAT)
    if x_zero is not None:
        wide = wide - fixed(call, x_zero).view(()).to("float32", TensorProto.FLOAT)
    weight = w.to("float32", TensorProto.FLOAT)
    if w_zero is not None:
        each = fixed(call, w_zero).to("float32", TensorProto.FLOAT)
        several = w_zero.rank == 1 and w_zero.shape[0] > 1
        shape = (w.shape[0], *[1] * (w.rank - 1)) if several else ()
        weight = weight - each.view(shape)
    setting = windows(call, x.shape[2:], w.shape[2:])
    return convolved(wide, weight, None, setting, call.int("group", 1))


@translation("ConvInteger")
def _conv_int(
    call: Call, x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None
) -> Tensor:
    return _conv_integer(call, x, w, x_zero, w_zero).to("int32", TensorProto.INT32)


@translation("QLinearConv")
def qlinear_conv(
    call: Call,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero: Tensor,
    y_scale: Tensor,
    y_zero: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Convolves bytes, and makes bytes of the sums."""
    total = _conv_integer(call, x, w, x_zero, w_zero)
    channel = (1, w.shape[0], *[1] * (x.rank - 2))
    if bias is not None:
        total = total + bias.to("float32", TensorProto.FLOAT).view(channel)
    each = _number(call, w_scale)
    each = each.view(channel) if each.rank else each
    scale = _number(call, x_scale) * each / _number(call, y_scale)
    return _requantized(total, scale, _number(call, y_zero), y_zero.kind)
