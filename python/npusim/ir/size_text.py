"""Symbolic sizes as text: `batch*seq + 1`, `(h + 1)//2`, `max(seq - 2, 0)`.

Owns reading what `str` of a size writes. The text may come from a hostile file.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping

from npusim.errors import SymbolicSizeError
from npusim.ir.symbolic import maximum, minimum

_MAX_LENGTH = 10_000
_MAX_NESTING = 100
_MAX_NUMBER = 1 << 62

_TOKEN = re.compile(r"\s*(//|[-+*%(),]|[A-Za-z_][A-Za-z_0-9]*|[0-9]+)")
_SUMS: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub}
_PRODUCTS: Mapping[str, Callable[[int, int], int]] = {
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
_CALLS = {"max": maximum, "min": minimum}


def parse_size(text: str, symbols: Mapping[str, int]) -> int:
    """Returns the size that a text describes.

    Args:
        symbols: the sizes that names stand for.

    Raises:
        SymbolicSizeError: the text is no such expression, or names an unknown symbol.
    """
    try:
        return _Parser(text, symbols).size()
    except (ValueError, ZeroDivisionError) as error:
        raise SymbolicSizeError(f"{text[:80]!r} is not a size: {error}.") from None


class _Parser:
    """Recursive descent: sums of products of factors. Used once."""

    def __init__(self, text: str, symbols: Mapping[str, int]) -> None:
        if len(text) > _MAX_LENGTH:
            raise ValueError("it is too long")
        self._tokens = _tokens(text)
        self._symbols = symbols
        self._depth = 0

    def size(self) -> int:
        value = self._sum()
        if self._tokens:
            raise ValueError(f"{self._tokens[-1]!r} is not expected")
        return value

    def _next(self) -> str:
        return self._tokens[-1] if self._tokens else ""

    def _take(self, expected: str) -> None:
        if self._next() != expected:
            raise ValueError(f"{expected!r} is missing")
        self._tokens.pop()

    def _sum(self) -> int:
        negative = self._next() == "-"
        if negative:
            self._tokens.pop()
        value = -self._product() if negative else self._product()
        while self._next() in _SUMS:
            value = _SUMS[self._tokens.pop()](value, self._product())
        return value

    def _product(self) -> int:
        value = self._factor()
        while self._next() in _PRODUCTS:
            value = _PRODUCTS[self._tokens.pop()](value, self._factor())
        return value

    def _factor(self) -> int:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise ValueError("it nests too deeply")
        token = self._next()
        if token.isdigit():
            self._tokens.pop()
            value = int(token)
            if value > _MAX_NUMBER:
                raise ValueError("a number is too large")
        elif token == "(":
            self._tokens.pop()
            value = self._sum()
            self._take(")")
        else:
            value = self._named(token)
        self._depth -= 1
        return value

    def _named(self, name: str) -> int:
        if not name.isidentifier():
            raise ValueError(f"{name!r} is not expected" if name else "it ends too early")
        self._tokens.pop()
        if name not in _CALLS or self._next() != "(":
            if name not in self._symbols:
                raise ValueError(f"there is no symbol {name}")
            return self._symbols[name]
        self._take("(")
        a = self._sum()
        self._take(",")
        b = self._sum()
        self._take(")")
        return _CALLS[name](a, b)


def _tokens(text: str) -> list[str]:
    """Returns the tokens, the first one last."""
    found, at = [], 0
    for match in _TOKEN.finditer(text):
        if match.start() != at:
            break
        found.append(match.group(1))
        at = match.end()
    if text[at:].strip():
        raise ValueError(f"{text[at:].strip()[0]!r} has no meaning there")
    return found[::-1]
