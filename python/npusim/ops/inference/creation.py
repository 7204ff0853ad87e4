"""Types of the operators that make tensors from numbers, and of triangles."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from npusim.errors import SymbolicSizeError
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.ops.inference.promotion import require
from npusim.ops.inference.sizes import axes, surely_less

Rule = Callable[..., TensorType]


def _made(size: Sequence[int], dtype: str) -> TensorType:
    require(not any(surely_less(s, 0) for s in size), f"{list(size)} is no shape.")
    return TensorType(dtype, tuple(size))


def _dtype_of(number: Any) -> str:
    require(not isinstance(number, str), f"{number} is a complex number.")
    if isinstance(number, bool):
        return "bool"
    return "int64" if isinstance(number, int) else "float32"


def _full(size: Sequence[int], value: Any, dtype: str | None) -> TensorType:
    return _made(size, dtype or _dtype_of(value))


def _filled(size: Sequence[int], dtype: str | None) -> TensorType:
    return _made(size, dtype or "float32")


def _scalar(value: Any, dtype: str | None) -> TensorType:
    require(not isinstance(value, str), f"{value} is a complex number.")
    return TensorType(dtype or "float32", ())


def _full_like(x: TensorType, value: Any, dtype: str | None) -> TensorType:
    return TensorType(dtype or x.dtype, x.shape)


def _like(x: TensorType, dtype: str | None) -> TensorType:
    return TensorType(dtype or x.dtype, x.shape)


def _fill(x: TensorType, value: Any) -> TensorType:
    if isinstance(value, TensorType):
        require(value.rank == 0, f"the value is {value}, not a scalar.")
    return x


def _strided(size: Sequence[int], stride: Sequence[int], dtype: str | None) -> TensorType:
    require(len(size) == len(stride), f"{len(size)} sizes have {len(stride)} strides.")
    require(not any(surely_less(s, 0) for s in stride), f"strides are {list(stride)}.")
    return _made(size, dtype or "float32")


def _new_strided(
    x: TensorType, size: Sequence[int], stride: Sequence[int], dtype: str | None
) -> TensorType:
    return _strided(size, stride, dtype or x.dtype)


def _permuted(size: Sequence[int], order: Sequence[int], dtype: str | None) -> TensorType:
    require(len(order) == len(size), f"{list(order)} does not order {len(size)} dimensions.")
    axes(order, len(size))
    return _made(size, dtype or "float32")


def _triangle_places(low: bool) -> Rule:
    def rule(row: int, col: int, offset: int, dtype: str | None) -> TensorType:
        require(row >= 0 and col >= 0, f"{row} rows and {col} columns.")
        dtype = dtype or "int64"
        require(dtype in ("int64", "int32"), f"places are of {dtype}, not int64 or int32.")
        count = _triangle(row, col, offset if low else offset - 1)
        return TensorType(dtype, (2, count if low else row * col - count))

    return rule


def _triangle(row: int, col: int, offset: int) -> int:
    """Returns how many elements of a matrix lie on or below a diagonal, summed in closed form."""
    first = min(max(-offset, 0), row)  # rows above have none
    full = min(max(col - offset, first), row)  # from here on, rows are whole
    rising = full - first
    return rising * (first + offset + 1) + rising * (rising - 1) // 2 + (row - full) * col


def _arange(*arguments: Any) -> TensorType:
    *numbers, dtype = arguments
    start, end, step = {1: (0, *numbers, 1), 2: (*numbers, 1)}.get(len(numbers), numbers)
    for number in (start, end, step):
        require(not isinstance(number, str), f"{number} is a complex number.")
        require(is_symbolic(number) or math.isfinite(number), f"{number} is no end of a range.")
    fraction = any(isinstance(n, float) for n in (start, end, step))
    dtype = dtype or ("float32" if fraction else "int64")
    require(dtype != "bool", "a range is of numbers.")
    if is_symbolic((start, end, step)):
        if fraction or step != 1:
            raise SymbolicSizeError(f"the length of a range from {start} to {end} by {step}")
        return _made((end - start,), dtype)
    require(step != 0, "the step of a range is 0.")
    span = end - start
    require(span == 0 or (span > 0) == (step > 0), f"{step} does not lead from {start} to {end}.")
    if dtype == "int64" or not fraction:  # in integers, fractions cut off
        first, last, by = (int(n) for n in (start, end, step))
        require(by != 0, "the step of a range is 0.")
        return TensorType(dtype, (max(-((first - last) // by), 0),))
    return TensorType(dtype, (math.ceil((end - start) / step),))


def _linspace(start: Any, end: Any, steps: int, dtype: str | None) -> TensorType:
    for number in (start, end):
        require(not isinstance(number, str), f"{number} is a complex number.")
    return _made((steps,), dtype or "float32")


def _eye(n: int, *rest: Any) -> TensorType:
    *columns, dtype = rest
    return _made((n, *(columns or (n,))), dtype or "float32")


def _triangle_of(x: TensorType, diagonal: int) -> TensorType:
    require(x.rank >= 2, f"{x} is no matrix.")
    return x


RULES: dict[str, Rule] = {
    "aten.full.default": _full,
    "aten.full_like.default": _full_like,
    "aten.scalar_tensor.default": _scalar,
    "aten.zeros.default": _filled,
    "aten.ones.default": _filled,
    "aten.empty.memory_format": _filled,
    "aten.zeros_like.default": _like,
    "aten.ones_like.default": _like,
    "aten.empty_like.default": _like,
    "aten.fill.Scalar": _fill,
    "aten.fill.Tensor": _fill,
    "aten.empty_strided.default": _strided,
    "aten.new_empty_strided.default": _new_strided,
    "aten.empty_permuted.default": _permuted,
    "aten.tril_indices.default": _triangle_places(True),
    "aten.triu_indices.default": _triangle_places(False),
    "aten.arange.default": _arange,
    "aten.arange.start": _arange,
    "aten.arange.start_step": _arange,
    "aten.linspace.default": _linspace,
    "aten.eye.default": _eye,
    "aten.eye.m": _eye,
    "aten.tril.default": _triangle_of,
    "aten.triu.default": _triangle_of,
}
