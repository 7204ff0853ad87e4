"""Writing elements at indices."""

from __future__ import annotations

import math

import torch

from npusim.exporters.onnx.builder import NoForm
from npusim.exporters.onnx.indexing import index_table, wide_index
from npusim.exporters.onnx.registry import Call, Tensor, translation
from npusim.exporters.onnx.scalar import floor_divided

_REDUCTIONS = {"sum": "add", "prod": "mul", "amax": "max", "amin": "min", "add": "add",
               "multiply": "mul"}  # fmt: skip


def scatter(
    call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor, reduction: str = "none"
) -> Tensor:
    """Writes `source` into x at an index of its shape, along a dimension."""
    if not x.rank:
        x, index, source = (call.reshape(t, (1,)) for t in (x, index, source))
    source = call.cast(source, x.dtype)
    if math.prod(index.shape) == 0:
        return x
    given = None if reduction == "none" else reduction
    return call.op("ScatterElements", x, index, source, axis=dim, reduction=given)


def _fitted(call: Call, source: Tensor, index: Tensor) -> Tensor:
    """Returns the part of a source that the index reaches."""
    for d in range(index.rank):
        source = call.slice(source, d, 0, index.shape[d])
    return source


@translation("aten.scatter.src", "aten.scatter.reduce", "aten.scatter_add.default")
def _scatter(call: Call, x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    reduction = "add" if "add" in call.node.op else _REDUCTIONS.get(call.attr("reduce"), "none")
    index = wide_index(call, index)
    fitted = _fitted(call, source, index)
    return call.reshape(scatter(call, x, call.dim(x.rank), index, fitted, reduction), x.shape)


@translation("aten.scatter.value", "aten.scatter.value_reduce")
def _scatter_value(call: Call, x: Tensor, index: Tensor) -> Tensor:
    index = wide_index(call, index)
    source = call.expand(call.const(call.attr("value"), x.dtype), index.shape)
    reduction = _REDUCTIONS.get(call.attr("reduce"), "none")
    return call.reshape(scatter(call, x, call.dim(x.rank), index, source, reduction), x.shape)


@translation("aten.scatter_reduce.two")
def _scatter_reduce(call: Call, x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    index = wide_index(call, index)
    fitted = _fitted(call, source, index)
    return call.reshape(_combined(call, x, call.dim(x.rank), index, fitted), x.shape)


@translation("aten.index_reduce.default")
def _index_reduce(call: Call, x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    dim = call.dim(x.rank)
    rows = _rows(call, wide_index(call, index), source, dim)
    return call.reshape(_combined(call, x, dim, rows, source), x.shape)


def _combined(call: Call, x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """scatter_reduce: a mean divides a sum by how many elements it has."""
    if not x.rank:
        x, index, source = (call.reshape(t, (1,)) for t in (x, index, source))
    kind, included = str(call.attr("reduce")), bool(call.attr("include_self", True))
    base = x
    if not included:
        base = scatter(call, x, dim, index, call.expand(_neutral(call, kind, x.dtype), index.shape))
    if kind != "mean":
        return scatter(call, base, dim, index, source, _REDUCTIONS[kind])
    total = scatter(call, base, dim, index, source, "add")
    first = call.expand(call.const(1 if included else 0, x.dtype), x.shape)
    ones = call.expand(call.const(1, x.dtype), index.shape)
    count = scatter(call, first, dim, index, ones, "add")
    count = call.broadcast("Max", count, call.const(1, x.dtype))
    return call.op("Div", total, count) if x.is_float else floor_divided(call, total, count)


def _neutral(call: Call, kind: str, dtype: str) -> Tensor:
    """Returns what changes nothing under a reduction."""
    if kind in ("amax", "amin") and "float" in dtype:
        return call.const(-math.inf if kind == "amax" else math.inf, dtype)
    if kind in ("amax", "amin"):
        info = torch.iinfo(getattr(torch, dtype))
        return call.const(info.min if kind == "amax" else info.max, dtype)
    return call.const(1 if kind == "prod" else 0, dtype)


# ---- whole rows ----


def _rows(call: Call, index: Tensor, source: Tensor, dim: int) -> Tensor:
    """Returns a list of rows as an index of the source's shape."""
    shape = [1] * source.rank
    if source.rank:
        shape[dim] = source.shape[dim]
    return call.expand(call.reshape(index, shape), source.shape)


@translation("aten.index_add.default")
def _index_add(call: Call, x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    alpha, dim = call.attr("alpha", 1), call.dim(x.rank)
    scaled = source if alpha == 1 else call.op("Mul", source, call.const(alpha, source.dtype))
    rows = _rows(call, wide_index(call, index), source, dim)
    return call.reshape(scatter(call, x, dim, rows, scaled, "add"), x.shape)


@translation("aten.index_copy.default")
def _index_copy(call: Call, x: Tensor, index: Tensor, source: Tensor) -> Tensor:
    dim = call.dim(x.rank)
    rows = _rows(call, wide_index(call, index), source, dim)
    return call.reshape(scatter(call, x, dim, rows, source), x.shape)


@translation("aten.index_fill.int_Scalar")
def _index_fill(call: Call, x: Tensor, index: Tensor) -> Tensor:
    dim = call.dim(x.rank)
    count = index.shape[0] if index.rank else 1
    shape = (*x.shape[:dim], count, *x.shape[dim + 1 :]) if x.rank else ()
    source = call.expand(call.const(call.attr("value"), x.dtype), shape)
    rows = _rows(call, wide_index(call, index), source, dim)
    return call.reshape(scatter(call, x, dim, rows, source), x.shape)


@translation("aten.index_put.default")
def _index_put(call: Call, x: Tensor, *operands: Tensor | None) -> Tensor:
    *indices, values = operands
    assert values is not None
    masks = [t for t in indices if t is not None and t.dtype == "bool"]
    if masks:
        if len(masks) != 1 or sum(t is not None for t in indices) != 1:
            raise NoForm("a mask beside other indices")
        return _masked_put(call, x, indices.index(masks[0]), masks[0], values)
    first, table, order, batch = index_table(call, x, indices)
    moved = call.transpose(x, order)
    rest = list(moved.shape[table.shape[-1] :])
    between = (*rest[:first], *batch, *rest[first:])
    spread = call.expand(call.cast(values, x.dtype), between)
    back = [
        *range(first, first + len(batch)),
        *range(first),
        *range(first + len(batch), len(between)),
    ]
    updates = call.transpose(spread, back)
    reduction = "add" if call.attr("accumulate") else None
    written = call.op("ScatterND", moved, table, updates, reduction=reduction)
    return call.transpose(written, [order.index(d) for d in range(x.rank)])


def _masked_put(call: Call, x: Tensor, first: int, mask: Tensor, values: Tensor) -> Tensor:
    """Writes where a mask over some dimensions is true; one value for all that it picks."""
    behind = x.rank - first - mask.rank
    shape = [*(1,) * (first + 1 + behind - values.rank), *values.shape]
    if shape[first] != 1:
        raise NoForm("as many values as a mask has true elements")
    placed = [*shape[:first], *(1,) * mask.rank, *shape[first + 1 :]]
    given = call.reshape(call.cast(values, x.dtype), placed)
    if call.attr("accumulate"):
        given = call.broadcast("Add", x, given)
    spread = call.reshape(mask, (*mask.shape, *(1,) * behind))
    return call.broadcast("Where", spread, given, x, dtype=x.dtype)
