"""Shape operators: most are another view of the same memory and cost nothing.

Owns the aliasing ops (view, permute, slice …) and the ones that move elements without computing
(cat, pad, repeat, roll …), which become strided copies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.symbolic import maximum, minimum, upper
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, element_bits
from npusim.lowering.view import View

_ALL = ("float32", "float16", "bfloat16", "float64", "int64", "int32", "bool")
_SOME = ("float32", "bfloat16", "int64", "bool")


def _first(node: Node, low: Lowering) -> View:
    assert node.inputs[0] is not None
    return low.view(node.inputs[0])


def _dim(value: object, rank: int) -> int:
    assert isinstance(value, int)
    return value + rank if value < 0 else value


def _dims(value: object, rank: int) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(_dim(d, rank) for d in value)


def _view(node: Node, low: Lowering) -> None:
    """Any op that keeps the elements in row-major order: reshape, flatten, squeeze …"""
    x = _first(node, low)
    shaped = x.reshape(node.type.shape)
    if shaped is None:
        shaped = low.dense(x).reshape(node.type.shape)
    assert shaped is not None
    low.define(node.output, shaped)


def _permute(node: Node, low: Lowering) -> None:
    x = _first(node, low)
    low.define(node.output, x.permute(_dims(node.attrs["dims"], x.rank)))


def _transpose(node: Node, low: Lowering) -> None:
    x = _first(node, low)
    dims = list(range(x.rank))
    if x.rank > 1:
        a, b = (_dim(node.attrs.get(k, d), x.rank) for k, d in (("dim0", 0), ("dim1", 1)))
        dims[a], dims[b] = dims[b], dims[a]
    low.define(node.output, x.permute(dims))


def _unsqueeze(node: Node, low: Lowering) -> None:
    x = _first(node, low)
    low.define(node.output, x.unsqueeze(_dim(node.attrs["dim"], x.rank + 1)))


def _squeeze(node: Node, low: Lowering) -> None:
    """Drops dimensions of extent 1; the strides of the others stay."""
    x = _first(node, low)
    if "dim" not in node.attrs:
        chosen = tuple(range(x.rank))
    elif isinstance(node.attrs["dim"], tuple):
        chosen = _dims(node.attrs["dim"], x.rank)
    else:
        chosen = (_dim(node.attrs["dim"], x.rank),) if x.rank else ()
    keep = [d for d in range(x.rank) if d not in chosen or x.shape[d] != 1]
    low.define(node.output, x.permute(keep))


def _expand(node: Node, low: Lowering) -> None:
    low.define(node.output, _first(node, low).expand(node.type.shape))


def slice_bounds(node: Node, size: int) -> tuple[int, int]:
    """Returns (first, step) of a slice of a dimension of that size."""
    start, step = node.attrs.get("start"), node.attrs.get("step", 1)
    start = 0 if start is None else start
    assert isinstance(start, int) and isinstance(step, int)
    return minimum(maximum(start + size if start < 0 else start, 0), size), step


def _slice(node: Node, low: Lowering) -> None:
    x = _first(node, low)
    dim = _dim(node.attrs.get("dim", 0), x.rank)
    start, step = slice_bounds(node, x.shape[dim])
    low.define(node.output, x.slice(dim, start, node.type.shape[dim], step))


def _select(node: Node, low: Lowering) -> None:
    x = _first(node, low)
    dim = _dim(node.attrs["dim"], x.rank)
    low.define(node.output, x.select(dim, _dim(node.attrs["index"], x.shape[dim])))


def _split(node: Node, low: Lowering) -> None:
    """split, split_with_sizes, chunk, unbind: the outputs' own shapes say where the cuts are."""
    x = _first(node, low)
    dim = _dim(node.attrs.get("dim", 0), x.rank)
    start = 0
    for value in node.outputs:
        if value.type.rank < x.rank:
            low.define(value, x.select(dim, start))
            start += 1
        else:
            size = value.type.shape[dim]
            low.define(value, x.slice(dim, start, size))
            start += size


def _diagonal(node: Node, low: Lowering) -> None:
    low.define(node.output, _diagonal_view(node, _first(node, low), node.type.shape[-1]))


def _diagonal_view(node: Node, x: View, size: int) -> View:
    offset = node.attrs.get("offset", 0)
    assert isinstance(offset, int)
    a, b = (_dim(node.attrs.get(k, d), x.rank) for k, d in (("dim1", 0), ("dim2", 1)))
    start = offset * x.strides[b] if offset >= 0 else -offset * x.strides[a]
    return x.diagonal_of(a, b, size, start * x.element_size if size != 0 else 0)


def _unfold(node: Node, low: Lowering) -> None:
    """Tensor.unfold: sliding windows along a dimension as a new last one; overlapping, a view."""
    x = _first(node, low)
    if x.rank == 0:
        x = x.unsqueeze(0)
    dim = _dim(node.attrs["dimension"], x.rank)
    step, size = node.attrs["step"], node.attrs["size"]
    assert isinstance(step, int) and isinstance(size, int)
    windows = (x.shape[dim] - size) // step + 1
    strides = list(x.strides)
    last = strides[dim]
    strides[dim] *= step
    shape = (*x.shape[:dim], windows, *x.shape[dim + 1 :], size)
    y = replace(x, shape=shape, strides=(*strides, last))
    low.define(node.output, y if y.rank == node.type.rank else y.select(0, 0))


def _as_strided(node: Node, low: Lowering) -> None:
    """Any strides over the elements in row-major order; a view, which may overlap itself."""
    x = low.dense(_first(node, low))
    offset = node.attrs.get("storage_offset") or 0
    size, stride = node.attrs["size"], node.attrs["stride"]
    assert isinstance(offset, int) and isinstance(size, tuple) and isinstance(stride, tuple)
    start = x.offset + (0 if 0 in size else offset * x.element_size)
    low.define(node.output, replace(x, offset=start, shape=size, strides=stride))  # type: ignore[arg-type]


def _as_strided_supported(node: Node, graph: Graph) -> str | None:
    """Refuses strides that lead out of the operand, which has no memory around it."""
    assert node.inputs[0] is not None
    size, stride = node.attrs["size"], node.attrs["stride"]
    last = node.attrs.get("storage_offset") or 0
    assert isinstance(size, tuple) and isinstance(stride, tuple) and isinstance(last, int)
    first = last
    for count, step in zip(size, stride, strict=True):
        assert isinstance(count, int) and isinstance(step, int)
        first, last = first + min(0, (count - 1) * step), last + max(0, (count - 1) * step)
    inside = 0 in size or (first >= 0 and last < graph.types[node.inputs[0]].numel)
    return None if inside else "strides that lead out of the operand"


def _as_strided_scatter(node: Node, low: Lowering) -> None:
    """The first operand with the second at the places that as_strided would show."""
    x, src = low.inputs(node)
    assert x is not None and src is not None
    y = low.dense(low.updated(node.output, x))
    offset, stride = node.attrs.get("storage_offset") or 0, node.attrs["stride"]
    assert isinstance(offset, int) and isinstance(stride, tuple)
    start = y.offset + (offset * y.element_size if src.numel != 0 else 0)
    part = replace(y, offset=start, shape=src.shape, strides=stride)  # type: ignore[arg-type]
    low.copy(low.cast(src, y.dtype), part)


def _identity(node: Node, low: Lowering) -> None:
    low.define(node.output, _first(node, low))


# Ops that move elements


def _cat(node: Node, low: Lowering) -> None:
    """Copies what is not there already; nothing where all lies beside each other anyway."""
    dim = _dim(node.attrs.get("dim", 0), node.type.rank)
    # PyTorch lets an empty 1-D tensor stand in any concatenation.
    views = [x for x in low.inputs(node) if x is not None and x.rank == node.type.rank]
    views = [low.cast(x, node.type.dtype) for x in views]
    joined = low.joined(views, dim) if views else None
    if joined is not None and len(views) > 1:
        low.define(node.output, joined)
        return
    y = low.whole(node)
    low.define(node.output, y)
    start = 0
    for x in views:
        part = y.slice(dim, start, x.shape[dim])
        if (x.buffer, x.offset, x.strides) != (part.buffer, part.offset, part.strides):
            low.copy(x, part)
        start += x.shape[dim]


def _stack(node: Node, low: Lowering) -> None:
    y = low.result(node.output, strided=True)
    dim = _dim(node.attrs.get("dim", 0), y.rank)
    for index, x in enumerate(low.inputs(node)):
        assert x is not None
        low.copy(low.cast(x, y.dtype), y.select(dim, index))


def _flip(node: Node, low: Lowering) -> None:
    x = _first(node, low)
    for dim in _dims(node.attrs["dims"], x.rank):
        x = x.slice(dim, x.shape[dim] - 1, x.shape[dim], -1)
    low.copy(x, low.result(node.output, strided=True))


def _roll(node: Node, low: Lowering) -> None:
    """Rolls one dimension at a time; without dims the flattened tensor."""
    x = _first(node, low)
    shifts, dims = node.attrs["shifts"], node.attrs.get("dims", ())
    shifts = (shifts,) if isinstance(shifts, int) else shifts
    dims = (dims,) if isinstance(dims, int) else dims
    assert isinstance(shifts, tuple) and isinstance(dims, tuple)
    flat = not dims
    if flat:
        x = low.dense(x).reshape((x.numel,)) or x
        dims = (0,)
    y = x
    for shift, dim in zip(shifts, dims, strict=True):
        assert isinstance(shift, int)
        y = _rolled(low, y, _dim(dim, x.rank), shift)
    if flat:
        y = y.reshape(node.type.shape) or y
    low.define(node.output, y)


def _rolled(low: Lowering, x: View, dim: int, shift: int) -> View:
    size = x.shape[dim]
    y = low.temp(TensorType(x.dtype, x.shape).with_order(x.order))
    cut = shift % size if size != 0 else 0
    low.copy(x.slice(dim, 0, size - cut), y.slice(dim, cut, size - cut))
    low.copy(x.slice(dim, size - cut, cut), y.slice(dim, 0, cut))
    return y


def _repeat(node: Node, low: Lowering) -> None:
    """Writes y as [repeat, size] pairs and copies x broadcast over the repeats."""
    x, y = _first(node, low), low.result(node.output, strided=True)
    x = replace(
        x,
        shape=(1,) * (y.rank - x.rank) + x.shape,
        strides=(0,) * (y.rank - x.rank) + x.strides,
    )
    shape: list[int] = []
    ys: list[int] = []
    xs: list[int] = []
    for size, total, x_stride, y_stride in zip(x.shape, y.shape, x.strides, y.strides, strict=True):
        shape += [total // size if size != 0 else 0, size]
        ys += [y_stride * size, y_stride]
        xs += [0, x_stride]
    low.copy(
        replace(x, shape=tuple(shape), strides=tuple(xs)),
        replace(y, shape=tuple(shape), strides=tuple(ys)),
    )


def _pad_amounts(node: Node, rank: int) -> list[tuple[int, int]]:
    """Returns (before, after) for every dimension; ATen lists them from the last one on."""
    pad = node.attrs.get("pad", node.attrs.get("padding"))
    assert isinstance(pad, tuple)
    amounts = [(0, 0)] * rank
    for index in range(len(pad) // 2):
        before, after = pad[2 * index], pad[2 * index + 1]
        assert isinstance(before, int) and isinstance(after, int)
        amounts[rank - 1 - index] = (before, after)
    return amounts


def _constant_pad(node: Node, low: Lowering) -> None:
    """Fills the border and copies the middle; negative amounts crop."""
    x, y = _first(node, low), low.result(node.output, strided=True)
    value = node.attrs.get("value")
    value = 0 if value is None else value  # -0.0 is a number of its own
    assert isinstance(value, (int, float))
    amounts = _pad_amounts(node, x.rank)
    if any(upper(amount) > 0 for pair in amounts for amount in pair):
        low.fill(y, element_bits(value, y.dtype))
    source, target = x, y
    for dim, (before, after) in enumerate(amounts):
        size = x.shape[dim] + minimum(before, 0) + minimum(after, 0)
        source = source.slice(dim, maximum(-before, 0), size)
        target = target.slice(dim, maximum(before, 0), size)
    low.copy(source, target)


def _mirror_pad(mode: str) -> Callable[[Node, Lowering], None]:
    """reflection, replication and circular padding: dimension by dimension, in place in y."""

    def lower(node: Node, low: Lowering) -> None:
        x, y = _first(node, low), low.result(node.output, strided=True)
        amounts = _pad_amounts(node, x.rank)
        middle = y
        for dim, (before, _) in enumerate(amounts):
            middle = middle.slice(dim, before, x.shape[dim])
        low.copy(x, middle)
        region = middle
        for dim, (before, after) in enumerate(amounts):
            full = replace(
                region,
                offset=region.offset - before * y.strides[dim] * y.element_size,
                shape=(*region.shape[:dim], y.shape[dim], *region.shape[dim + 1 :]),
            )
            _fill_edges(low, full, dim, before, after, mode)
            region = full

    return lower


def _fill_edges(low: Lowering, y: View, dim: int, before: int, after: int, mode: str) -> None:
    size = y.shape[dim] - before - after
    end = before + size
    if mode == "replicate":
        edges = [(before, 0, before, 0), (end - 1, 0, after, end)]
    elif mode == "reflect":
        edges = [(2 * before, -1, before, 0), (end - 2, -1, after, end)]
    else:
        edges = [(before + size - before, 1, before, 0), (before, 1, after, end)]
    for start, step, count, target in edges:
        if count == 0:
            continue
        source = (
            y.slice(dim, start, count, step)
            if step
            else y.slice(dim, start, 1).expand((*y.shape[:dim], count, *y.shape[dim + 1 :]))
        )
        low.copy(source, y.slice(dim, target, count))


def _slice_scatter(node: Node, low: Lowering) -> None:
    x, src = low.inputs(node)
    assert x is not None and src is not None
    y = low.updated(node.output, x)
    dim = _dim(node.attrs.get("dim", 0), y.rank)
    start, step = slice_bounds(node, x.shape[dim])
    low.copy(low.cast(src, y.dtype), y.slice(dim, start, src.shape[dim], step))


def _copy(node: Node, low: Lowering) -> None:
    """The functional form of `Tensor.copy_`: the second operand, as the first would hold it."""
    src = low.inputs(node)[1]
    assert src is not None
    y = low.result(node.output, strided=True)
    low.copy(low.cast(src, y.dtype).expand(y.shape), y)


def _select_scatter(node: Node, low: Lowering) -> None:
    x, src = low.inputs(node)
    assert x is not None and src is not None
    y = low.updated(node.output, x)
    dim = _dim(node.attrs["dim"], y.rank)
    index = _dim(node.attrs["index"], y.shape[dim])
    low.copy(low.cast(src, y.dtype), y.select(dim, index))


def _diagonal_scatter(node: Node, low: Lowering) -> None:
    x, src = low.inputs(node)
    assert x is not None and src is not None
    y = low.updated(node.output, x)
    low.copy(low.cast(src, y.dtype), _diagonal_view(node, y, src.shape[-1]))


def _move(node: Node, low: Lowering, split: tuple[int, ...], dims: tuple[int, ...]) -> None:
    """Copies elements once to where they go, in whatever order the result is stored.

    Args:
        split: the shape of x with the dimensions cut that are moved apart.
        dims: their permutation; merged again they are the result.
    """
    x = _first(node, low)
    parts = x.reshape(split)
    if parts is None:
        parts = low.dense(x).reshape(split)
    assert parts is not None
    moved = parts.permute(dims)
    target = low.result(node.output).reshape(moved.shape)
    assert target is not None  # dimensions of a dense value are cut, not merged
    low.copy(moved, target)


def _pixel_shuffle(node: Node, low: Lowering) -> None:
    *lead, c, h, w = _first(node, low).shape
    r, n = node.attrs["upscale_factor"], len(lead)
    assert isinstance(r, int)
    dims = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    _move(node, low, (*lead, c // (r * r), r, r, h, w), dims)


def _pixel_unshuffle(node: Node, low: Lowering) -> None:
    *lead, c, h, w = _first(node, low).shape
    r, n = node.attrs["downscale_factor"], len(lead)
    assert isinstance(r, int)
    dims = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    _move(node, low, (*lead, c, h // r, r, w // r, r), dims)


def _channel_shuffle(node: Node, low: Lowering) -> None:
    b, c, *rest = _first(node, low).shape
    groups = node.attrs["groups"]
    assert isinstance(groups, int)
    _move(node, low, (b, groups, c // groups, *rest), (0, 2, 1, *range(3, 3 + len(rest))))


Lower = Callable[[Node, Lowering], None]


def _op(
    name: str, lower: Lower, *cases: Case, dtypes: tuple[str, ...] = _SOME, **rest: object
) -> None:
    register(OpDef(f"aten.{name}", lower=lower, cases=cases, dtypes=dtypes, **rest))  # type: ignore[arg-type]


_X = ((2, 3, 4),)
for _name in ("view.default", "_unsafe_view.default", "reshape.default"):
    _size = "shape" if _name.startswith("reshape") else "size"
    _op(_name, _view, Case(_X, {_size: (6, 4)}), Case(_X, {_size: (4, 3, 2)}), dtypes=_ALL)
_op("flatten.using_ints", _view, Case(_X, {"start_dim": 1}))
_op("unflatten.int", _view, Case(_X, {"dim": 2, "sizes": (2, 2)}))
for _name in ("permute.default", "permute_copy.default"):
    _op(_name, _permute, Case(_X, {"dims": (2, 0, 1)}))
_op("transpose.int", _transpose, Case(_X, {"dim0": 0, "dim1": -1}))
_op("t.default", _transpose, Case(((3, 4),)), Case(((4,),)))
_op("unsqueeze.default", _unsqueeze, Case(_X, {"dim": -1}), Case(_X, {"dim": 0}))
_op("squeeze.dim", _squeeze, Case(((2, 1, 3),), {"dim": 1}), Case(((2, 3),), {"dim": 0}))
_op("squeeze.dims", _squeeze, Case(((2, 1, 3, 1),), {"dim": (1, 3)}))
_op("squeeze.default", _squeeze, Case(((2, 1, 3, 1),)))
_op("expand.default", _expand, Case(((3, 1),), {"size": (2, 3, 4)}))
_op("slice.Tensor", _slice, Case(_X, {"dim": 2, "start": 1, "end": 4, "step": 2}))
_op("select.int", _select, Case(_X, {"dim": 1, "index": -1}))
_op("narrow_copy.default", _slice, Case(_X, {"dim": 2, "start": 1, "length": 2}))
_op("split.Tensor", _split, Case(((2, 7),), {"split_size": 3, "dim": 1}))
_op("split_with_sizes.default", _split, Case(((2, 7),), {"split_sizes": (3, 4), "dim": 1}))
_op("chunk.default", _split, Case(((2, 7),), {"chunks": 3, "dim": -1}))
for _name in ("unbind.int", "unbind_copy.int"):
    _op(_name, _split, Case(_X, {"dim": 1}))
_op("diagonal.default", _diagonal, Case(((4, 5),), {"offset": 1}))
_op("unfold.default", _unfold, Case(((2, 9),), {"dimension": 1, "size": 3, "step": 2}),
    Case(((),), {"dimension": 0, "size": 1, "step": 1}, "scalar"))  # fmt: skip
for _name in ("as_strided.default", "as_strided_copy.default"):
    _op(_name, _as_strided,
        Case(((4, 5),), {"size": (2, 3, 2), "stride": (3, 1, 2), "storage_offset": 1}, "overlap"),
        Case(((4, 5),), {"size": (5, 4), "stride": (1, 5)}, "transposed"),
        supports=_as_strided_supported)  # fmt: skip
_op("as_strided_scatter.default", _as_strided_scatter,
    Case(((4, 5), (2, 3)), {"size": (2, 3), "stride": (7, 2), "storage_offset": 1}),
    supports=_as_strided_supported)  # fmt: skip
for _name in ("alias.default", "clone.default", "contiguous.default", "detach.default"):
    _op(_name, _identity, Case(_X))
_op("lift_fresh_copy.default", _identity, Case(_X))

_op("cat.default", _cat, Case(((2, 3), (2, 5)), {"tensors": 2, "dim": 1}))
_op("stack.default", _stack, Case(((2, 3), (2, 3)), {"tensors": 2, "dim": -1}))
_op("flip.default", _flip, Case(_X, {"dims": (0, 2)}))
_op(
    "roll.default", _roll, Case(_X, {"shifts": (1, -2), "dims": (0, 2)}), Case(_X, {"shifts": (5,)})
)
_op("repeat.default", _repeat, Case(((2, 3),), {"repeats": (2, 1, 3)}))
_op("constant_pad_nd.default", _constant_pad, Case(_X, {"pad": (1, 2, 0, 1), "value": 3}),
    Case(_X, {"pad": (-1, 2)}, "crop"))  # fmt: skip
for _rank in (1, 2, 3):
    _shape = ((2, 3, *(5, 6, 7)[:_rank]),)
    _pad = (2, 1, 1, 2, 1, 1)[: 2 * _rank]
    for _mode, _kind in (("reflection", "reflect"), ("replication", "replicate")):
        _op(f"{_mode}_pad{_rank}d.default", _mirror_pad(_kind), Case(_shape, {"padding": _pad}),
            dtypes=("float32",))  # fmt: skip
_op("copy.default", _copy, Case(((2, 3, 4), (3, 1))))
_op("slice_scatter.default", _slice_scatter,
    Case(((4, 5), (2, 5)), {"dim": 0, "start": 1, "end": 3}))  # fmt: skip
_op("select_scatter.default", _select_scatter, Case(((4, 5), (4,)), {"dim": 1, "index": 2}))
_op("diagonal_scatter.default", _diagonal_scatter, Case(((4, 5), (4,)), {"offset": 1}))
_op("pixel_shuffle.default", _pixel_shuffle, Case(((1, 8, 3, 4),), {"upscale_factor": 2}))
_op("pixel_unshuffle.default", _pixel_unshuffle, Case(((1, 2, 6, 4),), {"downscale_factor": 2}))
_op("channel_shuffle.default", _channel_shuffle, Case(((2, 6, 3, 4),), {"groups": 3}))
_op("native_channel_shuffle.default", _channel_shuffle, Case(((2, 6, 3, 4),), {"groups": 3}))
