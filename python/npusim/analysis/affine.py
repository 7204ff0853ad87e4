"""What an integer is as a function of its own indices and of one scalar of the device, and masks.

Owns the values that `known_values` proves things about, and their arithmetic: an integer that is
affine in its indices (`position + arange(t)`), a boolean that is a conjunction of inequalities
between such, a float that is one number where such a mask is true and another one elsewhere.
Integers are taken to be small enough not to wrap: positions and the lengths of sequences are.
Offsets, coefficients and extents may be symbolic sizes; what their bounds do not decide is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Union

from npusim.ir.symbolic import lower, upper


@dataclass(frozen=True)
class Affine:
    """offset + sum of coefficients[d] * index_d + times * scalar, for every element.

    Attributes:
        coefficients: one a dimension, 0 along an extent of 1.
        scalar: a value of one element that is known when the program runs; empty for none.
    """

    offset: int
    coefficients: tuple[int, ...]
    times: int = 0
    scalar: str = ""

    def scaled(self, factor: int) -> Affine:
        """Returns the value times a number."""
        times = self.times * factor
        coefficients = tuple(c * factor for c in self.coefficients)
        return Affine(self.offset * factor, coefficients, times, self.scalar if times else "")

    def plus(self, other: Affine) -> Affine | None:
        """Returns the sum; None when it depends on two scalars."""
        if self.scalar and other.scalar and self.scalar != other.scalar:
            return None
        pairs = zip(self.coefficients, other.coefficients, strict=True)
        times = self.times + other.times
        scalar = (self.scalar or other.scalar) if times else ""
        return Affine(self.offset + other.offset, tuple(a + b for a, b in pairs), times, scalar)

    def is_number(self) -> bool:
        """Tells whether all elements are one number that is known now."""
        return not self.scalar and all(c == 0 for c in self.coefficients)

    def never_below(self, number: int, shape: Sequence[int]) -> bool:
        """Tells whether all elements are proved to be at least a number."""
        if self.scalar:
            return False
        least = self.offset
        for coefficient, extent in zip(self.coefficients, shape, strict=True):
            if lower(coefficient) < 0:
                if upper(coefficient) > 0:
                    return False
                least = least + coefficient * (extent - 1)
        return lower(least - number) >= 0


@dataclass(frozen=True)
class Mask:
    """True, or 1, exactly where every condition is at least 0; false, or 0, elsewhere."""

    conditions: frozenset[Affine]

    def negated(self, rank: int) -> Mask | None:
        """Returns the complement of one inequality; that of several is no conjunction."""
        if not self.conditions:
            return Mask(frozenset((Affine(-1, (0,) * rank),)))
        if len(self.conditions) != 1:
            return None
        (condition,) = self.conditions
        opposite = condition.scaled(-1)
        return Mask(frozenset((replace(opposite, offset=opposite.offset - 1),)))

    def simplified(self, shape: Sequence[int]) -> Mask:
        """Returns the mask without conditions that hold everywhere; `never` of one that cannot."""
        left = frozenset(c for c in self.conditions if not c.never_below(0, shape))
        if any(c.scaled(-1).never_below(1, shape) for c in left):
            return Mask(frozenset((Affine(-1, (0,) * len(shape)),)))
        return Mask(left)

    def is_never(self) -> bool:
        """Tells whether a simplified mask is false everywhere."""
        return any(c.is_number() and c.offset == -1 for c in self.conditions)


ALWAYS = Mask(frozenset())


@dataclass(frozen=True)
class Choice:
    """A float that is one number where a mask is true and another one elsewhere."""

    mask: Mask
    inside: float
    outside: float


@dataclass(frozen=True)
class Number:
    """A float value that is one number everywhere."""

    value: float


Known = Union[Affine, Mask, Choice, Number]
Move = Callable[[Affine], "Affine | None"]  # what a view does to an affine value


def moved(found: Known, move: Move) -> Known | None:
    """Returns a value seen through a view, given what the view does to an affine value."""
    if isinstance(found, Affine):
        return move(found)
    if isinstance(found, Choice):
        mask = moved(found.mask, move)
        return replace(found, mask=mask) if isinstance(mask, Mask) else None
    if isinstance(found, Mask):
        conditions = [move(c) for c in found.conditions]
        return None if None in conditions else Mask(frozenset(c for c in conditions if c))
    return found


def along(extent: int) -> int:
    """Returns the coefficient of an index that counts; along an extent of 1 there is none."""
    return 1 if extent != 1 else 0
