"""Symbolic sizes as text: `batch*seq + 1`, `(h + 1)//2`, `max(seq - 2, 0)`.

Owns reading what `str` of a size writes. The text may come from a hostile file.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from npusim.errors import SymbolicSizeError
from npusim.ir.symbolic import maximum, minimum

_MAX_LENGTH = 1000

_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
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
        if len(text) > _MAX_LENGTH:
            raise ValueError("it is too long")
        tree = ast.parse(text, mode="eval").body
        return _size(tree, symbols)
    except (SyntaxError, ValueError, RecursionError, MemoryError, ZeroDivisionError) as error:
        reason = getattr(error, "msg", None) or str(error) or "it nests too deeply"
        raise SymbolicSizeError(f"{text[:80]!r} is not a size: {reason}.") from None


def _size(tree: ast.expr, symbols: Mapping[str, int]) -> int:
    match tree:
        case ast.Constant(value=int() as number) if type(number) is int and abs(number) < 1 << 62:
            return number
        case ast.Name(id=name) if name in symbols:
            return symbols[name]
        case ast.Name(id=name):
            raise ValueError(f"there is no symbol {name}")
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_size(operand, symbols)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_size(left, symbols), _size(right, symbols))
        case ast.Call(func=ast.Name(id=name), args=[a, b], keywords=[]) if name in _CALLS:
            return _CALLS[name](_size(a, symbols), _size(b, symbols))
    raise ValueError("legal are numbers, symbols, + - * // %, max and min")
