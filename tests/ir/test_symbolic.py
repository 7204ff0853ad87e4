"""Symbolic sizes compute as the numbers that they stand for, and are never taken for one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from npusim.errors import SymbolicSizeError
from npusim.ir.size_text import parse_size
from npusim.ir.symbolic import (
    at_least,
    bounds,
    evaluate,
    is_symbolic,
    maximum,
    minimum,
    symbol,
    symbols_of,
)

B, S = symbol("b", 1, 8), symbol("s", 2, 64)
NAMES = {"b": B, "s": S}


@st.composite
def sizes(draw: st.DrawFn, depth: int = 3) -> int:
    """Returns an expression over b and s."""
    if not depth or draw(st.booleans()):
        return draw(st.sampled_from((B, S)) | st.integers(-9, 9))
    a, b = draw(sizes(depth - 1)), draw(sizes(depth - 1))
    operation = draw(st.sampled_from(("+", "-", "*", "//", "%", "max", "min")))
    if operation in ("//", "%"):
        b = draw(st.integers(1, 9) | st.sampled_from((B, S, B + 1)))
        return a // b if operation == "//" else a % b
    if operation in ("max", "min"):
        return maximum(a, b) if operation == "max" else minimum(a, b)
    return {"+": a + b, "-": a - b, "*": a * b}[operation]


@given(sizes(), st.integers(1, 8), st.integers(2, 64))
def test_values_lie_within_bounds_and_text_says_the_same(size: int, b: int, s: int) -> None:
    value = evaluate(size, {"b": b, "s": s})
    low, high = bounds(size)
    assert low <= value <= high
    again = parse_size(str(size), NAMES)
    assert again == size and hash(again) == hash(size)


@given(sizes(), sizes(), st.integers(1, 8), st.integers(2, 64))
def test_arithmetic_is_that_of_the_values(x: int, y: int, b: int, s: int) -> None:
    at = {"b": b, "s": s}
    p, q = evaluate(x, at), evaluate(y, at)
    for found, wanted in ((x + y, p + q), (x - y, p - q), (x * y, p * q), (-x, -p)):
        assert evaluate(found, at) == wanted
    assert evaluate(x // (B + S), at) == p // (b + s)
    assert evaluate(x % (B + S), at) == p % (b + s)
    assert evaluate(maximum(x, y), at) == max(p, q)
    assert evaluate(minimum(x, y), at) == min(p, q)


@given(sizes(), sizes())
def test_comparisons_that_are_decided_hold_everywhere(x: int, y: int) -> None:
    try:
        below = x < y
    except SymbolicSizeError:
        return
    for b in (1, 2, 7, 8):
        for s in (2, 3, 33, 64):
            at = {"b": b, "s": s}
            assert (evaluate(x, at) < evaluate(y, at)) == below


def test_what_is_constant_is_a_number() -> None:
    for value in (B - B, 0 * S, (4 * S) % 4, (B * S) // (B * S), 2 * B - B - B + 3):
        assert type(value) is int
    assert symbol("n", 3, 3) == 3


def test_division_takes_out_what_divides() -> None:
    assert (12 * B * S * 64) // 768 == B * S
    assert (B * S) % S == 0 and (B * S) // S == B
    assert str((S - 1) // 2 + 1) == "(s + 1)//2"
    assert (B + 7) // 16 == 0 and (B + 7) % 16 == B + 7


def test_bounds_know_that_a_quotient_goes_along_with_its_dividend() -> None:
    n, m = symbol("n", 1, 40), symbol("m", 4, 17)
    for size, wanted in (
        (n - n // 2, (1, 20)),
        (n - 2 * (n // 4) - 1, (0, 20)),
        ((n + 7) // 8 * 8 - n, (0, 7)),
        (n * m - (n * m) // 2, (2, 340)),
    ):
        assert bounds(size) == wanted


def test_bounds_know_that_a_maximum_is_one_of_its_operands() -> None:
    n, m = symbol("n", 1, 40), symbol("m", 4, 17)
    for size, wanted in (
        (n - maximum(0, n - 2), (1, 2)),
        (n - 1 - maximum(0, n - 3), (0, 2)),
        (maximum(n, m) - n, (0, 16)),
        (minimum(n, 5) - n, (-35, 0)),
        ((maximum(0, n - 4) + n + 1) // 2 - maximum(0, n - 4), (1, 2)),
    ):
        found = [evaluate(size, {"n": i, "m": j}) for i in range(1, 41) for j in range(4, 18)]
        assert bounds(size) == wanted and wanted[0] <= min(found) and max(found) <= wanted[1]


def test_equality_is_that_of_expressions() -> None:
    assert symbol("a", 1, 8) != B and B != 8 and B != 1 and B + 0 == B
    assert {B: "batch"}[symbol("b", 1, 8)] == "batch"
    assert symbols_of((B * S, (S,))) == symbols_of((B, S))


@pytest.mark.parametrize(
    "use",
    [
        lambda: range(B),
        lambda: int(B),
        lambda: float(B),
        lambda: B / 2,
        lambda: B**2,
        lambda: [0] * B,
        lambda: "ab"[B],
        lambda: np.arange(B),
        lambda: np.zeros((2, B)),
        lambda: torch.empty(B),
        lambda: B < 4,
        lambda: max(B, 4),
        lambda: bool(B - 1),
        lambda: 5 // (B - 1),
    ],
)
def test_nothing_takes_a_size_for_a_number(use: Callable[[], object]) -> None:
    with pytest.raises((SymbolicSizeError, TypeError)):
        use()


def test_an_undecided_question_names_the_symbols() -> None:
    with pytest.raises(SymbolicSizeError, match=r"whether b < 4 .*\(b 1 … 8\)"):
        bool(B < 4)
    assert B >= 1 and B < 9 and at_least(S, 2) and not at_least(S, 3) and bool(B)


def test_a_size_counts_as_an_int() -> None:
    assert isinstance(B, int) and is_symbolic((1, (B,))) and not is_symbolic((1, 2))


@pytest.mark.parametrize(
    "text",
    [
        *("", "b +", "(b", "b)", "q", "b b", "1.5", "b ** 2", "b / 2", "max(b)", "b.real", "f(b)"),
        *("b // 0", "b // (b - 1)", "9" * 40, "(" * 200 + "b" + ")" * 200, "b*" * 5000 + "b"),
        "*".join(["b + s"] * 3 + ["(b + s + 1)"] * 40),
    ],
)
def test_text_that_is_no_size(text: str) -> None:
    with pytest.raises(SymbolicSizeError):
        parse_size(text, NAMES)


@pytest.mark.parametrize("name", ["", "1a", "a b", "é", "a-b"])
def test_names_and_bounds_of_symbols(name: str) -> None:
    with pytest.raises(SymbolicSizeError, match="cannot name a size"):
        symbol(name, 1, 2)
    for low, high in ((-1, 3), (4, 3), (0, 2**41)):
        with pytest.raises(SymbolicSizeError, match="ranges from"):
            symbol("n", low, high)
