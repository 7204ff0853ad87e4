"""Numbers with fractions that models compute from symbolic sizes: `x.shape[1] ** -0.5`.

A size is an integer. What becomes an integer again (`int(0.5 * height)`) is a size, when that is
the same for all values of its symbol. Everything else is computed at the run: a tensor of one
element, in float64 as Python computes, that takes the number's place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction as Ratio
from typing import Any

import torch

from npusim.errors import ExportError
from npusim.ir.graph import Attr
from npusim.ir.symbolic import evaluate, is_symbolic, symbols_of, upper

Emit = Callable[[str, tuple[str, ...], dict[str, Attr]], str]
SizeOf = Callable[[Any], int]

_EXACT = 1 << 53  # integers up to here are floats
_MAX_DENOMINATOR = 1000
_MAX_VALUES = 1 << 16  # of a symbol, each of which is tried
_ROUNDINGS: Mapping[str, Callable[[Any], int]] = {
    "TruncToInt": math.trunc,
    "FloorToInt": math.floor,
    "CeilToInt": math.ceil,
}
_PAIRS = {
    "FloatPow": "aten.pow.Tensor_Tensor",
    "Pow": "aten.pow.Tensor_Tensor",
    "IntTrueDiv": "aten.div.Tensor",
    "FloatTrueDiv": "aten.div.Tensor",
}
_FOLDS = {
    "Add": "aten.add.Tensor",
    "Mul": "aten.mul.Tensor",
    "Max": "aten.maximum.default",
    "Min": "aten.minimum.default",
}
_FUNCTION = "OpaqueUnaryFn_"  # of torch, before the function's name


def emit_fraction(expr: Any, size_of: SizeOf, emit: Emit) -> str:
    """Adds the nodes that compute one of sympy's expressions; returns a float64 scalar's name.

    Args:
        size_of: returns an integer expression as a size.
        emit: adds a node of an operator, operands and attributes; returns its value.

    Raises:
        ExportError: the expression is none that has nodes.
    """

    def computed(part: Any) -> str:
        return emit_fraction(part, size_of, emit)

    name = type(expr).__name__
    if expr.is_number or expr.is_integer:
        number = size_of(expr) if expr.is_integer else float(expr)
        return emit("aten.scalar_tensor.default", (), {"s": number, "dtype": "float64"})
    if name == "ToFloat":
        return computed(expr.args[0])
    if name in _PAIRS:
        left, right = map(computed, expr.args)
        return emit(_PAIRS[name], (left, right), {})
    if name in _FOLDS:
        total, *others = map(computed, expr.args)
        for other in others:
            attrs: dict[str, Attr] = {"alpha": 1} if name == "Add" else {}
            total = emit(_FOLDS[name], (total, other), attrs)
        return total
    function = name.removeprefix(_FUNCTION)
    if name.startswith(_FUNCTION) and hasattr(torch.ops.aten, function):
        return emit(f"aten.{function}.default", (computed(expr.args[0]),), {})
    raise ExportError(
        f"it computes {expr} from a symbolic size, which has no operator; compute it from a tensor "
        "(torch.tensor), or keep that size fixed"
    )


def rounded_size(expr: Any, size_of: SizeOf) -> int | None:
    """Returns a fraction that is made an integer as a size; None for another expression.

    Raises:
        ExportError: the fraction is no ratio of sizes, or rounding in between may matter.
    """
    rounding = _ROUNDINGS.get(type(expr).__name__)
    if rounding is None:
        return None
    (inner,) = expr.args
    top, bottom = ratio_of(inner, size_of, exact=True)
    if upper(top) >= _EXACT:
        top, bottom = ratio_of(inner, size_of, exact=False)
    size = (top + (bottom - 1 if rounding is math.ceil else 0)) // bottom
    if not is_symbolic(size):
        return size
    symbols = symbols_of((size,))
    (symbol, *others) = symbols
    if others and upper(top) < _EXACT:
        return size
    if others or symbol.high - symbol.low > _MAX_VALUES:
        raise ExportError(f"the size {expr} depends on how a fraction is rounded.")
    for value in range(symbol.low, symbol.high + 1):
        at = {symbol.name: value}
        if evaluate(size, at) != rounding(_number(inner, lambda e: evaluate(size_of(e), at))):  # noqa: B023
            raise ExportError(f"the size {expr} depends on how a fraction is rounded.")
    return size


def ratio_of(expr: Any, size_of: SizeOf, *, exact: bool) -> tuple[int, int]:
    """Returns (size, number) of which an expression is the quotient; the number is positive.

    Args:
        exact: take numbers as the floats they are, instead of the plain ratios next to them.

    Raises:
        ExportError: the expression is no such quotient.
    """
    name = type(expr).__name__
    if expr.is_number and not expr.is_integer:
        ratio = Ratio(float(expr))
        ratio = ratio if exact else ratio.limit_denominator(_MAX_DENOMINATOR)
        return ratio.numerator, ratio.denominator
    if expr.is_integer:
        return size_of(expr), 1
    if name == "ToFloat":
        return size_of(expr.args[0]), 1
    if name in ("Add", "Mul", "IntTrueDiv", "FloatTrueDiv"):
        (top, bottom), *others = (ratio_of(a, size_of, exact=exact) for a in expr.args)
        for t, b in others:
            if name == "Add":
                top, bottom = top * b + t * bottom, bottom * b
            elif name == "Mul":
                top, bottom = top * t, bottom * b
            elif is_symbolic(t) or t <= 0:
                raise ExportError(f"the size {expr} is divided by what is no number.")
            else:
                top, bottom = top * b, bottom * t
        return top, bottom
    raise ExportError(f"the size {expr} is no expression that npusim knows.")


def _number(expr: Any, value_of: SizeOf) -> float:
    """Returns what Python computes for an expression that `ratio_of` knows."""
    name = type(expr).__name__
    if expr.is_number and not expr.is_integer:
        return float(expr)
    if expr.is_integer:
        return value_of(expr)
    if name == "ToFloat":
        return float(value_of(expr.args[0]))
    values = [_number(a, value_of) for a in expr.args]
    if name in ("Add", "Mul"):
        return math.fsum(values) if name == "Add" else math.prod(values)
    return values[0] / values[1]
