"""Gathering and scattering by indices."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.registry import Call, translation
from npusim.frontends.onnx.sizes import objects
from npusim.ir.symbolic import is_symbolic


def positive(indices: Tensor, size: int) -> Tensor:
    """Returns indices counted from the front, as int64."""
    wide = indices.to("int64", TensorProto.INT64)
    if wide.data is not None:
        data = wide.data.astype(np.int64)
        if is_symbolic(size):
            front = np.where(data < 0, data + objects([size]), data)
            return wide.graph.known_sizes(front.reshape(data.shape))  # a lone index has no axes
        return wide.graph.known(np.where(data < 0, data + size, data))
    return wide.graph.op("where.self", wide < 0, wide + size, wide)


@translation("Gather")
def _gather(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.int("axis") % x.rank
    places = positive(indices, x.shape[axis])
    if axis == 0 and x.rank == 2 and places.rank and x.dtype in ("float32", "float16", "bfloat16"):
        return x.op("embedding.default", places)
    chosen = x.op("index_select.default", axis, places.view((math.prod(places.shape),)))
    return chosen.view((*x.shape[:axis], *places.shape, *x.shape[axis + 1 :]))


@translation("GatherElements")
def _gather_elements(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    axis = call.int("axis") % x.rank
    return x.op("gather.default", axis, positive(indices, x.shape[axis]))


@translation("GatherND")
def _gather_nd(call: Call, x: Tensor, indices: Tensor) -> Tensor:
    batch = call.int("batch_dims")
    depth = indices.shape[-1]
    lead = x.shape[:batch]
    flat = _flat_places(indices, x.shape[batch : batch + depth])
    inner = x.shape[batch + depth :]
    n = math.prod(lead)
    space = math.prod(x.shape[batch : batch + depth])
    count = math.prod(flat.shape) // max(n, 1)
    places = flat.view((n, count))
    if n > 1:
        places = places + call.graph.known((np.arange(n, dtype=np.int64) * space).reshape(n, 1))
    rows = x.view((n * space, *inner))
    chosen = rows.op("index_select.default", 0, places.view((n * count,)))
    return chosen.view((*indices.shape[:-1], *inner))


def _flat_places(indices: Tensor, extents: tuple[int, ...]) -> Tensor:
    """Returns index tuples, the last dimension, as positions in a row-major space."""
    total: Tensor | None = None
    for i, extent in enumerate(extents):
        part = positive(indices.op("select.int", -1, i), extent)
        total = part if total is None else total * extent + part
    if total is None:
        return indices.graph.full(indices.shape[:-1], 0, "int64")
    return total


_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def scattered(x: Tensor, dim: int, places: Tensor, src: Tensor, reduction: str) -> Tensor:
    """Returns x with elements of src at places of a dimension."""
    if reduction == "none":
        return x.op("scatter.src", dim, places, src)
    return x.op("scatter_reduce.two", dim, places, src, _REDUCTIONS[reduction])


@translation("Scatter", "ScatterElements")
def _scatter(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    axis = call.int("axis") % x.rank
    places = positive(indices, x.shape[axis])
    return scattered(x, axis, places, updates, call.str("reduction", "none"))


@translation("ScatterND")
def _scatter_nd(call: Call, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth = indices.shape[-1]
    flat = _flat_places(indices, x.shape[:depth])
    space, inner = math.prod(x.shape[:depth]), math.prod(x.shape[depth:])
    count = math.prod(flat.shape)
    places = flat.view((count, 1)).expand((count, inner))
    rows, src = x.view((space, inner)), updates.view((count, inner))
    return scattered(rows, 0, places, src, call.str("reduction", "none")).view(x.shape)


@translation("TensorScatter")
def _tensor_scatter(
    call: Call, past: Tensor, update: Tensor, where: Tensor | None = None
) -> Tensor:
    axis = call.int("axis", -2) % past.rank
    length, size = update.shape[axis], past.shape[axis]
    shape = [1] * past.rank
    shape[axis] = length
    line = call.graph.known(np.arange(length, dtype=np.int64).reshape(shape))
    if where is not None:
        first = [past.shape[0], *[1] * (past.rank - 1)]
        line = where.to("int64", TensorProto.INT64).view(first) + line
    if call.str("mode", "linear") == "circular":
        line = line.op("remainder.Scalar", size)
    return past.op("scatter.src", axis, line.expand(update.shape), update)
