"""Arithmetic and questions about shapes whose sizes may be symbolic, for the rules beside it.

A question answers True only where it is so for all values of the symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from npusim.errors import ShapeError
from npusim.ir.symbolic import bounds, is_symbolic
from npusim.ops.fused import broadcast_shapes
from npusim.ops.inference.promotion import require

Shape = tuple[int, ...]

__all__ = ("Shape", "axes", "axis", "broadcast_shapes", "differ", "numel", "surely_less")


def axis(dim: int, rank: int) -> int:
    """Returns a dimension counted from the front; that of a scalar is 0. ShapeError if none is."""
    known = max(rank, 1)
    require(not is_symbolic(dim) and -known <= dim < known, f"there is no dimension {dim}.")
    return int(dim) % known


def axes(dims: Sequence[int], rank: int) -> tuple[int, ...]:
    """Returns dimensions counted from the front; ShapeError if one is missing or named twice."""
    found = tuple(axis(d, rank) for d in dims)
    require(len(set(found)) == len(found), f"a dimension is named twice in {tuple(dims)}.")
    return found


def surely_less(a: int, b: int) -> bool:
    """Tells whether a < b whatever the symbols are."""
    return bounds(a - b)[1] < 0


def differ(a: int, b: int) -> bool:
    """Tells whether two sizes are different whatever the symbols are."""
    if not is_symbolic((a, b)):
        return bool(a != b)
    low, high = bounds(a - b)
    return low > 0 or high < 0


def numel(shape: Shape) -> int:
    """Returns the number of elements."""
    return prod(shape)


def require_shape(shape: Shape, expected: Shape, what: str) -> None:
    """Raises ShapeError where shapes are not the same."""
    if len(shape) != len(expected) or any(map(differ, shape, expected)):
        raise ShapeError(f"{what} has shape {list(shape)}, expected {list(expected)}.")
