"""Index algebra: which element of a tensor after a tower of movement a loop reads, with proof.

A loop has axes of fixed sizes. An index is a sum of axes times integers; where a reshape divides
it, the division is carried out only if the sizes prove that nothing is carried over. Padding is
kept as a guard: outside its bounds, the value read is a zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npusim.frontends.tinygrad.terms import Term


@dataclass(frozen=True)
class Linear:
    """A sum of axes times integers, plus a constant; no axis of size 1 and no factor 0."""

    terms: tuple[tuple[int, int], ...] = ()
    constant: int = 0

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes it depends on."""
        return tuple(axis for axis, _ in self.terms)

    def factor(self, axis: int) -> int:
        """The factor of an axis."""
        return dict(self.terms).get(axis, 0)

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """Returns self + factor * other."""
        sums = dict(self.terms)
        for axis, f in other.terms:
            sums[axis] = sums.get(axis, 0) + factor * f
        return _linear(sums, self.constant + factor * other.constant)

    def shifted(self, by: int) -> Linear:
        """Returns self + by."""
        return Linear(self.terms, self.constant + by)

    def bounds(self, sizes: Sequence[int]) -> tuple[int, int]:
        """Returns the least and the greatest value."""
        ends = [(f * (sizes[a] - 1)) for a, f in self.terms]
        low = sum(e for e in ends if e < 0)
        high = sum(e for e in ends if e > 0)
        return self.constant + low, self.constant + high

    def divided(self, by: int, sizes: Sequence[int]) -> tuple[Linear, Linear] | None:
        """Returns quotient and remainder of a floor division; None when they are no sums."""
        quotient, rest = {}, {}
        for axis, f in self.terms:
            quotient[axis], rest[axis] = divmod(f, by)
        whole, part = divmod(self.constant, by)
        remainder = _linear(rest, part)
        low, high = remainder.bounds(sizes)
        if low < 0 or high >= by:
            return None
        return _linear(quotient, whole), remainder


def _linear(factors: Mapping[int, int], constant: int) -> Linear:
    return Linear(tuple((a, f) for a, f in sorted(factors.items()) if f), constant)


@dataclass(frozen=True)
class Guard:
    """What is read is inside only where 0 <= index < size; elsewhere it is a zero."""

    index: Linear
    size: int


@dataclass(frozen=True)
class Access:
    """How a loop reads a tensor.

    Attributes:
        term: the tensor.
        index: one index a dimension.
        guards: where it is not read, but taken to be `fill`.
        sizes: of the loop's axes.
        fill: what is read outside; zero unless the tensor was padded with another number.
    """

    term: Term
    index: tuple[Linear, ...]
    guards: tuple[Guard, ...]
    sizes: tuple[int, ...]
    fill: float = 0.0

    @property
    def axes(self) -> frozenset[int]:
        """The axes it depends on."""
        return frozenset(a for i in self.index for a in i.axes)

    def is_simple(self) -> bool:
        """Tells whether each dimension is one whole axis of its own, or of size 1."""
        seen: list[int] = []
        for index, size in zip(self.index, self.term.shape, strict=True):
            if size == 1:
                continue
            if index.constant or len(index.terms) != 1:
                return False
            ((axis, factor),) = index.terms
            if factor != 1 or self.sizes[axis] != size:
                return False
            seen.append(axis)
        return not self.guards and len(set(seen)) == len(seen)

    def dims(self) -> dict[int, int]:
        """Returns the dimension that each axis is, of a simple access."""
        return {i.terms[0][0]: d for d, i in enumerate(self.index) if i.terms}


def loop(term: Term, shape: Sequence[int]) -> Access:
    """Returns how a loop over a shape reads a term that broadcasts to it."""
    sizes = tuple(shape)
    first = len(sizes) - len(term.shape)
    index = tuple(
        _axis(first + d, sizes) if size > 1 else Linear() for d, size in enumerate(term.shape)
    )
    return Access(term, index, (), sizes)


def _axis(axis: int, sizes: Sequence[int]) -> Linear:
    return Linear(((axis, 1),)) if sizes[axis] > 1 else Linear()


def behind(access: Access) -> Access | None:
    """Returns how the same loop reads what the term was moved from; None if that is unknown."""
    term, index, sizes = access.term, access.index, access.sizes
    guards = access.guards
    if term.op == "expand":
        source = term.sources[0]
        kept = index[len(index) - len(source.shape) :]
        index = tuple(Linear() if n == 1 else i for n, i in zip(source.shape, kept, strict=True))
    elif term.op == "permute":
        places = [0] * len(index)
        for place, dim in enumerate(term.arg):
            places[dim] = place
        index = tuple(index[place] for place in places)
    elif term.op == "shrink":
        index = tuple(i.shifted(a) for i, (a, _) in zip(index, term.arg, strict=True))
    elif term.op == "flip":
        index = tuple(
            Linear(constant=n - 1).plus(i, -1) if d in term.arg else i
            for d, (i, n) in enumerate(zip(index, term.shape, strict=True))
        )
    elif term.op == "pad":
        index = tuple(i.shifted(-a) for i, (a, _) in zip(index, term.arg, strict=True))
        shape = term.sources[0].shape
        new = [
            Guard(i, n)
            for i, n in zip(index, shape, strict=True)
            if i.bounds(sizes)[0] < 0 or i.bounds(sizes)[1] >= n
        ]
        if new and (guards or access.fill):
            return None  # padding of what was padded
        guards = (*guards, *new)
    elif term.op == "reshape":
        moved = _reshaped(index, term.shape, term.sources[0].shape, sizes)
        if moved is None:
            return None
        index = moved
    else:
        return None
    return Access(term.sources[0], index, guards, sizes, access.fill)


def _reshaped(
    index: Sequence[Linear], shape: Sequence[int], source: Sequence[int], sizes: Sequence[int]
) -> tuple[Linear, ...] | None:
    """Returns indices into the shape before a reshape."""
    result: list[Linear] = []
    for dims, sources in _blocks(shape, source):
        flat, stride = Linear(), 1
        for dim in reversed(dims):
            flat = flat.plus(index[dim], stride)
            stride *= shape[dim]
        parts: list[Linear] = []
        for number, dim in enumerate(reversed(sources)):
            if number == len(sources) - 1:
                parts.append(flat)
                break
            divided = flat.divided(source[dim], sizes)
            if divided is None:
                return None
            flat, rest = divided
            parts.append(rest)
        result.extend(reversed(parts))
    return tuple(result)


def _blocks(shape: Sequence[int], source: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Returns the smallest runs of dimensions of both shapes that hold as many elements."""
    blocks = []
    i = j = 0
    while i < len(shape) or j < len(source):
        dims, sources = [], []
        if i < len(shape):
            dims.append(i)
            i += 1
        if j < len(source):
            sources.append(j)
            j += 1
        while math.prod(shape[d] for d in dims) != math.prod(source[d] for d in sources):
            grow = math.prod(shape[d] for d in dims) < math.prod(source[d] for d in sources)
            if (grow and i < len(shape)) or j >= len(source):
                dims.append(i)
                i += 1
            else:
                sources.append(j)
                j += 1
        blocks.append((dims, sources))
    return blocks
