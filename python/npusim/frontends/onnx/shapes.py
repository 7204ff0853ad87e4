"""Operators that move elements and make constants: reshape, slice, concatenate, pad, fill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import torch
from onnx import TensorProto, helper

from npusim.errors import ExportError, SymbolicSizeError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.files import RUNTIME_DOMAIN
from npusim.frontends.onnx.kinds import CARRIERS, numpy_dtype
from npusim.frontends.onnx.registry import Call, translation
from npusim.frontends.onnx.sizes import objects
from npusim.ir.symbolic import is_symbolic, lower, maximum, minimum, upper
from npusim.ops.fused import broadcast_shapes


@translation("Constant")
def _constant(call: Call) -> Tensor:
    from onnx import numpy_helper

    ((name, value),) = ((n, v) for n, v in call.attrs.items())
    if name == "sparse_value":
        dense = np.zeros(tuple(value.dims), numpy_helper.to_array(value.values).dtype)
        places = numpy_helper.to_array(value.indices)
        flat = places if places.ndim == 1 else np.ravel_multi_index(tuple(places.T), dense.shape)
        dense.reshape(-1)[flat] = numpy_helper.to_array(value.values)
        return call.graph.known(dense)
    if name == "value":
        return call.graph.known(value)
    if name.startswith("value_string"):
        raise ExportError("strings have no place in a graph.")
    dtype = np.float32 if name.startswith("value_float") else np.int64
    return call.graph.known(np.asarray(value, dtype))


@translation("Shape")
def _shape(call: Call, x: Tensor) -> Tensor:
    end = call.attrs.get("end")
    return call.graph.known_sizes(objects(x.shape[call.int("start") : end]))


@translation("Size")
def _size(call: Call, x: Tensor) -> Tensor:
    return call.graph.known_sizes(objects([math.prod(x.shape)]).reshape(()))


@translation("Reshape")
def _reshape(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    wanted = shape.ints("the shape of Reshape")
    if not call.int("allowzero"):
        wanted = [x.shape[i] if d == 0 else d for i, d in enumerate(wanted)]
    if -1 in wanted:
        rest = math.prod(d for d in wanted if d != -1)
        count = math.prod(x.shape)
        wanted[wanted.index(-1)] = count // rest if rest else 0
    if math.prod(wanted) != math.prod(x.shape):
        raise ExportError(f"{list(x.shape)} cannot be seen as {wanted}.")
    return x.view(wanted)


@translation("Flatten")
def _flatten(call: Call, x: Tensor) -> Tensor:
    axis = call.int("axis", 1)
    axis = axis + x.rank if axis < 0 else axis
    return x.view((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def _axes(call: Call, given: Tensor | None) -> list[int] | None:
    if given is not None:
        return given.ints(f"the axes of {call.op}")
    return call.ints("axes")


@translation("Squeeze")
def _squeeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = _axes(call, axes)
    if chosen is None:
        dropped = {i for i, d in enumerate(x.shape) if d == 1}
    else:
        dropped = {a % x.rank for a in chosen}
    if any(x.shape[d] != 1 for d in dropped):
        raise ExportError(f"{list(x.shape)} has more than one element along {sorted(dropped)}.")
    return x.view([d for i, d in enumerate(x.shape) if i not in dropped])


@translation("Unsqueeze")
def _unsqueeze(call: Call, x: Tensor, axes: Tensor | None = None) -> Tensor:
    chosen = _axes(call, axes) or []
    rank = x.rank + len(chosen)
    added = {a % rank for a in chosen}
    extents = iter(x.shape)
    return x.view([1 if i in added else next(extents) for i in range(rank)])


@translation("Transpose")
def _transpose(call: Call, x: Tensor) -> Tensor:
    order = call.ints("perm", list(reversed(range(x.rank))))
    return x.permute(order or [])


@translation("Concat")
def _concat(call: Call, *tensors: Tensor) -> Tensor:
    return call.graph.op("cat.default", list(tensors), call.int("axis", 1), kind=tensors[0].kind)


@translation("Split")
def _split(call: Call, x: Tensor, split: Tensor | None = None) -> Sequence[Tensor]:
    axis = call.int("axis") % x.rank
    sizes = split.ints("the sizes of Split") if split is not None else call.ints("split")
    if sizes is None:
        size = -(-x.shape[axis] // call.outputs)
        sizes = [minimum(size, x.shape[axis] - i * size) for i in range(call.outputs)]
    starts = accumulate(sizes, initial=0)
    return [x.slice(axis, s, s + n) for s, n in zip(starts, sizes, strict=False)]


@translation("Slice")
def _slice(
    call: Call,
    x: Tensor,
    starts: Tensor | None = None,
    ends: Tensor | None = None,
    axes: Tensor | None = None,
    steps: Tensor | None = None,
) -> Tensor:
    named = zip(("starts", "ends", "axes", "steps"), (starts, ends, axes, steps), strict=True)
    first, last, dims, strides = (
        call.ints(n) if t is None else t.ints(f"the {n} of Slice") for n, t in named
    )
    first, last = first or [], last or []
    dims = list(range(len(first))) if dims is None else dims
    strides = [1] * len(first) if strides is None else strides
    for start, end, dim, step in zip(first, last, dims, strides, strict=True):
        x = _ranged(x, dim % x.rank, slice(start, end, step))
    return x


def _ranged(x: Tensor, dim: int, wanted: slice) -> Tensor:
    if is_symbolic((x.shape[dim], wanted.start, wanted.stop)):
        return _ranged_sizes(x, dim, wanted)
    start, end, step = wanted.indices(x.shape[dim])
    if step < 0:  # the same elements forwards, then turned
        count = len(range(start, end, step))
        low = start + (count - 1) * step if count else 0
        x = x.op("slice.Tensor", dim, low, start + 1 if count else low, -step)
        return x.op("flip.default", [dim])
    return x.slice(dim, start, max(end, start), step)


def _ranged_sizes(x: Tensor, dim: int, wanted: slice) -> Tensor:
    """Returns a range of a dimension where its size, or the range's, is symbolic."""
    size, step = x.shape[dim], wanted.step
    if step == -1 and wanted.start == -1 and upper(wanted.stop) < -upper(size):
        return x.op("flip.default", [dim])  # the whole dimension, from the end
    if step <= 0:
        raise SymbolicSizeError(f"a range of steps of {step} over {size} elements")
    start, end = (_place(place, size) for place in (wanted.start, wanted.stop))
    return x.slice(dim, start, maximum(start, end), step)


def _place(place: int, size: int) -> int:
    """Returns an end of a range within a dimension; negative ones count from behind."""
    if lower(place) >= upper(size) or upper(place) < -upper(size):
        return size if lower(place) >= 0 else 0
    return minimum(maximum(place + size if place < 0 else place, 0), size)


@translation("Expand")
def _expand(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    return x.expand(broadcast_shapes(x.shape, tuple(shape.ints("the shape of Expand"))))


@translation("Tile")
def _tile(call: Call, x: Tensor, repeats: Tensor) -> Tensor:
    return x.op("repeat.default", repeats.ints("the repeats of Tile"))


@translation("ConstantOfShape")
def _constant_of_shape(call: Call, shape: Tensor) -> Tensor:
    value = np.asarray(call.attrs.get("value", np.zeros(1, np.float32))).reshape(-1)[0]
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    wanted = shape.ints("the shape of ConstantOfShape")
    filled = call.graph.full(wanted, value.item(), CARRIERS[kind])
    return call.graph.retyped(filled, kind)


@translation("EyeLike")
def _eye_like(call: Call, x: Tensor) -> Tensor:
    kind = call.int("dtype", x.kind)
    rows, columns = x.shape
    return call.graph.known(np.eye(rows, columns, call.int("k")).astype(numpy_dtype(kind)))


@translation("Range")
def _range(call: Call, start: Tensor, limit: Tensor, step: Tensor) -> Tensor:
    bounds = (start, limit, step)
    if any(t.sizes is not None for t in bounds) and step.dtype == "int64":
        low, high, by = (t.ints("a bound of Range")[0] for t in bounds)
        return call.graph.op("arange.start_step", low, high, by, dtype=torch.int64)
    first, last, delta = (t.values("a bound of Range").reshape(-1)[0] for t in bounds)
    count = max(math.ceil((last - first) / delta), 0)
    data = (first + np.arange(count) * delta).astype(start.values("Range").dtype)
    return call.graph.known(data)


@translation("Trilu")
@translation("Trilu", domain=RUNTIME_DOMAIN)
def _trilu(call: Call, x: Tensor, k: Tensor | None = None) -> Tensor:
    diagonal = 0 if k is None else k.ints("the diagonal of Trilu")[0]
    rows, columns = x.shape[-2:]
    if not is_symbolic((rows, columns)):
        diagonal = max(-rows, min(diagonal, columns))
    return x.op("triu.default" if call.int("upper", 1) else "tril.default", diagonal)


@translation("Pad")
def _pad(
    call: Call,
    x: Tensor,
    pads: Tensor | None = None,
    value: Tensor | None = None,
    axes: Tensor | None = None,
) -> Tensor:
    amounts = (call.ints("pads") or []) if pads is None else pads.ints("the amounts of Pad")
    dims = list(range(x.rank)) if axes is None else [a % x.rank for a in axes.ints("axes of Pad")]
    mode = call.str("mode", "constant")
    fill = value.values("the value of Pad").item() if value is not None else call.float("value")
    half = len(amounts) // 2
    for dim, before, after in zip(dims, amounts[:half], amounts[half:], strict=True):
        x = pad_dim(x, dim, before, after, mode, fill)
    return x


def pad_dim(
    x: Tensor, dim: int, before: int, after: int, mode: str = "constant", fill: float = 0.0
) -> Tensor:
    """Returns x with elements added (or taken away) at the ends of a dimension."""
    if not is_symbolic((before, after)) and before == after == 0:
        return x
    if mode == "constant":
        behind = [0, 0] * (x.rank - 1 - dim)
        amount = int(fill) if x.dtype.startswith(("int", "uint")) else fill
        return x.op("constant_pad_nd.default", [*behind, before, after], amount)
    count = x.shape[dim]
    if is_symbolic(count):
        return _continued(x, dim, before, after, mode)
    cut = slice(max(-before, 0), count - max(-after, 0))
    modes = {"reflect": "reflect", "edge": "edge", "wrap": "wrap"}
    places = np.pad(np.arange(count)[cut], (max(before, 0), max(after, 0)), modes[mode])  # type: ignore[call-overload]
    return x.op("index_select.default", dim, x.graph.known(places.astype(np.int64)))


def _continued(x: Tensor, dim: int, before: int, after: int, mode: str) -> Tensor:
    """Returns what `pad_dim` does of a number of elements that calls choose."""
    x = x.slice(dim, maximum(-before, 0), x.shape[dim] - maximum(-after, 0))
    before, after = maximum(before, 0), maximum(after, 0)
    count, graph = x.shape[dim], x.graph
    place = graph.line(before + count + after) - graph.full((1,), before, "int64")
    last = graph.full((1,), count - 1, "int64")
    if mode == "reflect":
        if max(upper(before), upper(after)) >= lower(count):
            raise SymbolicSizeError(
                f"a reflection of {maximum(before, after)} elements needs more than that, and "
                f"there may be {lower(count)}"
            )
        place = last - (last - place.op("abs.default")).op("abs.default")
    elif mode == "edge":
        place = place.op("clamp.default", 0).op("minimum.default", last)
    else:
        place = place.op("remainder.Tensor", graph.full((1,), count, "int64"))
    return x.op("index_select.default", dim, place)


@translation("CenterCropPad")
def _center_crop_pad(call: Call, x: Tensor, shape: Tensor) -> Tensor:
    dims = call.ints("axes", list(range(x.rank))) or []
    for dim, wanted in zip(dims, shape.ints("the shape of CenterCropPad"), strict=True):
        dim, have = dim % x.rank, x.shape[dim % x.rank]
        if have > wanted:
            start = (have - wanted) // 2
            x = x.slice(dim, start, start + wanted)
        else:
            before = (wanted - have) // 2
            x = pad_dim(x, dim, before, wanted - have - before)
    return x


@translation("DepthToSpace")
def _depth_to_space(call: Call, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    size = call.int("blocksize")
    if call.str("mode", "DCR") == "CRD":
        return x.op("pixel_shuffle.default", size)
    blocks = x.view((n, size, size, c // (size * size), h, w)).permute((0, 3, 4, 1, 5, 2))
    return blocks.view((n, c // (size * size), h * size, w * size))


@translation("SpaceToDepth")
def _space_to_depth(call: Call, x: Tensor) -> Tensor:
    n, c, h, w = x.shape
    size = call.int("blocksize")
    blocks = x.view((n, c, h // size, size, w // size, size))
    depth_first = call.str("mode", "DCR") == "DCR"
    blocks = blocks.permute((0, 3, 5, 1, 2, 4) if depth_first else (0, 1, 3, 5, 2, 4))
    return blocks.view((n, c * size * size, h // size, w // size))


@translation("OneHot")
def _one_hot(call: Call, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    (count,) = depth.ints("the depth of OneHot")
    axis = call.int("axis", -1) % (indices.rank + 1)
    wide = indices.to("int64", TensorProto.INT64)
    wide = call.graph.op("where.self", wide < 0, wide + count, wide)
    places = [1] * (indices.rank + 1)
    places[axis] = count
    line = call.graph.line(count).view(places)
    hot = wide.view((*indices.shape[:axis], 1, *indices.shape[axis:])).equals(line)
    off, on = (values.slice(0, i, i + 1) for i in (0, 1))
    shape = [1] * (indices.rank + 1)
    return call.graph.op("where.self", hot, on.view(shape), off.view(shape), kind=values.kind)


@translation("ReverseSequence")
def _reverse_sequence(call: Call, x: Tensor, lengths: Tensor) -> Tensor:
    batch, time = call.int("batch_axis", 1), call.int("time_axis")
    shape = [1] * x.rank
    shape[time] = x.shape[time]
    step = call.graph.line(x.shape[time]).view(shape)
    shape = [1] * x.rank
    shape[batch] = x.shape[batch]
    length = lengths.to("int64", TensorProto.INT64).view(shape)
    turned = length - 1 - step
    places = call.graph.op("where.self", step < length, turned, step)
    return x.op("gather.default", time, places.expand(x.shape))
