"""Types of the operators that compute every element from the elements at its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from npusim.ir.types import TensorType
from npusim.ops.inference.promotion import (
    floated,
    kind_of,
    require,
    require_float,
    result_dtype,
)
from npusim.ops.inference.sizes import broadcast_shapes

Rule = Callable[..., TensorType]


def _shape(*operands: Any) -> tuple[int, ...]:
    return broadcast_shapes(*(o.shape for o in operands if isinstance(o, TensorType)))


def _promoted(*operands: Any) -> TensorType:
    return TensorType(result_dtype(*operands), _shape(*operands))


def _arithmetic(*operands: Any) -> TensorType:
    """Arithmetic on numbers: bool is none."""
    result = _promoted(*operands)
    require(result.dtype != "bool", "it takes no tensors of bool.")
    return result


def _added(a: Any, b: Any, alpha: Any = 1) -> TensorType:
    result = _promoted(a, b)
    fraction = isinstance(alpha, float) and kind_of(result.dtype) != "float"
    require(not fraction, f"alpha is {alpha}, a fraction, but the tensors hold integers.")
    truth = isinstance(alpha, bool) and result.dtype != "bool"
    require(not truth, f"alpha is {alpha}, but the tensors hold numbers.")
    return result


def _subtracted(a: Any, b: Any, alpha: Any = 1) -> TensorType:
    for operand in (a, b):
        truth = operand.dtype if isinstance(operand, TensorType) else type(operand).__name__
        require(truth != "bool", "it takes no tensors of bool.")
    return _added(a, b, alpha)


def _floated(*operands: Any) -> TensorType:
    return TensorType(floated(result_dtype(*operands)), _shape(*operands))


def _floats(x: TensorType, *_: Any) -> TensorType:
    require_float(x)
    return x


def _all_floats(*operands: Any) -> TensorType:
    result = _promoted(*operands)
    require_float(result)
    return result


def _same(x: TensorType, *_: Any) -> TensorType:
    kind_of(x.dtype)
    return x


def _number(x: TensorType, *_: Any) -> TensorType:
    require(kind_of(x.dtype) != "bool", "it takes no tensor of bool.")
    return x


def _truth(*operands: Any) -> TensorType:
    result_dtype(*operands)
    return TensorType("bool", _shape(*operands))


def _bits(*operands: Any) -> TensorType:
    result = _promoted(*operands)
    require(kind_of(result.dtype) != "float", "it takes integers and bool.")
    return result


def _shifted(*operands: Any) -> TensorType:
    result = _bits(*operands)
    require(result.dtype != "bool", "it takes integers.")
    return result


def _divided(a: Any, b: Any, rounding_mode: str | None) -> TensorType:
    require(rounding_mode in (None, "trunc", "floor"), f"rounding_mode is {rounding_mode!r}.")
    if rounding_mode is None:
        return _floated(a, b)
    return _arithmetic(a, b)


def _where(condition: TensorType, a: Any, b: Any) -> TensorType:
    require(condition.dtype in ("bool", "uint8"), f"the condition is {condition}, not bool.")
    return TensorType(result_dtype(a, b), _shape(condition, a, b))


def _masked_fill(x: TensorType, mask: TensorType, value: Any) -> TensorType:
    require(mask.dtype == "bool", f"the mask is {mask}, not bool.")
    if isinstance(value, TensorType):
        require(value.rank == 0, f"the value is {value}, not a scalar.")
    numbers = x.dtype != "bool" and kind_of(x.dtype) != "float"
    fraction = isinstance(value, float) or (
        isinstance(value, TensorType) and kind_of(value.dtype) == "float"
    )
    require(not (numbers and fraction), "integers cannot be filled with a fraction.")
    return TensorType(x.dtype, _shape(x, mask))


def _clamped(x: TensorType, low: Any = None, high: Any = None) -> TensorType:
    require(low is not None or high is not None, "it has neither min nor max.")
    return _arithmetic(x, low, high)


def _hardtanh(x: TensorType, low: Any, high: Any) -> TensorType:
    below = x.dtype == "uint8" and min(low, high) < 0
    require(not below, f"an unsigned tensor has no limits below zero, {low} and {high}.")
    return _number(x)


def _gelu(x: TensorType, approximate: str) -> TensorType:
    require(approximate in ("none", "tanh"), f"approximate is {approximate!r}.")
    return _floats(x)


def _threshold(x: TensorType, *_: Any) -> TensorType:
    return _number(x)


def _addcmul(x: TensorType, a: TensorType, b: TensorType, value: Any) -> TensorType:
    result = _arithmetic(x, a, b)
    fraction = isinstance(value, float) and kind_of(result.dtype) != "float"
    require(not fraction, f"value is {value}, a fraction, but the tensors hold integers.")
    return result


def _addcdiv(x: TensorType, a: TensorType, b: TensorType, value: Any) -> TensorType:
    require(
        kind_of(result_dtype(a, b)) == "float" and kind_of(x.dtype) == "float",
        "it divides floats alone.",
    )
    return _promoted(x, a, b)


def _lerp(x: TensorType, end: TensorType, weight: Any) -> TensorType:
    require_float(x)
    tensors = [t for t in (x, end, weight) if isinstance(t, TensorType)]
    require(len({t.dtype for t in tensors}) == 1, "its tensors have different dtypes.")
    return TensorType(x.dtype, _shape(*tensors))


def _round_decimals(x: TensorType, decimals: int) -> TensorType:
    return _number(x)


def _copysign(x: TensorType, sign: Any) -> TensorType:
    return _floated(x, sign)


def _converted(x: TensorType, dtype: str | None = None, *_: Any) -> TensorType:
    return TensorType(dtype or x.dtype, x.shape)


def _power(a: Any, b: Any) -> TensorType:
    result = _promoted(a, b)
    negative = isinstance(b, (int, float)) and not isinstance(b, bool) and b < 0
    require(kind_of(result.dtype) == "float" or not negative, "integers to a negative power.")
    return result


def _named(rule: Rule, *names: str) -> dict[str, Rule]:
    return {f"aten.{name}" if "." in name else f"aten.{name}.default": rule for name in names}


def _kinds(rule: Rule, names: tuple[str, ...], *kinds: str) -> dict[str, Rule]:
    return {f"aten.{name}.{kind}": rule for name in names for kind in kinds}


_FUNCTIONS = (
    *("exp", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "tanh", "sigmoid"),
    *("erf", "exp2", "reciprocal", "log", "log1p", "log2", "log10", "sqrt", "rsqrt"),
    *("asin", "acos", "atanh", "acosh", "atan2", "logit"),
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
_BITWISE = ("bitwise_and", "bitwise_or", "bitwise_xor")
_SHIFTS = ("bitwise_left_shift", "bitwise_right_shift")


def _logit(x: TensorType, eps: float | None) -> TensorType:
    return _floated(x)


RULES: dict[str, Rule] = {
    **_named(_number, "neg", "relu", "relu6", "floor", "ceil", "round", "trunc"),
    **_named(_same, "abs", "sign"),
    **_named(_floated, *_FUNCTIONS),
    **_named(_logit, "logit"),
    **_named(_floats, "silu", "hardswish", "hardsigmoid", "mish", "log_sigmoid"),
    **_named(_floats, "leaky_relu", "elu", "softplus"),
    **_named(_hardtanh, "hardtanh"),
    **_named(_truth, "isnan", "isinf", "logical_not", "signbit"),
    **_named(_truth, "logical_and", "logical_or", "logical_xor"),
    **_named(_bits, "bitwise_not"),
    **_kinds(_added, ("add",), "Tensor", "Scalar"),
    **_kinds(_subtracted, ("sub", "rsub"), "Tensor", "Scalar"),
    **_kinds(_promoted, ("mul",), "Tensor", "Scalar"),
    **_kinds(_floated, ("div",), "Tensor", "Scalar"),
    **_kinds(_divided, ("div",), "Tensor_mode", "Scalar_mode"),
    **_kinds(_arithmetic, ("fmod", "remainder"), "Tensor", "Scalar"),
    **_named(_arithmetic, "remainder.Scalar_Tensor"),
    **_named(_arithmetic, "floor_divide"),
    **_named(_power, "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar"),
    **_named(_promoted, "maximum", "minimum", "fmax", "fmin"),
    **_named(_all_floats, "hypot"),
    **_kinds(_truth, _COMPARISONS, "Tensor", "Scalar"),
    **_kinds(_bits, _BITWISE, "Tensor", "Scalar", "Scalar_Tensor"),
    **_kinds(_shifted, _SHIFTS, "Tensor", "Tensor_Scalar", "Scalar_Tensor"),
    **_named(_where, "where.self", "where.ScalarOther", "where.ScalarSelf"),
    **_named(_masked_fill, "masked_fill.Scalar", "masked_fill.Tensor"),
    **_named(_clamped, "clamp", "clamp.Tensor"),
    **_named(_clamped, "clamp_min", "clamp_max", "clamp_min.Tensor", "clamp_max.Tensor"),
    **_named(_gelu, "gelu"),
    **_named(_threshold, "threshold"),
    **_named(_addcmul, "addcmul"),
    **_named(_addcdiv, "addcdiv"),
    **_named(_lerp, "lerp.Scalar", "lerp.Tensor"),
    **_named(_round_decimals, "round.decimals"),
    **_named(_copysign, "copysign.Tensor", "copysign.Scalar"),
    **_named(_converted, "_to_copy", "to.dtype"),
}
