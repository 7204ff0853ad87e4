"""Reductions over axes, running sums, and orderings."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.kinds import is_floating
from npusim.frontends.onnx.pointwise import turned
from npusim.frontends.onnx.registry import Call, translation


def _reduced(call: Call, x: Tensor, axes: Tensor | None) -> tuple[list[int] | None, bool]:
    """Returns the axes, None when nothing is reduced, and whether they stay."""
    chosen = call.ints("axes") if axes is None else axes.ints(f"the axes of {call.op}")
    if not chosen:
        if call.int("noop_with_empty_axes"):
            return None, True
        chosen = list(range(x.rank))
    return sorted({a % x.rank for a in chosen}), bool(call.int("keepdims", 1))


def _sum(x: Tensor, dims: list[int], keep: bool) -> Tensor:
    if not dims:
        return x
    dtype = x.dtype
    total = x.op("sum.dim_IntList", dims, keep)
    return total.to(dtype, x.kind)


@translation("ReduceSum", "ReduceSumSquare", "ReduceL1", "ReduceL2", "ReduceLogSum")
def _sums(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    dims, keep = _reduced(call, x, axes)
    if call.op in ("ReduceSumSquare", "ReduceL2"):
        x = x * x
    elif call.op == "ReduceL1":
        x = x.op("abs.default")
    total = x if dims is None else _sum(x, dims, keep)
    if call.op == "ReduceL2":
        root = (total if is_floating(total.kind) else total.to("float32")).op("sqrt.default")
        return root.to(x.dtype, x.kind)
    return total.op("log.default") if call.op == "ReduceLogSum" else total


@translation("ReduceMean")
def _mean(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    dims, keep = _reduced(call, x, axes)
    if not dims:
        return x
    if is_floating(x.kind):
        return x.op("mean.dim", dims, keep)
    count = math.prod(x.shape[d] for d in dims)
    return _sum(x, dims, keep).op("div.Scalar_mode", count, rounding_mode="trunc")


@translation("ReduceLogSumExp")
def _log_sum_exp(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    dims, keep = _reduced(call, x, axes)
    if not dims:
        return x
    wide = x if is_floating(x.kind) else x.to("float32")
    return wide.op("logsumexp.default", dims, keep).to(x.dtype, x.kind)


@translation("ReduceMax", "ReduceMin")
def _extremes(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    dims, keep = _reduced(call, x, axes)
    if not dims:
        return x
    largest = call.op == "ReduceMax"
    if any(x.shape[d] == 0 for d in dims):
        return _empty_extreme(x, dims, keep, largest)
    if x.kind == TensorProto.BOOL:
        return x.op("any.dims" if largest else "all.dims", dims, keep)
    return turned(turned(x).op("amax.default" if largest else "amin.default", dims, keep))


def _empty_extreme(x: Tensor, dims: list[int], keep: bool, largest: bool) -> Tensor:
    """Over no elements: the least value there is, or the greatest."""
    shape = [1 if i in dims else d for i, d in enumerate(x.shape) if keep or i not in dims]
    if is_floating(x.kind):
        return x.graph.full(shape, -np.inf if largest else np.inf, x.dtype)
    if x.kind == TensorProto.BOOL:
        return x.graph.full(shape, not largest, x.dtype)
    bounds = np.iinfo(x.dtype)
    return x.graph.full(shape, int(bounds.min if largest else bounds.max), x.dtype)


@translation("ReduceProd")
def _product(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    dims, keep = _reduced(call, x, axes)
    dtype, kind = x.dtype, x.kind
    for dim in reversed(dims or []):
        x = x.op("prod.dim_int", dim, keep)
    return x.to(dtype, kind)


@translation("ArgMax", "ArgMin")
def _arg(call: Call, x: Tensor) -> Tensor:
    axis, keep = call.int("axis") % x.rank, bool(call.int("keepdims", 1))
    last = bool(call.int("select_last_index"))
    x = turned(x).op("flip.default", [axis]) if last else turned(x)
    name = "argmax.default" if call.op == "ArgMax" else "argmin.default"
    found = x.op(name, axis, keep, kind=TensorProto.INT64)
    return found.op("rsub.Scalar", x.shape[axis] - 1) if last else found


@translation("CumSum", "CumProd")
def _scan(call: Call, x: Tensor, axis: Tensor) -> Tensor:
    dim = axis.ints(f"the axis of {call.op}")[0] % x.rank
    reverse = bool(call.int("reverse"))
    dtype, kind, count = x.dtype, x.kind, x.shape[dim]
    x = x.op("flip.default", [dim]) if reverse else x
    x = x.op("cumsum.default" if call.op == "CumSum" else "cumprod.default", dim).to(dtype, kind)
    if call.int("exclusive"):
        from npusim.frontends.onnx.shapes import pad_dim

        fill = 0.0 if call.op == "CumSum" else 1.0
        x = pad_dim(x.slice(dim, 0, max(count - 1, 0)), dim, 1, 0, fill=fill)
    return x.op("flip.default", [dim]) if reverse else x


@translation("TopK")
def _top_k(call: Call, x: Tensor, k: Tensor | None = None) -> list[Tensor]:
    count = call.int("k") if k is None else k.ints("the k of TopK")[0]
    axis = call.int("axis", -1) % x.rank
    largest = bool(call.int("largest", 1))
    if count > x.shape[axis]:
        raise ExportError(f"k is {count}, and the axis has {x.shape[axis]} elements.")
    values, places = call.graph.ops(
        "sort.stable", turned(x), stable=True, dim=axis, descending=largest
    )
    return [
        turned(values).slice(axis, 0, count),
        call.graph.retyped(places, TensorProto.INT64).slice(axis, 0, count),
    ]
