"""Elementwise operators, activations, comparisons, and choices between tensors."""

from __future__ import annotations

import math
from functools import reduce

import torch
from onnx import TensorProto

from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.kinds import INTEGERS, is_floating, is_integer
from npusim.frontends.onnx.registry import Call, translation
from npusim.ops.fused import broadcast_shapes

_UNARY = {
    "Abs": "abs", "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh",
    "Atan": "atan", "Atanh": "atanh", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf",
    "Exp": "exp", "Floor": "floor", "HardSwish": "hardswish", "IsNaN": "isnan", "Log": "log",
    "Mish": "mish", "Neg": "neg", "Not": "logical_not", "Reciprocal": "reciprocal",
    "Relu": "relu", "Round": "round", "Sigmoid": "sigmoid", "Sign": "sign", "Sin": "sin",
    "Sinh": "sinh", "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
_COMPARISONS = {
    "Equal": "eq", "Greater": "gt", "GreaterOrEqual": "ge", "Less": "lt", "LessOrEqual": "le",
}  # fmt: skip
_LOGICAL = {"And": "logical_and", "Or": "logical_or", "Xor": "logical_xor"}
_BITWISE = {"BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor"}


def wrapped(x: Tensor, kind: int) -> Tensor:
    """Returns integers modulo the kind's range, where its carrier is wider than it."""
    bits, signed = INTEGERS.get(kind, (64, True))
    if kind not in INTEGERS or bits in (8, 64) or (signed and bits >= 16):
        return x
    low = x.op("bitwise_and.Scalar", (1 << bits) - 1, kind=kind)
    if not signed:
        return low
    half = 1 << (bits - 1)
    return (low.op("bitwise_xor.Scalar", half) - half).to(x.dtype, kind)


def turned(x: Tensor) -> Tensor:
    """Returns uint64 with its sign bit turned, so that signed order is its own; others as is.

    Turning twice gives the same again.
    """
    if x.kind != TensorProto.UINT64:
        return x
    return x.op("bitwise_xor.Scalar", -(1 << 63))


def _quotient(x: Tensor, y: Tensor) -> Tensor:
    """Divides uint64, which is carried as the bits of int64."""
    halved = x.op("bitwise_right_shift.Tensor_Scalar", 1).op("bitwise_and.Scalar", (1 << 63) - 1)
    twice = halved.op("div.Tensor_mode", y, rounding_mode="trunc") * 2
    rest = x - twice * y
    more = turned(rest).op("ge.Tensor", turned(y)).to("int64")
    large = turned(x).op("ge.Tensor", turned(y)).to("int64")  # for a divisor of 2^63 or more
    return x.graph.op("where.self", y < 0, large, twice + more, kind=TensorProto.UINT64)


@translation(*_UNARY)
def _unary(call: Call, x: Tensor) -> Tensor:
    return x.op(f"{_UNARY[call.op]}.default")


@translation(*_COMPARISONS)
def _compare(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if call.op != "Equal":
        x, y = turned(x), turned(y)
    return x.op(f"{_COMPARISONS[call.op]}.Tensor", y, kind=TensorProto.BOOL)


@translation(*_LOGICAL)
def _logical(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return x.op(f"{_LOGICAL[call.op]}.default", y)


@translation(*_BITWISE)
def _bitwise(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return x.op(f"{_BITWISE[call.op]}.Tensor", y)


@translation("BitwiseNot")
def _bitwise_not(call: Call, x: Tensor) -> Tensor:
    return wrapped(x.op("bitwise_not.default"), x.kind)


@translation("BitShift")
def _bit_shift(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if call.str("direction") == "LEFT":
        return wrapped(x.op("bitwise_left_shift.Tensor", y), x.kind)
    shifted = x.op("bitwise_right_shift.Tensor", y)
    if x.kind != TensorProto.UINT64:
        return shifted
    # The sign came in from above: clear the upper bits, all but the first one at a time.
    ones = x.graph.full((), -1, x.dtype).op("bitwise_left_shift.Tensor", (y.op("rsub.Scalar", 64)))
    kept = shifted.op("bitwise_and.Tensor", ones.op("bitwise_not.default"))
    return x.graph.op("where.self", y.equals(0), x, kept)


@translation("Add", "Sub", "Mul")
def _arithmetic(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return wrapped(x.op(f"{call.op.lower()}.Tensor", y), x.kind)


@translation("Div")
def _div(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if x.kind == TensorProto.UINT64:
        return _quotient(x, y)
    if is_integer(x.kind):
        return x.op("div.Tensor_mode", y, rounding_mode="trunc")
    return x / y


@translation("Mod")
def _mod(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if x.kind == TensorProto.UINT64:
        return x - _quotient(x, y) * y
    return x.op("fmod.Tensor" if call.int("fmod") else "remainder.Tensor", y)


@translation("Pow")
def _pow(call: Call, x: Tensor, y: Tensor) -> Tensor:
    if is_integer(x.kind) and is_floating(y.kind):
        wide = x.to("float32").op("pow.Tensor_Tensor", y.to("float32"))
        return wide.to(x.dtype, x.kind)
    if is_floating(x.kind) and y.data is not None and y.data.size == 1 and y.rank <= x.rank:
        return x.op("pow.Tensor_Scalar", float(y.data.reshape(-1)[0])).view(
            broadcast_shapes(x.shape, y.shape)
        )
    return x.op("pow.Tensor_Tensor", y.to(x.dtype))


@translation("Max", "Min", "Sum", "Mean")
def _variadic(call: Call, *tensors: Tensor) -> Tensor:
    names = {"Max": "maximum.default", "Min": "minimum.default"}
    name = names.get(call.op, "add.Tensor")
    if call.op in names:
        return turned(reduce(lambda x, y: x.op(name, y), map(turned, tensors)))
    result = reduce(lambda x, y: x.op(name, y), tensors)
    return result / len(tensors) if call.op == "Mean" else result


@translation("IsInf")
def _is_inf(call: Call, x: Tensor) -> Tensor:
    negative, positive = call.int("detect_negative", 1), call.int("detect_positive", 1)
    if negative and positive:
        return x.op("isinf.default")
    if not negative and not positive:
        return x.graph.full(x.shape, False, "bool")
    return x.equals(math.inf if positive else -math.inf)


@translation("Where")
def _where(call: Call, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return call.graph.op("where.self", condition, x, y, kind=x.kind)


@translation("Clip")
def _clip(call: Call, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    bounds: list[Tensor | None] = [low, high]
    if call.version < 11:
        named = (call.attrs.get("min"), call.attrs.get("max"))
        bounds = [None if v is None else call.graph.table(v, x) for v in named]
    if x.kind == TensorProto.UINT64:
        x, bounds = turned(x), [None if b is None else turned(b) for b in bounds]
    known = [None if b is None or b.data is None else b.data.item() for b in bounds]
    if all(b is None or v is not None for b, v in zip(bounds, known, strict=True)):
        return turned(x.op("clamp.default", *known)) if any(b is not None for b in bounds) else x
    for bound, name in zip(bounds, ("maximum.default", "minimum.default"), strict=True):
        x = x if bound is None else x.op(name, bound)
    return turned(x)


@translation("LeakyRelu")
def _leaky_relu(call: Call, x: Tensor) -> Tensor:
    return x.op("leaky_relu.default", call.float("alpha", 0.01))


@translation("Elu")
def _elu(call: Call, x: Tensor) -> Tensor:
    return x.op("elu.default", call.float("alpha", 1.0))


@translation("Celu")
def _celu(call: Call, x: Tensor) -> Tensor:
    alpha = call.float("alpha", 1.0)
    return x.op("elu.default", alpha, 1.0, 1 / alpha)


@translation("Selu")
def _selu(call: Call, x: Tensor) -> Tensor:
    alpha = call.float("alpha", 1.67326319217681884765625)
    return x.op("elu.default", alpha, call.float("gamma", 1.05070102214813232421875))


@translation("ThresholdedRelu")
def _thresholded_relu(call: Call, x: Tensor) -> Tensor:
    return x.op("threshold.default", call.float("alpha", 1.0), 0.0)


@translation("Softplus")
def _softplus(call: Call, x: Tensor) -> Tensor:
    return x.op("softplus.default")


@translation("Softsign")
def _softsign(call: Call, x: Tensor) -> Tensor:
    return x / (x.op("abs.default") + 1.0)


@translation("HardSigmoid")
def _hard_sigmoid(call: Call, x: Tensor) -> Tensor:
    line = x * call.float("alpha", 0.2) + call.float("beta", 0.5)
    return line.op("clamp.default", 0.0, 1.0)


@translation("Gelu")
def _gelu(call: Call, x: Tensor) -> Tensor:
    return x.op("gelu.default", approximate=call.str("approximate", "none"))


@translation("Swish")
def _swish(call: Call, x: Tensor) -> Tensor:
    alpha = call.float("alpha", 1.0)
    if alpha == 1.0:
        return x.op("silu.default")
    return x * (x * alpha).op("sigmoid.default")


@translation("PRelu")
def _prelu(call: Call, x: Tensor, slope: Tensor) -> Tensor:
    # Before opset 7 a slope was one a channel; a converted model still gives it as a vector.
    if slope.rank == 1 and x.rank > 1 and slope.shape[0] not in (1, x.shape[-1]):
        slope = slope.view((slope.shape[0], *[1] * (x.rank - 2)))
    scaled = x * slope
    return call.graph.op("where.self", x < 0, scaled, x)


@translation("Shrink")
def _shrink(call: Call, x: Tensor) -> Tensor:
    bias, limit = call.float("bias"), call.float("lambd", 0.5)
    dtype = x.dtype
    wide = x if is_floating(x.kind) else x.to("float32")
    above = call.graph.op("where.ScalarOther", wide > limit, wide - bias, 0)
    both = call.graph.op("where.self", wide < -limit, wide + bias, above)
    return both.to(dtype, x.kind)


@translation("Softmax", "LogSoftmax", "Hardmax")
def _softmax(call: Call, x: Tensor) -> Tensor:
    shape = x.shape
    axis = call.int("axis", -1 if call.version >= 13 else 1)
    if call.version < 13:  # over everything from the axis on
        axis = axis % max(x.rank, 1)
        x = x.view((math.prod(shape[:axis]), math.prod(shape[axis:])))
        axis = 1
    if call.op == "Hardmax":
        return _hardmax(x, axis).view(shape)
    if call.op == "Softmax":
        return softmax(x, axis).view(shape)
    if x.dtype == "float64":
        return (x - x.op("logsumexp.default", [axis], True)).view(shape)
    return x.op("log_softmax.int", axis).view(shape)


def softmax(x: Tensor, axis: int) -> Tensor:
    """Returns the softmax along an axis; float64, which the kernel does not take, written out."""
    if x.dtype != "float64":
        return x.op("softmax.int", axis)
    powers = (x - x.op("amax.default", [axis], True)).op("exp.default")
    return powers / powers.op("sum.dim_IntList", [axis], True)


def _hardmax(x: Tensor, axis: int) -> Tensor:
    best = x.op("argmax.default", axis, True)
    places = [1] * x.rank
    places[axis] = x.shape[axis]
    line = x.graph.line(x.shape[axis]).view(places)
    return best.equals(line).to(x.dtype, x.kind)


@translation("Identity", "OptionalGetElement")
def _identity(call: Call, x: Tensor) -> list[Tensor]:
    return [x]


@translation("Dropout")
def _dropout(
    call: Call, x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None
) -> list[Tensor | None]:
    active = training is not None and bool(training.values("whether Dropout is active").item())
    share = 0.5 if ratio is None else float(ratio.values("the ratio of Dropout").item())
    if active and share:
        from npusim.errors import ExportError

        raise ExportError("it draws random numbers; export the model for inference.")
    mask = x.graph.full(x.shape, True, "bool") if call.outputs > 1 else None
    return [x, mask]


@translation("BitCast")
def _bit_cast(call: Call, x: Tensor) -> Tensor:
    from npusim.frontends.onnx.kinds import CARRIERS, numpy_dtype

    to = call.int("to")
    if x.kind == TensorProto.BOOL and to in (TensorProto.UINT8, TensorProto.INT8):
        return x.to(CARRIERS[to], to)
    if is_integer(x.kind) and is_integer(to):
        bits, signed = INTEGERS[to]
        if x.dtype == CARRIERS[to] and bits == 64:
            return x.graph.retyped(x, to)
        wide = x.to("int64")
        wide = wide.op("bitwise_and.Scalar", (1 << bits) - 1) if bits < 64 else wide
        if signed and bits < 64:
            wide = wide.op("bitwise_xor.Scalar", 1 << (bits - 1)) - (1 << (bits - 1))
        return wide.to(CARRIERS[to], to)
    return x.op("view.dtype", getattr(torch, numpy_dtype(to).name), kind=to)
