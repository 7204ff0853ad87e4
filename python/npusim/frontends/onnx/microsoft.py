"""Quantized operators of ONNX Runtime's own domain, which its quantizer writes.

Each is its operands dequantized, the plain operator, and its result quantized; passes make products
of bytes of what they can. Formulas: docs/ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.kinds import CARRIERS, limits
from npusim.frontends.onnx.matmul import matmul
from npusim.frontends.onnx.pooling import average_pool
from npusim.frontends.onnx.quantization import dynamically_quantized, fixed, qlinear_conv
from npusim.frontends.onnx.registry import Call, translation

DOMAIN = "com.microsoft"
_FLOAT = TensorProto.FLOAT


def _vector(call: Call, t: Tensor, rank: int, axis: int) -> Tensor:
    """Returns a scale or zero point broadcast along an axis of a tensor of `rank` dimensions."""
    t = fixed(call, t)
    if t.rank == 0 or t.shape == (1,):
        return t.view(())
    if t.rank > 1:
        return t
    return t.view([t.shape[0] if d == axis % rank else 1 for d in range(rank)])


def floats_of(
    call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None, axis: int = -1
) -> Tensor:
    """Returns (x - zero) · scale in float32; vectors are numbers along the axis."""
    wide = x.to("float32", _FLOAT)
    if zero is not None:
        wide = wide - _vector(call, zero, x.rank, axis).to("float32", _FLOAT)
    return wide * _vector(call, scale, x.rank, axis)


def _bytes(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None, kind: int) -> Tensor:
    whole = (x / _vector(call, scale, x.rank, -1)).op("round.default")
    if zero is not None:
        whole = whole + _vector(call, zero, x.rank, -1).to("float32", _FLOAT)
    low, high = limits(kind)
    return whole.op("clamp.default", low, high).to(CARRIERS[kind], kind)


@translation("QuantizeLinear", domain=DOMAIN)
def _quantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    kind = TensorProto.UINT8 if zero is None else zero.kind
    axis = call.int("axis", 1)
    whole = (x / _vector(call, scale, x.rank, axis)).op("round.default")
    if zero is not None:
        whole = whole + _vector(call, zero, x.rank, axis).to("float32", _FLOAT)
    low, high = limits(kind)
    return whole.op("clamp.default", low, high).to(CARRIERS[kind], kind)


@translation("DequantizeLinear", domain=DOMAIN)
def _dequantize(call: Call, x: Tensor, scale: Tensor, zero: Tensor | None = None) -> Tensor:
    return floats_of(call, x, scale, zero, call.int("axis", 1))


@translation("QLinearAdd", "QLinearMul", domain=DOMAIN)
def _binary(
    call: Call,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
) -> Tensor:
    x, y = floats_of(call, a, a_scale, a_zero), floats_of(call, b, b_scale, b_zero)
    result = x + y if call.op == "QLinearAdd" else x * y
    return _bytes(call, result, y_scale, y_zero, a.kind)


@translation("QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax", domain=DOMAIN)
def _unary(
    call: Call,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
) -> Tensor:
    wide = floats_of(call, x, x_scale, x_zero)
    if call.op == "QLinearSigmoid":
        result = wide.op("sigmoid.default")
    elif call.op == "QLinearLeakyRelu":
        result = wide.op("leaky_relu.default", call.float("alpha", 0.01))
    else:
        result = _softmax(call, wide)
    return _bytes(call, result, y_scale, y_zero, x.kind)


def _softmax(call: Call, x: Tensor) -> Tensor:
    """Along one axis; before opset 13 over all dimensions from it on."""
    axis = call.int("axis", -1) % x.rank
    if call.int("opset", 13) >= 13:
        return x.op("softmax.int", axis)
    flat = x.view([*x.shape[:axis], int(np.prod(x.shape[axis:]))])
    return flat.op("softmax.int", axis).view(x.shape)


@translation("QLinearGlobalAveragePool", domain=DOMAIN)
def _global_average_pool(
    call: Call,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
) -> Tensor:
    first = 1 if call.int("channels_last") else 2
    dims = list(range(first, x.rank - 1 if first == 1 else x.rank))
    mean = floats_of(call, x, x_scale, x_zero).op("mean.dim", dims, True)
    return _bytes(call, mean, y_scale, y_zero, x.kind)


@translation("QLinearAveragePool", domain=DOMAIN)
def _average_pool(
    call: Call,
    x: Tensor,
    x_scale: Tensor,
    x_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
) -> Tensor:
    last = bool(call.int("channels_last"))
    x = channels_second(x) if last else x
    wide = average_pool(call, floats_of(call, x, x_scale, x_zero))
    assert isinstance(wide, Tensor)
    y = _bytes(call, wide, y_scale, y_zero, x.kind)
    return channels_behind(y) if last else y


def channels_second(x: Tensor) -> Tensor:
    """Returns [n, …, channels] as [n, channels, …]."""
    return x.permute((0, x.rank - 1, *range(1, x.rank - 1)))


def channels_behind(x: Tensor) -> Tensor:
    """Returns [n, channels, …] as [n, …, channels]."""
    return x.permute((0, *range(2, x.rank), 1))


@translation("QLinearConv", domain=DOMAIN, hints=("kernel_shape",))  # the weight's
def _convolution(call: Call, x: Tensor, *operands: Tensor) -> Tensor:
    """ONNX's, whose x and result may have their channels last."""
    last = bool(call.int("channels_last"))
    y = qlinear_conv(call, channels_second(x) if last else x, *operands)
    return channels_behind(y) if last else y


@translation("QLinearWhere", domain=DOMAIN)
def _where(
    call: Call,
    condition: Tensor,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor | None,
    y_scale: Tensor,
    y_zero: Tensor | None = None,
) -> Tensor:
    x, y = floats_of(call, a, a_scale, a_zero), floats_of(call, b, b_scale, b_zero)
    chosen = call.graph.op("where.self", condition, x, y)
    return _bytes(call, chosen, y_scale, y_zero, a.kind)


@translation("QLinearConcat", domain=DOMAIN)
def _concat(call: Call, y_scale: Tensor, y_zero: Tensor, *parts: Tensor) -> Tensor:
    triples = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    each = [floats_of(call, x, scale, zero) for x, scale, zero in triples]
    joined = call.graph.op("cat.default", each, call.int("axis"))
    return _bytes(call, joined, y_scale, y_zero, y_zero.kind)


@translation("QGemm", domain=DOMAIN)
def _gemm(
    call: Call,
    a: Tensor,
    a_scale: Tensor,
    a_zero: Tensor | None,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor | None,
    c: Tensor | None = None,
    y_scale: Tensor | None = None,
    y_zero: Tensor | None = None,
) -> Tensor:
    x = floats_of(call, a, a_scale, a_zero)
    w = floats_of(call, b, b_scale, b_zero, 0 if call.int("transB") else 1)
    x = x.permute((1, 0)) if call.int("transA") else x
    w = w if call.int("transB") else w.permute((1, 0))
    alpha = call.float("alpha", 1.0)
    bias = None
    if c is not None:  # counts what the sums count
        bias = floats_of(call, c, _product(call, a_scale, b_scale))
    row = bias is not None and bias.type.numel == w.shape[0]
    product = x.op("linear.default", w, bias.view((w.shape[0],)) if bias and row else None)
    product = product if bias is None or row else product + bias
    product = product if alpha == 1.0 else product * alpha
    if y_scale is None:
        return product
    kind = a.kind if y_zero is None else y_zero.kind
    return _bytes(call, product, y_scale, y_zero, kind)


def _product(call: Call, a: Tensor, b: Tensor) -> Tensor:
    """Returns the product of two scales, known when both are."""
    if a.data is None or b.data is None:
        return a * b
    return call.graph.known((a.data * b.data).astype(np.float32))


@translation("MatMulIntegerToFloat", domain=DOMAIN)
def _matmul_to_float(
    call: Call,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero: Tensor | None = None,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    return _scaled_matmul(call, a, b, a_scale, b_scale, a_zero, b_zero, bias)


def _scaled_matmul(
    call: Call,
    a: Tensor,
    b: Tensor,
    a_scale: Tensor,
    b_scale: Tensor,
    a_zero: Tensor | None,
    b_zero: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    x = floats_of(call, a, a_scale, a_zero, -2)
    product = matmul(x, floats_of(call, b, b_scale, b_zero))
    return product if bias is None else product + bias


@translation("DynamicQuantizeMatMul", domain=DOMAIN)
def _dynamic_matmul(
    call: Call,
    a: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    x, scale, zero = dynamically_quantized(a)
    return _scaled_matmul(call, x, b, scale, b_scale, zero, b_zero, bias)
