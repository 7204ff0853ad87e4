"""Views: strided windows into buffers, and the algebra that keeps shape ops free.

Owns aliasing: a permute, a slice or (where strides allow) a reshape of a view is another view of
the same buffer. Knows no ops and no kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from npusim.errors import SymbolicSizeError, TargetConstraintError
from npusim.ir.symbolic import bounds, is_symbolic, upper
from npusim.ir.types import dtype_size, row_major

_MOST_PARTS = 1024  # commands for one value


@dataclass(frozen=True, slots=True)
class View:
    """Where a tensor lies: element (i0, i1, …) of a value is at byte
    `offset + size * Σ i_d * strides[d]` of `buffer`. Strides count elements; 0 repeats, a
    negative one walks backwards.
    """

    buffer: int
    offset: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def element_size(self) -> int:
        """Bytes an element takes."""
        return dtype_size(self.dtype)

    def has_strides(self, strides: Sequence[int]) -> bool:
        """Tells whether these strides address the same elements (extents of 1 do not matter)."""
        return self.numel == 0 or all(
            n == 1 or a == b for n, a, b in zip(self.shape, self.strides, strides, strict=True)
        )

    @property
    def is_row_major(self) -> bool:
        """Tells whether the elements lie one after another in row-major order."""
        return self.has_strides(row_major(self.shape))

    @property
    def is_dense(self) -> bool:
        """Tells whether the elements fill one run of memory, in whatever order."""
        pairs = ((s, n) for n, s in zip(self.shape, self.strides, strict=True) if n != 1)
        order = sorted(pairs, key=lambda pair: (upper(pair[0]), upper(pair[1])))
        step = 1
        for stride, size in order:
            if stride != step:
                return self.numel == 0
            step *= size
        return True

    @property
    def order(self) -> tuple[int, ...]:
        """Dimensions from the largest stride to the smallest; ties keep their logical order."""
        return tuple(sorted(range(self.rank), key=lambda d: (-_span(self.strides[d]), d)))

    def permute(self, dims: Sequence[int]) -> View:
        """Returns the view with its dimensions reordered, as `torch.permute`."""
        return replace(
            self,
            shape=tuple(self.shape[d] for d in dims),
            strides=tuple(self.strides[d] for d in dims),
        )

    def slice(self, dim: int, start: int, size: int, step: int = 1) -> View:
        """Returns `size` entries of a dimension from `start` on, every `step`-th (may be < 0)."""
        shape, strides = list(self.shape), list(self.strides)
        there = size != 0 and self.numel != 0  # nothing has no place either
        offset = self.offset + (start * strides[dim] * self.element_size if there else 0)
        shape[dim], strides[dim] = size, strides[dim] * step
        return replace(self, offset=offset, shape=tuple(shape), strides=tuple(strides))

    def select(self, dim: int, index: int) -> View:
        """Returns one entry of a dimension, without that dimension."""
        cut = self.slice(dim, index, 1)
        return replace(
            cut,
            shape=cut.shape[:dim] + cut.shape[dim + 1 :],
            strides=cut.strides[:dim] + cut.strides[dim + 1 :],
        )

    def expand(self, shape: Sequence[int]) -> View:
        """Returns the view broadcast to a shape by the rules of PyTorch and NumPy."""
        lead = len(shape) - self.rank
        strides = [0] * lead
        for size, stride, target in zip(self.shape, self.strides, shape[lead:], strict=True):
            if size != 1 and size != target and is_symbolic((size, target)):
                raise SymbolicSizeError(
                    f"{list(self.shape)} is broadcast to {list(shape)}, and whether {size} is "
                    f"{target} depends on the sizes of the call."
                )
            strides.append(stride if size == target else 0)
        return replace(self, shape=tuple(shape), strides=tuple(strides))

    def unsqueeze(self, dim: int) -> View:
        """Returns the view with a dimension of extent 1 inserted at `dim`."""
        return replace(
            self,
            shape=(*self.shape[:dim], 1, *self.shape[dim:]),
            strides=(*self.strides[:dim], 0, *self.strides[dim:]),
        )

    def diagonal_of(self, first: int, second: int, size: int, start: int) -> View:
        """Returns `size` entries of the diagonal of two dimensions as a new last dimension.

        `start` is the byte offset of its first entry from this view's first element.
        """
        rest = [d for d in range(self.rank) if d not in (first, second)]
        return replace(
            self,
            offset=self.offset + (start if size != 0 and self.numel != 0 else 0),
            shape=(*(self.shape[d] for d in rest), size),
            strides=(
                *(self.strides[d] for d in rest),
                self.strides[first] + self.strides[second],
            ),
        )

    def reshape(self, shape: Sequence[int]) -> View | None:
        """Returns the view in another shape, or None when that needs a copy.

        Old and new dimensions are matched in groups of equal product; within a group the old ones
        must step uniformly through memory.
        """
        shape = tuple(shape)
        if self.numel == 0 or (is_symbolic((self.shape, shape)) and self.is_row_major):
            return replace(self, shape=shape, strides=row_major(shape))
        old = [(n, s) for n, s in zip(self.shape, self.strides, strict=True) if n != 1]
        strides: list[int] = [0] * len(shape)
        at = len(old) - 1  # the innermost old dimension not yet used up
        left = 1  # entries of the current uniform run still to hand out
        step = 1  # distance between neighbours of what is left of the run
        for dim in reversed(range(len(shape))):
            size = shape[dim]
            if size == 1:
                continue
            if left == 1 and at < 0:
                return None  # symbolic sizes whose products are equal and do not look so
            if left == 1:
                left, step = old[at]
                at -= 1
            while left % size != 0 and at >= 0 and old[at][1] == step * left:
                left *= old[at][0]
                at -= 1
            if left % size != 0:
                return None
            strides[dim] = step
            left //= size
            step *= size
        return replace(self, shape=shape, strides=tuple(strides)) if left == 1 else None


def _span(stride: int) -> int:
    """Returns how far a stride leads at most; for sorting alone, which may be wrong by ties."""
    low, high = bounds(stride)
    return max(-low, high)


def in_parts(views: Sequence[View], most: int) -> list[tuple[View, ...]]:
    """Cuts views of one shape alike, until no part has more dimensions than a kernel takes.

    Cuts the smallest dimensions. Where few enough dimensions are left after merging (`collapse`),
    there is one part: all.

    Raises:
        TargetConstraintError: there would be more than 1024 parts.
    """
    parts = [tuple(views)]
    while len(collapse(parts[0][0].shape, *(v.strides for v in parts[0]))[0]) > most:
        shape = parts[0][0].shape
        fixed = [d for d, n in enumerate(shape) if not is_symbolic(n) and n != 1]
        dim = min(fixed, key=lambda d: shape[d], default=None)
        if dim is None or len(parts) * shape[dim] > _MOST_PARTS:
            raise TargetConstraintError(
                f"{list(views[0].shape)} has more than {most} dimensions that do not merge."
            )
        parts = [tuple(v.select(dim, i) for v in part) for part in parts for i in range(shape[dim])]
    return parts


def collapse(shape: Sequence[int], *strides: Sequence[int]) -> tuple[list[int], list[list[int]]]:
    """Merges dimensions that all operands step through uniformly.

    Args:
        shape: the iteration space.
        strides: one sequence an operand; the first one decides the order (largest outermost).

    Returns:
        The smallest equivalent iteration space (at least one dimension) and each operand's strides.
    """
    dims = [d for d in range(len(shape)) if shape[d] != 1]
    dims.sort(key=lambda d: tuple(-_span(s[d]) for s in strides))
    sizes: list[int] = []
    rows: list[list[int]] = [[] for _ in strides]
    for d in dims:
        mergeable = sizes and all(
            row[-1] == s[d] * shape[d] for row, s in zip(rows, strides, strict=True)
        )
        if mergeable:
            sizes[-1] *= shape[d]
            for row, s in zip(rows, strides, strict=True):
                row[-1] = s[d]
        else:
            sizes.append(shape[d])
            for row, s in zip(rows, strides, strict=True):
                row.append(s[d])
    if not sizes:
        return [1], [[0] for _ in strides]
    return sizes, rows
