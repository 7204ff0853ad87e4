"""Types of reductions, scans and sorts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from npusim.ir.types import TensorType
from npusim.ops.inference.promotion import floated, kind_of, require, require_float, summed
from npusim.ops.inference.sizes import axes, axis, differ, surely_less

Rule = Callable[..., Any]
Dims = Sequence[int] | int | None


def _reduced(x: TensorType, dim: Dims, keepdim: bool, dtype: str) -> TensorType:
    """Returns x without the dimensions, all of them where none is named."""
    if isinstance(dim, int):
        dim = (dim,)
    gone = axes(dim, x.rank) if dim else tuple(range(x.rank))
    if keepdim:
        shape = tuple(1 if d in gone else size for d, size in enumerate(x.shape))
    else:
        shape = tuple(size for d, size in enumerate(x.shape) if d not in gone)
    return TensorType(dtype, shape)


def _not_empty(x: TensorType, dim: Dims) -> None:
    if isinstance(dim, int):
        dim = (dim,)
    for d in axes(dim, x.rank) if dim else range(x.rank):
        empty = x.rank > 0 and not differ(x.shape[d], 0) and x.shape[d] == 0
        require(not empty, f"{x} has no elements along dimension {d}.")


def _sum(x: TensorType, *rest: Any) -> TensorType:
    dim, keepdim, dtype = rest if len(rest) == 3 else (None, False, *rest)
    return _reduced(x, dim, keepdim, dtype or summed(x.dtype))


def _mean(x: TensorType, *rest: Any) -> TensorType:
    dim, keepdim, dtype = rest if len(rest) == 3 else (None, False, *rest)
    result = dtype or x.dtype
    require(kind_of(result) == "float", f"the mean of {x} would be of {result}, not of a float.")
    return _reduced(x, dim, keepdim, result)


def _extreme(x: TensorType, dim: Dims = None, keepdim: bool = False) -> TensorType:
    _not_empty(x, dim)
    return _reduced(x, dim, keepdim, x.dtype)


def _extreme_with_place(x: TensorType, dim: int, keepdim: bool) -> tuple[TensorType, TensorType]:
    _not_empty(x, dim)
    return _reduced(x, dim, keepdim, x.dtype), _reduced(x, dim, keepdim, "int64")


def _place(x: TensorType, dim: int | None, keepdim: bool) -> TensorType:
    _not_empty(x, dim)
    require(x.dtype != "bool", "it takes no tensor of bool.")
    return _reduced(x, dim, keepdim, "int64")


def _truth(x: TensorType, dim: Dims = None, keepdim: bool = False) -> TensorType:
    dtype = "uint8" if x.dtype == "uint8" else "bool"
    if dim == ():  # PyTorch reduces no dimension here, unlike everywhere else
        return TensorType(dtype, x.shape)
    return _reduced(x, dim, keepdim, dtype)


def _spread(x: TensorType, dim: Dims, correction: Any, keepdim: bool) -> TensorType:
    require_float(x)
    return _reduced(x, dim, keepdim, x.dtype)


def _spread_and_mean(x: TensorType, *rest: Any) -> tuple[TensorType, TensorType]:
    result = _spread(x, *rest)
    return result, result


def _logsumexp(x: TensorType, dim: Dims, keepdim: bool) -> TensorType:
    return _reduced(x, dim, keepdim, floated(x.dtype))


def _vector_norm(x: TensorType, order: Any, dim: Dims, keepdim: bool, dtype: Any) -> TensorType:
    require_float(x)
    require(dtype is None or kind_of(dtype) == "float", f"dtype is {dtype}, not a float.")
    if isinstance(order, (int, float)) and (order < 0 or order == math.inf):
        _not_empty(x, dim)
    return _reduced(x, dim, keepdim, dtype or x.dtype)


def _norm(x: TensorType, p: Any, dim: Dims, keepdim: bool) -> TensorType:
    require_float(x)
    return _reduced(x, dim, keepdim, x.dtype)


def _scan(x: TensorType, dim: int, dtype: str | None) -> TensorType:
    axis(dim, x.rank)
    return TensorType(dtype or summed(x.dtype), x.shape)


def _log_scan(x: TensorType, dim: int) -> TensorType:
    axis(dim, x.rank)
    require_float(x)
    return x


def _with_places(x: TensorType, dim: int) -> tuple[TensorType, TensorType]:
    axis(dim, x.rank)
    return x, TensorType("int64", x.shape)


def _sorted(x: TensorType, dim: int, descending: bool) -> tuple[TensorType, TensorType]:
    return _with_places(x, dim)


def _stable(x: TensorType, stable: Any, dim: int, descending: bool) -> Any:
    return _with_places(x, dim)


def _argsort(x: TensorType, dim: int, descending: bool) -> TensorType:
    return _with_places(x, dim)[1]


def _topk(x: TensorType, k: int, dim: int, *_: bool) -> tuple[TensorType, TensorType]:
    d = axis(dim, x.rank)
    size = x.shape[d] if x.rank else 1
    require(not surely_less(k, 0) and not surely_less(size, k), f"k is {k} of {size} elements.")
    require(x.dtype != "bool", "it takes no tensor of bool.")
    shape = (*x.shape[:d], k, *x.shape[d + 1 :]) if x.rank else ()
    return TensorType(x.dtype, shape), TensorType("int64", shape)


RULES: dict[str, Rule] = {
    f"aten.{name}": rule
    for rule, names in (
        (_sum, ("sum.default", "sum.dim_IntList", "prod.default", "prod.dim_int")),
        (_mean, ("mean.default", "mean.dim")),
        (_extreme, ("amax.default", "amin.default", "max.default", "min.default")),
        (_extreme_with_place, ("max.dim", "min.dim")),
        (_place, ("argmax.default", "argmin.default")),
        (_truth, tuple(f"{a}.{kind}" for a in ("any", "all") for kind in ("default", "dim"))),
        (_truth, ("any.dims", "all.dims")),
        (_spread, ("var.correction", "var.dim", "std.correction", "std.dim")),
        (_spread_and_mean, ("var_mean.correction",)),
        (_logsumexp, ("logsumexp.default",)),
        (_vector_norm, ("linalg_vector_norm.default",)),
        (_norm, ("norm.ScalarOpt_dim",)),
        (_scan, ("cumsum.default", "cumprod.default")),
        (_log_scan, ("logcumsumexp.default",)),
        (_with_places, ("cummax.default", "cummin.default")),
        (_sorted, ("sort.default",)),
        (_stable, ("sort.stable",)),
        (_argsort, ("argsort.default",)),
        (_topk, ("topk.default",)),
    )
    for name in names
}
