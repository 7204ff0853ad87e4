"""Casts between element types, those included that no device has."""

from __future__ import annotations

from onnx import TensorProto

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.kinds import (
    CARRIERS,
    INTEGERS,
    NARROW,
    carrier,
    is_floating,
    is_integer,
    numpy_dtype,
)
from npusim.frontends.onnx.pointwise import wrapped
from npusim.frontends.onnx.registry import Call, translation

_SETTING = 64  # elements, of a tensor that is a setting more than data


@translation("Cast")
def _cast(call: Call, x: Tensor) -> Tensor:
    return cast(x, call.int("to"), bool(call.int("saturate", 1)), call.str("round_mode", "up"))


@translation("CastLike")
def _cast_like(call: Call, x: Tensor, like: Tensor) -> Tensor:
    return cast(x, like.kind, bool(call.int("saturate", 1)), call.str("round_mode", "up"))


def cast(x: Tensor, to: int, saturate: bool = True, mode: str = "up") -> Tensor:
    """Returns the elements as another kind; floats are rounded, integers taken modulo a range.

    Args:
        saturate: give narrow floats their greatest value for what is beyond, not NaN or infinity.
        mode: how powers of two (float8e8m0) are rounded: "up", "down" or "nearest".
    """
    dtype = carrier(to, "the result of Cast")
    if to == x.kind:
        return x
    if x.data is not None and x.data.size <= _SETTING and not {x.kind, to} & NARROW.keys():
        return x.graph.known(x.data.astype(numpy_dtype(to)), needs=x.needs)  # stays known
    if to in NARROW:
        wide = x.to("float64" if x.dtype == "float64" else "float32").to(
            "float32", TensorProto.FLOAT
        )
        if to == TensorProto.FLOAT8E8M0:
            return x.graph.retyped(_power_of_two(wide, mode, saturate), to)
        return x.graph.retyped(_narrowed(wide, to, saturate), to)
    if x.kind == TensorProto.UINT64 and is_floating(to):
        # The bits as signed, and 2^64 where the sign is set.
        signed = x.to("float64", TensorProto.DOUBLE)
        below = signed + 2.0**64
        x = x.graph.op("where.self", signed < 0.0, below, signed)
    if is_integer(to) and INTEGERS[to][0] < 8:
        wide = x.to("int64", TensorProto.INT64)
        return wrapped(wide, to).to(dtype, to)
    if is_integer(to) and CARRIERS[to] != _own(to):
        return wrapped(x.to("int64", TensorProto.INT64), to).to(dtype, to)
    return x.to(dtype, to)


def _own(kind: int) -> str:
    bits, signed = INTEGERS[kind]
    return f"{'' if signed else 'u'}int{bits}"


def _exponent(size: Tensor) -> Tensor:
    """Returns the greatest power of two that is not above each positive number."""
    graph = size.graph
    power = size.op("log2.default").op("floor.default").op("exp2.default")
    power = graph.op("where.self", graph.op("gt.Tensor", power, size), power * 0.5, power)
    double = power * 2.0
    return graph.op("where.self", graph.op("le.Tensor", double, size), double, power)


def _narrowed(x: Tensor, to: int, saturate: bool) -> Tensor:
    """Rounds float32 to the values of a narrow float, to nearest even."""
    graph = x.graph
    bits, least, greatest = NARROW[to]
    size = x.op("abs.default")
    finite = size.op("clamp.default", 2.0**least, 2.0**16)
    quantum = _exponent(finite) * 2.0**-bits
    rounded = (x / quantum).op("round.default") * quantum
    beyond = graph.op("gt.Scalar", rounded.op("abs.default"), greatest)
    if to == TensorProto.FLOAT4E2M1 or saturate:
        edge = rounded.op("clamp.default", -greatest, greatest)
    else:
        lost = float("inf") if to == TensorProto.FLOAT8E5M2 else float("nan")
        edge = graph.op("where.ScalarSelf", beyond, lost, rounded)
        if to == TensorProto.FLOAT8E5M2:
            edge = edge.op("copysign.Tensor", x)
    if not saturate:
        return graph.op("where.self", x.op("isnan.default"), x, edge)
    return graph.op("where.self", x.op("isnan.default"), x, edge)


def _power_of_two(x: Tensor, mode: str, saturate: bool) -> Tensor:
    """Rounds positive float32 to powers of two."""
    graph = x.graph
    size = x.op("abs.default").op("clamp.default", 2.0**-126, None)
    below = _exponent(size)
    if mode == "down":
        chosen = below
    elif mode == "nearest":
        chosen = graph.op(
            "where.self", graph.op("ge.Tensor", size, below * 1.5), below * 2.0, below
        )
    elif mode == "up":
        chosen = graph.op("where.self", graph.op("gt.Tensor", size, below), below * 2.0, below)
    else:
        raise ExportError(f"round_mode {mode!r} is none of up, down, nearest.")
    if saturate:
        chosen = chosen.op("clamp.default", 2.0**-126, 2.0**127)
    # The least of them is subnormal in float32: what is at most that, by its own comparison.
    least = graph.op("le.Scalar", x, 2.0**-127)
    chosen = graph.op("where.ScalarSelf", least, 2.0**-127, chosen)
    return graph.op("where.self", x.op("isnan.default"), x, chosen)
