"""Types of reading and writing at places that other tensors name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from npusim.ir.types import TensorType
from npusim.ops.inference.promotion import kind_of, require, require_index
from npusim.ops.inference.sizes import (
    axis,
    broadcast_shapes,
    differ,
    require_shape,
    surely_less,
)

Rule = Callable[..., TensorType]

_SCATTERED = ("sum", "prod", "mean", "amax", "amin")
_MASKS = ("bool", "uint8")
_INDICES = ("int64", "int32")


def _embedding(weight: TensorType, indices: TensorType, *_: Any) -> TensorType:
    require(weight.rank == 2, f"the table is {weight}, not a matrix.")
    require_index(indices)
    return TensorType(weight.dtype, (*indices.shape, weight.shape[1]))


def _positions(x: TensorType, dim: int, index: TensorType) -> tuple[int, int]:
    """Returns the dimension that a vector of positions is along, and their number."""
    require_index(index)
    require(index.rank <= 1, f"the index is {index}, not a vector.")
    return axis(dim, x.rank), index.shape[0] if index.rank else 1


def _index_select(x: TensorType, dim: int, index: TensorType) -> TensorType:
    d, count = _positions(x, dim, index)
    if not x.rank:
        require(not differ(count, 1), f"a scalar has no {count} elements.")
        return x
    return TensorType(x.dtype, (*x.shape[:d], count, *x.shape[d + 1 :]))


def _within(index: TensorType, other: TensorType, but: int | None, what: str) -> None:
    """Checks that a tensor of places of as many dimensions lies within another one's shape."""
    a, b = index.shape or (1,), other.shape or (1,)
    fits = len(a) == len(b) and not any(
        surely_less(size, own) for d, (own, size) in enumerate(zip(a, b, strict=True)) if d != but
    )
    require(fits, f"the index is {index}, which does not lie within {what} {other}.")


def _gather(x: TensorType, dim: int, index: TensorType, sparse_grad: bool) -> TensorType:
    d = axis(dim, x.rank)
    if not any(size == 0 for size in index.shape):  # an empty one may be of any dtype and shape
        require(index.dtype == "int64" or index.dtype == "int32", f"the index is {index}.")
        _within(index, x, d, "the input")
    return TensorType(x.dtype, index.shape)


def _scatter(x: TensorType, dim: int, index: TensorType, source: Any, *rest: Any) -> TensorType:
    """Writes into x; a source may be a number, the rest holds how values are reduced."""
    require_index(index)
    d = axis(dim, x.rank)
    if isinstance(source, TensorType):
        require(source.dtype == x.dtype, f"the source is {source}, but the input {x}.")
    for how in rest:
        if isinstance(how, str):
            legal = (*_SCATTERED, "add", "multiply")
            require(how in legal, f"reduce is {how!r}; known are {', '.join(legal)}.")
    if any(size == 0 for size in index.shape):
        return x
    _within(index, x, d, "the input")
    if isinstance(source, TensorType):
        _within(index, source, None, "the source")
    return x


def _advanced(x: TensorType, indices: Sequence[TensorType | None]) -> tuple[int, ...]:
    """Returns the shape of x[indices]; dimensions of indices come first where they are apart."""
    require(0 < len(indices) <= x.rank, f"{x} has no {len(indices)} dimensions to index.")
    there = [d for d, index in enumerate(indices) if index is not None]
    require(len(there) > 0, "there is no index.")
    given = [index for index in indices if index is not None]
    for index in given:
        require(index.dtype in _INDICES, f"an index is {index}: not of integers.")
    joint = broadcast_shapes(*(index.shape for index in given))
    kept = [size for d, size in enumerate(x.shape) if d not in there]
    together = there == list(range(there[0], there[-1] + 1))
    place = there[0] if together else 0
    return (*kept[:place], *joint, *kept[place:])


def _index(x: TensorType, indices: Sequence[TensorType | None]) -> TensorType:
    return TensorType(x.dtype, _advanced(x, indices))


def _index_put(
    x: TensorType, indices: Sequence[TensorType | None], values: TensorType, accumulate: bool
) -> TensorType:
    require(values.dtype == x.dtype, f"the values are {values}, but the input {x}.")
    if any(index is not None and index.dtype in _MASKS for index in indices):
        return _masked_put(x, indices, values)
    shape = _advanced(x, indices)
    require_shape(broadcast_shapes(values.shape, shape), shape, "what is put, broadcast,")
    return x


def _masked_put(
    x: TensorType, indices: Sequence[TensorType | None], values: TensorType
) -> TensorType:
    """Where a mask is true; how often is known to nobody, so one value serves all its places."""
    given = [(d, index) for d, index in enumerate(indices) if index is not None]
    require(len(given) == 1, "it has another index beside a mask.")
    (at, mask) = given[0]
    behind = x.rank - at - mask.rank
    require(mask.rank > 0 and behind >= 0, f"the mask {mask} is not one of {x}.")
    require_shape(mask.shape, x.shape[at : at + mask.rank], "the mask")
    places = (*x.shape[:at], 1, *x.shape[x.rank - behind :])
    joint = broadcast_shapes(values.shape, places)
    require_shape(joint, places, "what is put, broadcast,")
    return x


def _index_write(x: TensorType, dim: int, index: TensorType, source: TensorType) -> TensorType:
    d, count = _positions(x, dim, index)
    require(source.dtype == x.dtype, f"the source is {source}, but the input {x}.")
    if not x.rank or not source.rank:
        fits = not differ(count, 1) and x.rank <= 1 and source.rank <= 1
        require(fits and source.numel == 1, f"the source is {source}, the input {x}.")
        return x
    require_shape(source.shape, (*x.shape[:d], count, *x.shape[d + 1 :]), "the source")
    return x


def _index_add(
    x: TensorType, dim: int, index: TensorType, source: TensorType, alpha: Any
) -> TensorType:
    fraction = isinstance(alpha, float) and kind_of(x.dtype) != "float"
    require(not fraction, f"alpha is {alpha}, a fraction, but the tensors hold integers.")
    return _index_write(x, dim, index, source)


def _index_copy(x: TensorType, dim: int, index: TensorType, source: TensorType) -> TensorType:
    require(index.dtype == "int64", f"the index is {index}, not int64.")
    return _index_write(x, dim, index, source)


def _index_reduce(
    x: TensorType, dim: int, index: TensorType, source: TensorType, how: str, include_self: bool
) -> TensorType:
    known = ("prod", "mean", "amax", "amin")
    require(how in known, f"reduce is {how!r}; known are {', '.join(known)}.")
    return _index_write(x, dim, index, source)


def _index_fill(x: TensorType, dim: int, index: TensorType, value: Any) -> TensorType:
    require(index.dtype == "int64", f"the index is {index}, not int64.")
    _positions(x, dim, index)
    return x


RULES: dict[str, Rule] = {
    "aten.embedding.default": _embedding,
    "aten.index_select.default": _index_select,
    "aten.gather.default": _gather,
    "aten.index.Tensor": _index,
    "aten.index_put.default": _index_put,
    "aten.index_add.default": _index_add,
    "aten.index_copy.default": _index_copy,
    "aten.index_reduce.default": _index_reduce,
    "aten.index_fill.int_Scalar": _index_fill,
    **{
        f"aten.{name}": _scatter
        for name in (
            *("scatter.src", "scatter.value", "scatter_add.default", "scatter_reduce.two"),
            *("scatter.reduce", "scatter.value_reduce"),
        )
    },
}
