"""closed_form: which formulas are proved to be one function, and which may divide by 0 or be
undefined and so are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from npusim.abi.scalar import ScalarBuilder
from npusim.analysis.closed_form import same_function

Formula = Callable[[Callable[..., Any]], Any]


def _same(a: Formula, b: Formula) -> list[float] | None:
    programs = []
    for formula in (a, b):
        builder = ScalarBuilder("f")
        formula(lambda op, *args, builder=builder: builder.op(op, "f", *args))
        programs.append(builder.build("float32"))
    return same_function(*programs)


def _number(value: float) -> tuple[str, float]:
    return ("const", value)


def _quotient(divisor: Formula, *, turned: bool = False) -> Formula:
    """x divided by a formula; turned: -x by what the formula's negation is."""

    def quotient(op: Callable[..., Any]) -> Any:
        if not turned:
            return op("div", 0, divisor(op))
        return op("div", op("neg", 0), op("neg", divisor(op)))

    return quotient


DIVISORS: dict[str, tuple[Formula, bool]] = {
    "1 + x²": (lambda op: op("add", op("mul", 0, 0), _number(1.0)), True),
    "1 - x²": (lambda op: op("sub", _number(1.0), op("mul", 0, 0)), False),
    "x²": (lambda op: op("mul", 0, 0), False),
    "x": (lambda op: op("neg", op("neg", 0)), False),
    "1 + x": (lambda op: op("add", 0, _number(1.0)), False),
    "1 + erf x": (lambda op: op("add", op("erf", 0), _number(1.0)), False),
    "1 + exp x": (lambda op: op("add", op("exp", 0), _number(1.0)), True),
    "x + exp x": (lambda op: op("add", op("exp", 0), 0), False),
}


@pytest.mark.parametrize("name", DIVISORS)
def test_divisors_must_not_be_zero(name: str) -> None:
    divisor, never_zero = DIVISORS[name]
    proved = _same(_quotient(divisor), _quotient(divisor, turned=True)) is not None
    assert proved == never_zero


LOGARITHMS: dict[str, tuple[Formula, bool]] = {
    "log(1 + x²)": (DIVISORS["1 + x²"][0], True),
    "log(1 - x²)": (DIVISORS["1 - x²"][0], False),
    "log(x²)": (DIVISORS["x²"][0], False),
}


@pytest.mark.parametrize("name", LOGARITHMS)
def test_logarithms_are_of_what_is_above_zero(name: str) -> None:
    inside, positive = LOGARITHMS[name]
    proved = _same(
        lambda op: op("neg", op("log", inside(op))),
        lambda op: op("mul", op("log", inside(op)), _number(-1.0)),
    )
    assert (proved is not None) == positive


@pytest.mark.parametrize("times", [1.0, 4.0, -1.0, -4.0])
def test_exponentials_of_logarithms_are_powers(times: float) -> None:
    """exp(n log y) is y to the n, for the n that are written as products."""
    above: Formula = lambda op: op("add", op("exp", 0), _number(1.0))  # noqa: E731

    def power(op: Callable[..., Any]) -> Any:
        return op("exp", op("mul", op("log", above(op)), _number(times)))

    def products(op: Callable[..., Any]) -> Any:
        y = above(op)
        result = y
        for _ in range(int(abs(times)) - 1):
            result = op("mul", result, y)
        return result if times > 0 else op("div", _number(1.0), result)

    assert _same(power, products) == []


@pytest.mark.parametrize("times", [0.5, 5.0, -5.0])
def test_other_powers_are_left_alone(times: float) -> None:
    def power(op: Callable[..., Any]) -> Any:
        y = op("log", op("add", op("exp", 0), _number(1.0)))
        return op("exp", op("mul", y, _number(times)))

    def turned(op: Callable[..., Any]) -> Any:
        return op("mul", power(op), _number(1.0))

    assert _same(power, turned) is None
