"""Reading elements at indices."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.exporters.onnx.builder import NoForm
from npusim.exporters.onnx.registry import Call, Tensor, translation
from npusim.ops.fused import broadcast_shapes


@translation("aten.embedding.default")
def _embedding(call: Call, weight: Tensor, indices: Tensor) -> Tensor:
    return call.op("Gather", weight, wide_index(call, indices), shape=call.type.shape, axis=0)


@translation("aten.index_select.default")
def _index_select(call: Call, x: Tensor, index: Tensor) -> Tensor:
    if not x.rank:
        return x
    listed = call.reshape(wide_index(call, index), (index.shape[0] if index.rank else 1,))
    axis = call.dim(x.rank)
    shape = (*x.shape[:axis], *listed.shape, *x.shape[axis + 1 :])
    return call.op("Gather", x, listed, shape=shape, axis=axis)


@translation("aten.gather.default")
def _gather(call: Call, x: Tensor, index: Tensor) -> Tensor:
    dim, index = call.dim(x.rank), wide_index(call, index)
    if not x.rank or not index.rank:
        return call.reshape(x, call.type.shape)
    for d in range(x.rank):  # ONNX reads as far as the index reaches, in every other dimension
        if d != dim:
            x = call.slice(x, d, 0, index.shape[d])
    return call.op("GatherElements", x, index, shape=index.shape, axis=dim)


def wide_index(call: Call, index: Tensor) -> Tensor:
    """Returns indices in the dtype that every ONNX operator takes."""
    return call.cast(index, "int64")


@translation("aten.index.Tensor")
def _index(call: Call, x: Tensor, *indices: Tensor | None) -> Tensor:
    first, table, order, batch = index_table(call, x, indices)
    moved = call.transpose(x, order)
    rest = moved.shape[table.shape[-1] :]
    if table.shape[-1] == 1:
        flat = call.reshape(table, batch)
        rows = call.op("Gather", moved, flat, shape=(*batch, *rest), axis=0)
    else:
        rows = call.op("GatherND", moved, table, shape=(*batch, *rest))
    return call.transpose(rows, _behind(len(batch), len(rest), first))


def index_table(
    call: Call, x: Tensor, indices: Sequence[Tensor | None]
) -> tuple[int, Tensor, list[int], tuple[int, ...]]:
    """Reads PyTorch's list of indices, one a dimension.

    Returns:
        Where the indexed dimensions stand in the result; the indices as rows [..., dimensions];
        the order of x's dimensions that puts the indexed ones first; the indices' shape.
    """
    if any(index is not None and index.dtype == "bool" for index in indices):
        raise NoForm("as many results as a mask has true elements")
    dims = [d for d, index in enumerate(indices) if index is not None]
    given = [wide_index(call, index) for index in indices if index is not None]
    batch = broadcast_shapes(*(t.shape for t in given))
    columns = [call.reshape(call.expand(t, batch), (*batch, 1)) for t in given]
    table = call.concat(columns, len(batch))
    together = dims == list(range(dims[0], dims[0] + len(dims)))
    order = dims + [d for d in range(x.rank) if d not in dims]
    return dims[0] if together else 0, table, order, batch


def _behind(batch: int, rest: int, first: int) -> list[int]:
    """Returns the order that moves the indices' dimensions after the first ones of the rest."""
    return [
        *range(batch, batch + first),
        *range(batch),
        *range(batch + first, batch + rest),
    ]
