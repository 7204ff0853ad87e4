"""Operators that only say where elements lie: shapes, orders of dimensions, ranges, parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from npusim.exporters.onnx.registry import Call, Results, Tensor, translation


@translation(
    *("aten.alias.default", "aten.detach.default", "aten.clone.default", "aten.contiguous.default"),
    *("aten.lift_fresh_copy.default", "aten.dropout.default"),
)
def _same(call: Call, x: Tensor) -> Tensor:
    return x


@translation("aten.copy.default")
def _copy(call: Call, x: Tensor, source: Tensor) -> Tensor:
    return source


@translation(
    *("aten.view.default", "aten.view_copy.default", "aten.reshape.default"),
    "aten._unsafe_view.default",
    *("aten.flatten.using_ints", "aten.unflatten.int"),
)
def _reshape(call: Call, x: Tensor) -> Tensor:
    return call.reshape(x, call.type.shape)


@translation("aten.squeeze.default", "aten.squeeze.dim", "aten.squeeze.dims")
def _squeeze(call: Call, x: Tensor) -> Tensor:
    given = call.attr("dim")
    dims = range(x.rank) if given is None else [given] if isinstance(given, int) else given
    axes = sorted({d % max(x.rank, 1) for d in dims if x.rank and x.shape[d] == 1})
    return call.op("Squeeze", x, call.ints(axes), shape=call.type.shape) if axes else x


@translation("aten.unsqueeze.default")
def _unsqueeze(call: Call, x: Tensor) -> Tensor:
    return call.op("Unsqueeze", x, call.ints([call.dim(x.rank + 1)]), shape=call.type.shape)


@translation("aten.permute.default", "aten.permute_copy.default")
def _permute(call: Call, x: Tensor) -> Tensor:
    return call.transpose(x, call.attr("dims"))


@translation("aten.t.default")
def _t(call: Call, x: Tensor) -> Tensor:
    return call.transpose(x, range(x.rank)[::-1])


@translation("aten.transpose.int")
def _transpose(call: Call, x: Tensor) -> Tensor:
    order = list(range(x.rank))
    if order:
        a, b = call.dim(x.rank, "dim0"), call.dim(x.rank, "dim1")
        order[a], order[b] = b, a
    return call.transpose(x, order)


@translation("aten.expand.default")
def _expand(call: Call, x: Tensor) -> Tensor:
    return call.expand(x, call.type.shape)


@translation("aten.repeat.default")
def _repeat(call: Call, x: Tensor) -> Tensor:
    repeats = call.attr("repeats")
    wide = call.reshape(x, (*(1,) * (len(repeats) - x.rank), *x.shape))
    return call.op("Tile", wide, call.ints(repeats), shape=call.type.shape)


@translation("aten.select.int")
def _select(call: Call, x: Tensor) -> Tensor:
    index = call.const(int(call.attr("index")), "int64")
    return call.op("Gather", x, index, shape=call.type.shape, axis=call.dim(x.rank))


@translation("aten.slice.Tensor")
def _slice(call: Call, x: Tensor) -> Tensor:
    start, end = call.attr("start") or 0, call.attr("end")
    dim = call.dim(x.rank)
    return call.slice(x, dim, start, x.shape[dim] if end is None else end, call.attr("step", 1))


@translation("aten.narrow_copy.default")
def _narrow(call: Call, x: Tensor) -> Tensor:
    dim = call.dim(x.rank)
    start = call.attr("start") % max(x.shape[dim], 1)
    return call.slice(x, dim, start, start + call.attr("length"))


@translation("aten.cat.default")
def _cat(call: Call, *tensors: Tensor) -> Tensor:
    """PyTorch passes over vectors without elements, whatever the rank of the others."""
    rank = len(call.type.shape)
    fitting = [call.cast(t, call.type.dtype) for t in tensors if t.rank == rank]
    return call.concat(fitting, call.dim(rank))


@translation("aten.stack.default")
def _stack(call: Call, *tensors: Tensor) -> Tensor:
    dim = call.dim(len(call.type.shape))
    shape = (*tensors[0].shape[:dim], 1, *tensors[0].shape[dim:])
    axes = call.ints([dim])
    return call.concat(
        [call.op("Unsqueeze", call.cast(t, call.type.dtype), axes, shape=shape) for t in tensors],
        dim,
    )


@translation("aten.split.Tensor", "aten.chunk.default", "aten.split_with_sizes.default")
def _split(call: Call, x: Tensor) -> Results:
    dim = call.dim(x.rank)
    results = [(x.dtype, v.type.shape) for v in call.node.outputs]
    sizes = call.ints([shape[dim] for _, shape in results])
    return call.ops("Split", x, sizes, results=results, axis=dim)


@translation("aten.unbind.int", "aten.unbind_copy.int")
def _unbind(call: Call, x: Tensor) -> Results:
    dim = call.dim(x.rank)
    return [
        call.op("Gather", x, call.const(i, "int64"), shape=value.type.shape, axis=dim)
        for i, value in enumerate(call.node.outputs)
    ]


@translation("aten.flip.default")
def _flip(call: Call, x: Tensor) -> Tensor:
    dims = [d % max(x.rank, 1) for d in call.attr("dims")] if x.rank else []
    if not dims:
        return x
    far = -(2**63)
    bounds = ([-1] * len(dims), [far] * len(dims), dims, [-1] * len(dims))
    return call.op("Slice", x, *map(call.ints, bounds))


@translation("aten.roll.default")
def _roll(call: Call, x: Tensor) -> Tensor:
    shifts, dims = call.attr("shifts"), call.attr("dims")
    if not dims:
        flat = _rolled(call, call.reshape(x, (_count(x),)), 0, shifts[0])
        return call.reshape(flat, x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        x = _rolled(call, x, dim % x.rank, shift)
    return x


def _count(x: Tensor) -> int:
    return _product(x.shape)


def _rolled(call: Call, x: Tensor, dim: int, shift: int) -> Tensor:
    size = x.shape[dim]
    at = -shift % size if size else 0
    if not at:
        return x
    return call.concat([call.slice(x, dim, at, size), call.slice(x, dim, 0, at)], dim)


@translation("aten.pixel_shuffle.default")
def _pixel_shuffle(call: Call, x: Tensor) -> Tensor:
    factor = int(call.attr("upscale_factor"))
    *batch, channels, height, width = x.shape
    images = call.reshape(x, (_product(batch), channels, height, width))
    shape = (images.shape[0], *call.type.shape[-3:])
    wide = call.op("DepthToSpace", images, shape=shape, blocksize=factor, mode="CRD")
    return call.reshape(wide, call.type.shape)


@translation("aten.pixel_unshuffle.default")
def _pixel_unshuffle(call: Call, x: Tensor) -> Tensor:
    factor = int(call.attr("downscale_factor"))
    *batch, channels, height, width = x.shape
    cut = (channels, height // factor, factor, width // factor, factor)
    parts = call.reshape(x, (_product(batch), *cut))
    return call.reshape(call.transpose(parts, (0, 1, 3, 5, 2, 4)), call.type.shape)


@translation("aten.channel_shuffle.default", "aten.native_channel_shuffle.default")
def _channel_shuffle(call: Call, x: Tensor) -> Tensor:
    groups = int(call.attr("groups"))
    batch, channels, *rest = x.shape
    parts = call.reshape(x, (batch, groups, channels // groups, *rest))
    return call.reshape(call.transpose(parts, (0, 2, 1, *range(3, parts.rank))), x.shape)


def _product(sizes: Sequence[int]) -> int:
    return math.prod(sizes)


@translation("aten.tril.default", "aten.triu.default")
def _triangle(call: Call, x: Tensor) -> Tensor:
    upper = int(call.node.op == "aten.triu.default")
    diagonal = call.const(int(call.attr("diagonal", 0)), "int64")
    return call.op("Trilu", x, diagonal, upper=upper)


# ---- ranges that overlap, diagonals, any strides: elements are taken by their positions ----


@translation(
    *("aten.as_strided.default", "aten.as_strided_copy.default", "aten.diagonal.default"),
    "aten.unfold.default",
)
def _by_position(call: Call, x: Tensor) -> Tensor:
    return take(call, x, call.builder.constant(positions(call, x.shape)))


@translation(
    *("aten.as_strided_scatter.default", "aten.diagonal_scatter.default"),
    *("aten.select_scatter.default", "aten.slice_scatter.default"),
)
def _scatter_by_position(call: Call, x: Tensor, source: Tensor) -> Tensor:
    where = positions(call, x.shape)
    return put(call, x, call.builder.constant(where), source)


def positions(call: Call, shape: Sequence[int]) -> torch.Tensor:
    """Returns, for a view operator or its scatter, which elements of the operand it means."""
    from npusim.ops import schema

    name = call.node.op.replace("_scatter", "").replace("_copy", "")
    view = {"aten.select.default": "aten.select.int", "aten.slice.default": "aten.slice.Tensor"}
    op = schema.resolve(view.get(name, name))
    flat = torch.arange(_product(shape)).reshape(tuple(shape))
    result: torch.Tensor = schema.call(op, [flat], call.node.attrs)
    return result.contiguous()


def take(call: Call, x: Tensor, where: Tensor) -> Tensor:
    """Returns the elements at row-major positions."""
    flat = call.reshape(x, (_count(x),))
    return call.op("Gather", flat, where, shape=where.shape, axis=0)


def put(call: Call, x: Tensor, where: Tensor, source: Tensor) -> Tensor:
    """Returns the tensor with the elements at row-major positions replaced."""
    flat = call.reshape(x, (_count(x),))
    count = _count(where)
    source = call.reshape(call.expand(call.cast(source, x.dtype), where.shape), (count,))
    index = call.reshape(where, (count,))
    return call.reshape(call.op("ScatterElements", flat, index, source, axis=0), x.shape)


# ---- padding ----


@translation("aten.constant_pad_nd.default")
def _constant_pad(call: Call, x: Tensor) -> Tensor:
    value = call.const(call.attr("value", 0), x.dtype)
    return call.op("Pad", x, call.ints(_pads(x, call.attr("pad"))), value, shape=call.type.shape)


@translation(
    *(f"aten.{kind}_pad{n}d.default" for kind in ("reflection", "replication") for n in (1, 2, 3))
)
def _mirror_pad(call: Call, x: Tensor) -> Tensor:
    mode = "reflect" if "reflection" in call.node.op else "edge"
    pads = call.ints(_pads(x, call.attr("padding")))
    return call.op("Pad", x, pads, shape=call.type.shape, mode=mode)


def _pads(x: Tensor, given: Sequence[int]) -> list[int]:
    """Returns PyTorch's pads, (front, back) of the last dimension first, as ONNX lists them."""
    front, back = [0] * x.rank, [0] * x.rank
    for i in range(len(given) // 2):
        front[-1 - i], back[-1 - i] = given[2 * i], given[2 * i + 1]
    return front + back
