"""Scalar programs as ONNX nodes: every pointwise operator, and fused chains of them.

Owns what each opcode of `npusim.abi.scalar` is in ONNX. A program of one instruction is computed in
the dtype of its operands; a longer one in its compute classes, as kernels do, and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from npusim.abi.scalar import ScalarOp, ScalarProgram, result_class
from npusim.exporters.onnx.builder import KINDS, Call, Tensor

Opcode = Callable[..., Tensor]

_SAME_NAME = (
    "neg abs exp log sqrt reciprocal sin cos tan asin acos atan sinh cosh asinh acosh atanh tanh "
    "sigmoid erf floor ceil round sign relu softplus mish"
)
_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow",
           "maximum": "Max", "minimum": "Min"}  # fmt: skip
_COMPARE = {"eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater",
            "ge": "GreaterOrEqual"}  # fmt: skip
_LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}
_CAST = {"to_f": "float32", "to_d": "float64", "to_i": "int64", "to_bool": "bool",
         "to_i32": "int32", "to_f16": "float16", "to_bf16": "bfloat16"}  # fmt: skip
_NARROWING = ("to_i32", "to_f16", "to_bf16")  # of a value that stays in its class's dtype
_BITWISE = {"bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor"}


def emit(call: Call, program: ScalarProgram, inputs: Sequence[Tensor]) -> Tensor:
    """Adds a program's nodes and returns its result, not yet in the node's dtype."""
    classes = _classes(call, program, inputs)
    values = list(inputs)
    for op in program.body:
        values.append(_instruction(call, op, values, classes))
    return values[-1]


def _classes(call: Call, program: ScalarProgram, inputs: Sequence[Tensor]) -> dict[str, str]:
    """Returns the dtype that each compute class is computed in."""
    dtypes = {t.dtype for t in inputs} - {"bool"} | {call.type.dtype} - {"bool"}
    alone = len(program.body) == 1 and len(dtypes) == 1
    only = next(iter(dtypes), "")
    return {
        "f": only if alone and only in ("float16", "bfloat16") else "float32",
        "d": "float64",
        "i": only if alone and only == "int32" else "int64",
    }


def _instruction(
    call: Call, op: ScalarOp, values: Sequence[Tensor], classes: dict[str, str]
) -> Tensor:
    dtype = classes[op.cls]
    operands = [
        call.const(arg[1], dtype) if isinstance(arg, tuple) else values[arg] for arg in op.args
    ]
    if op.op in _BITWISE and all(t.dtype == "bool" for t in operands):
        return call.broadcast(_LOGICAL[op.op.replace("bitwise", "logical")], *operands)
    if op.op in ("logical_not", *_LOGICAL):
        return OPCODES[op.op](call, *(call.cast(t, "bool") for t in operands))
    if op.op.startswith("to_") or op.op == "copy":
        if op.op == "copy":
            return operands[0]
        target = call.cast(operands[0], _CAST[op.op])
        return call.cast(target, classes[result_class(op)]) if op.op in _NARROWING else target
    if op.op == "where":
        condition, *rest = operands
        rest = [call.cast(t, dtype) for t in rest]
        return call.broadcast("Where", call.cast(condition, "bool"), *rest, dtype=dtype)
    return OPCODES[op.op](call, *(call.cast(t, dtype) for t in operands))


# ---- opcodes: operands arrive in one dtype ----


def _unary(name: str) -> Opcode:
    return lambda call, x: call.op(name, x)


def _binary(name: str, dtype: str | None = None) -> Opcode:
    return lambda call, x, y: call.broadcast(name, x, y, dtype=dtype)


def _times(call: Call, x: Tensor, factor: float) -> Tensor:
    return call.op("Mul", x, call.const(factor, x.dtype))


def _plus(call: Call, x: Tensor, term: float) -> Tensor:
    return call.op("Add", x, call.const(term, x.dtype))


def _expm1(call: Call, x: Tensor) -> Tensor:
    """tanh(x / 2) * (exp(x) + 1), which keeps the digits of a small x."""
    return call.op(
        "Mul", call.op("Tanh", _times(call, x, 0.5)), _plus(call, call.op("Exp", x), 1.0)
    )


def _log1p(call: Call, x: Tensor) -> Tensor:
    """2 * atanh(x / (x + 2)) near zero, where 1 + x would lose digits; log(1 + x) beyond."""
    near = call.op("Less", call.op("Abs", x), call.const(0.5, x.dtype), dtype="bool")
    inner = call.op("Where", near, x, call.const(0.0, x.dtype), dtype=x.dtype)
    series = _times(call, call.op("Atanh", call.op("Div", inner, _plus(call, inner, 2.0))), 2.0)
    return call.op("Where", near, series, call.op("Log", _plus(call, x, 1.0)), dtype=x.dtype)


def _trunc(call: Call, x: Tensor) -> Tensor:
    return call.op("Mul", call.op("Sign", x), call.op("Floor", call.op("Abs", x)))


def _div_trunc(call: Call, x: Tensor, y: Tensor) -> Tensor:
    quotient = call.broadcast("Div", x, y)
    return _trunc(call, quotient) if quotient.is_float else quotient


def _fmod(call: Call, x: Tensor, y: Tensor) -> Tensor:
    return call.broadcast("Mod", x, y, fmod=1)


def _remainder(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """The remainder with the divisor's sign."""
    if not x.is_float:
        return call.broadcast("Mod", x, y)
    rest, zero = _fmod(call, x, y), call.const(0, x.dtype)
    signs = [call.op("Less", t, zero, dtype="bool") for t in (rest, y)]
    apart = call.broadcast("Xor", *signs)
    present = call.op("Not", call.op("Equal", rest, zero, dtype="bool"))
    moved = call.broadcast("Add", rest, y)
    return call.broadcast(
        "Where", call.broadcast("And", apart, present), moved, rest, dtype=x.dtype
    )


def floor_divided(call: Call, x: Tensor, y: Tensor) -> Tensor:
    """Divides downwards: what remains is taken off first, so that rounding adds nothing."""
    whole = call.broadcast("Sub", x, _remainder(call, x, y))
    quotient = call.broadcast("Div", whole, y)
    return call.op("Round", quotient) if x.is_float else quotient


def _atan2(call: Call, y: Tensor, x: Tensor) -> Tensor:
    zero = call.const(0, x.dtype)
    angle = call.op("Atan", call.broadcast("Div", y, x))
    half = call.op("Where", call.op("Less", y, zero, dtype="bool"),
                   call.const(-math.pi, x.dtype), call.const(math.pi, x.dtype),
                   dtype=x.dtype)  # fmt: skip
    left = call.op("Less", x, zero, dtype="bool")
    turned = call.broadcast("Where", left, call.broadcast("Add", angle, half), angle, dtype=x.dtype)
    at_zero = [call.op("Equal", t, zero, dtype="bool") for t in (x, y)]
    return call.broadcast("Where", call.broadcast("And", *at_zero), zero, turned, dtype=x.dtype)


def _gelu(approximate: str) -> Opcode:
    def build(call: Call, x: Tensor) -> Tensor:
        if call.opset >= 20 and x.dtype != "float64":  # whose digits not every runtime keeps
            return call.op("Gelu", x, approximate=approximate)
        if approximate == "none":
            inner = call.op("Erf", _times(call, x, math.sqrt(0.5)))
        else:
            cube = call.op("Mul", call.op("Mul", x, x), x)
            summed = call.op("Add", x, _times(call, cube, 0.044715))
            inner = call.op("Tanh", _times(call, summed, math.sqrt(2 / math.pi)))
        return call.op("Mul", _times(call, x, 0.5), _plus(call, inner, 1.0))

    return build


def _hardsigmoid(call: Call, x: Tensor) -> Tensor:
    if x.dtype != "float64":  # ONNX's attributes are float32
        return call.op("HardSigmoid", x, alpha=1 / 6, beta=0.5)
    six = call.const(6.0, x.dtype)
    cut = call.op("Clip", _plus(call, x, 3.0), call.const(0.0, x.dtype), six)
    return call.op("Div", cut, six)


def _shift(direction: str) -> Opcode:
    """ONNX shifts unsigned integers alone: a negative one is shifted right as its complement."""

    def shifted(call: Call, x: Tensor, y: Tensor) -> Tensor:
        unsigned = [call.op("Cast", t, dtype="uint64", to=13) for t in (x, y)]
        result = call.broadcast("BitShift", *unsigned, direction=direction)
        return call.op("Cast", result, dtype=x.dtype, to=KINDS[x.dtype])

    def build(call: Call, x: Tensor, y: Tensor) -> Tensor:
        if direction == "LEFT":
            return shifted(call, x, y)
        below = call.op("Less", x, call.const(0, x.dtype), dtype="bool")
        turned = call.op("BitwiseNot", x)
        back = call.op("BitwiseNot", shifted(call, turned, y))
        return call.broadcast("Where", below, back, shifted(call, x, y), dtype=x.dtype)

    return build


def _clamp(call: Call, x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    if not low.rank and not high.rank:
        return call.op("Clip", x, low, high)
    return call.broadcast("Min", call.broadcast("Max", x, low), high)


OPCODES: dict[str, Opcode] = {name: _unary(name.capitalize()) for name in _SAME_NAME.split()} | {
    **{name: _binary(op) for name, op in (*_BINARY.items(), *_BITWISE.items())},
    **{name: _binary(op, "bool") for name, op in (*_COMPARE.items(), *_LOGICAL.items())},
    "ne": lambda call, x, y: call.op("Not", call.broadcast("Equal", x, y, dtype="bool")),
    "logical_not": _unary("Not"),
    "bitwise_not": _unary("BitwiseNot"),
    "isnan": lambda call, x: call.op("IsNaN", x, dtype="bool"),
    "isinf": lambda call, x: call.op("IsInf", x, dtype="bool"),
    "expm1": _expm1,
    "log1p": _log1p,
    "log2": lambda call, x: _times(call, call.op("Log", x), 1 / math.log(2)),
    "log10": lambda call, x: _times(call, call.op("Log", x), 1 / math.log(10)),
    "exp2": lambda call, x: call.op("Pow", call.const(2, x.dtype), x, shape=x.shape),
    "rsqrt": lambda call, x: call.op("Reciprocal", call.op("Sqrt", x)),
    "trunc": _trunc,
    "gelu": _gelu("none"),
    "gelu_tanh": _gelu("tanh"),
    "silu": lambda call, x: call.op("Mul", x, call.op("Sigmoid", x)),
    "hardswish": _unary("HardSwish"),
    "hardsigmoid": _hardsigmoid,
    "div_trunc": _div_trunc,
    "div_floor": floor_divided,
    "remainder": _remainder,
    "fmod": _fmod,
    "atan2": _atan2,
    "shift_left": _shift("LEFT"),
    "shift_right": _shift("RIGHT"),
    "fma": lambda call, x, y, z: call.broadcast("Add", call.broadcast("Mul", x, y), z),
    "clamp": _clamp,
}
