"""Types of the operators that look at a tensor differently: reshapes, permutations, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from npusim.ir.symbolic import is_symbolic, maximum, minimum
from npusim.ir.types import TensorType
from npusim.ops.inference.promotion import require
from npusim.ops.inference.sizes import Shape, axes, axis, differ, numel, surely_less

Rule = Callable[..., Any]


def whole_shape(size: Sequence[int], elements: int) -> Shape:
    """Returns a shape whose one -1 is what is left of the elements; ShapeError if none fits."""
    known = prod(d for d in size if d != -1)
    require(not any(surely_less(d, 0) and d != -1 for d in size), f"{list(size)} is no shape.")
    if -1 not in size:
        require(not differ(known, elements), f"{elements} elements do not fit {list(size)}.")
        return tuple(size)
    require(list(size).count(-1) == 1, f"{list(size)} leaves several sizes open.")
    require(known != 0, f"{list(size)} leaves a size open that anything fits.")
    rest = elements // known
    require(not differ(rest * known, elements), f"{elements} elements do not fit {list(size)}.")
    return tuple(rest if d == -1 else d for d in size)


def _view(x: TensorType, size: Sequence[int]) -> TensorType:
    return TensorType(x.dtype, whole_shape(size, numel(x.shape)))


def _flatten(x: TensorType, start: int, end: int) -> TensorType:
    if x.rank == 0:
        axis(start, 0), axis(end, 0)
        return TensorType(x.dtype, (1,))
    first, last = axis(start, x.rank), axis(end, x.rank)
    require(first <= last, f"start_dim {start} is after end_dim {end}.")
    middle = prod(x.shape[first : last + 1])
    return TensorType(x.dtype, (*x.shape[:first], middle, *x.shape[last + 1 :]))


def _unflatten(x: TensorType, dim: int, sizes: Sequence[int]) -> TensorType:
    require(x.rank > 0 and len(sizes) > 0, "there is nothing to unflatten.")
    d = axis(dim, x.rank)
    inner = whole_shape(sizes, x.shape[d])
    return TensorType(x.dtype, (*x.shape[:d], *inner, *x.shape[d + 1 :]))


def _permute(x: TensorType, dims: Sequence[int]) -> TensorType:
    require(len(dims) == x.rank, f"{tuple(dims)} does not permute {x.rank} dimensions.")
    return TensorType(x.dtype, tuple(x.shape[d] for d in axes(dims, x.rank)) if x.rank else ())


def _transpose(x: TensorType, dim0: int, dim1: int) -> TensorType:
    a, b = axis(dim0, x.rank), axis(dim1, x.rank)
    shape = list(x.shape)
    if shape:
        shape[a], shape[b] = shape[b], shape[a]
    return TensorType(x.dtype, tuple(shape))


def _t(x: TensorType) -> TensorType:
    require(x.rank <= 2, f"{x} is no matrix.")
    return TensorType(x.dtype, x.shape[::-1])


def _unsqueeze(x: TensorType, dim: int) -> TensorType:
    d = axis(dim, x.rank + 1)
    return TensorType(x.dtype, (*x.shape[:d], 1, *x.shape[d:]))


def _squeeze(x: TensorType, dim: int | Sequence[int] | None = None) -> TensorType:
    if dim is None:
        chosen: tuple[int, ...] = tuple(range(x.rank))
    else:
        chosen = axes((dim,) if isinstance(dim, int) else dim, x.rank)
    kept = (size for d, size in enumerate(x.shape) if d not in chosen or size != 1)
    return TensorType(x.dtype, tuple(kept))


def _expand(x: TensorType, size: Sequence[int], implicit: bool) -> TensorType:
    new = len(size) - x.rank
    require(new >= 0, f"{x} does not expand to {list(size)}.")
    shape = []
    for d, wanted in enumerate(size):
        own = x.shape[d - new] if d >= new else 1
        if wanted == -1:
            require(d >= new, f"{list(size)} leaves a new size open.")
            wanted = own
        fits = own == 1 or not differ(own, wanted)
        require(fits and not surely_less(wanted, 0), f"{x} does not expand to {list(size)}.")
        shape.append(wanted)
    return TensorType(x.dtype, tuple(shape))


def slice_length(size: int, start: int | None, end: int | None, step: int) -> int:
    """Returns how many elements a slice takes of a dimension; ShapeError when step is no step."""
    require(not is_symbolic(step) and step > 0, f"the step of a slice is {step}.")
    first = _clipped(0 if start is None else start, size)
    last = maximum(_clipped(size if end is None else end, size), first)
    return (last - first + step - 1) // step


def _clipped(place: int, size: int) -> int:
    place = place + size if place < 0 else place
    return minimum(maximum(place, 0), size)


def _slice(x: TensorType, dim: int, start: int | None, end: int | None, step: int) -> TensorType:
    require(x.rank > 0, "a scalar has no slices.")
    d = axis(dim, x.rank)
    length = slice_length(x.shape[d], start, end, step)
    return TensorType(x.dtype, (*x.shape[:d], length, *x.shape[d + 1 :]))


def _select(x: TensorType, dim: int, index: int) -> TensorType:
    require(x.rank > 0, "a scalar has no dimension to select from.")
    d = axis(dim, x.rank)
    size = x.shape[d]
    inside = not surely_less(index, -size) and not surely_less(size - 1, index)
    require(inside, f"there is no index {index} among {size}.")
    return TensorType(x.dtype, (*x.shape[:d], *x.shape[d + 1 :]))


def _narrow(x: TensorType, dim: int, start: int, length: int) -> TensorType:
    require(x.rank > 0, "a scalar has no dimension to narrow.")
    d = axis(dim, x.rank)
    size = x.shape[d]
    first = start + size if start < 0 else start
    inside = not (
        surely_less(first, 0) or surely_less(length, 0) or surely_less(size, first + length)
    )
    require(inside, f"{length} elements from {start} on are not within {size}.")
    return TensorType(x.dtype, (*x.shape[:d], length, *x.shape[d + 1 :]))


def _parts(x: TensorType, d: int, sizes: Sequence[int]) -> tuple[TensorType, ...]:
    return tuple(TensorType(x.dtype, (*x.shape[:d], s, *x.shape[d + 1 :])) for s in sizes)


_MAX_PARTS = 1 << 20


def _split(x: TensorType, split_size: int, dim: int) -> tuple[TensorType, ...]:
    require(x.rank > 0, "a scalar cannot be split.")
    d = axis(dim, x.rank)
    size = x.shape[d]
    legal = not is_symbolic(split_size) and (split_size > 0 or (split_size == 0 and size == 0))
    require(legal, f"the size of a part is {split_size}.")
    count = max(-(-size // split_size), 1) if split_size else 1
    require(count <= _MAX_PARTS, f"{count} parts are too many.")
    sizes = [split_size] * (count - 1) + [size - split_size * (count - 1)]
    return _parts(x, d, sizes)


def _split_with_sizes(x: TensorType, sizes: Sequence[int], dim: int) -> tuple[TensorType, ...]:
    require(x.rank > 0, "a scalar cannot be split.")
    d = axis(dim, x.rank)
    fits = not any(surely_less(s, 0) for s in sizes) and not differ(sum(sizes), x.shape[d])
    require(fits, f"parts of {list(sizes)} are not {x.shape[d]} together.")
    return _parts(x, d, sizes)


def _chunk(x: TensorType, chunks: int, dim: int) -> tuple[TensorType, ...]:
    require(x.rank > 0 and chunks > 0, f"{x} cannot be cut into {chunks} chunks.")
    d = axis(dim, x.rank)
    size = x.shape[d]
    part = -(-size // chunks)
    if part == 0:
        return _parts(x, d, [0] * chunks)
    return _split(x, part, dim)


def _unbind(x: TensorType, dim: int) -> tuple[TensorType, ...]:
    require(x.rank > 0, "a scalar cannot be unbound.")
    d = axis(dim, x.rank)
    require(not is_symbolic(x.shape[d]), f"{x.shape[d]} is not known before the call.")
    require(x.shape[d] <= _MAX_PARTS, f"{x.shape[d]} parts are too many.")
    return (TensorType(x.dtype, (*x.shape[:d], *x.shape[d + 1 :])),) * x.shape[d]


def diagonal_shape(x: TensorType, offset: int, dim1: int, dim2: int) -> Shape:
    """Returns the shape of a diagonal; ShapeError when x has no two such dimensions."""
    require(x.rank >= 2, f"{x} has no diagonal.")
    a, b = axes((dim1, dim2), x.rank)
    rows, columns = x.shape[a], x.shape[b]
    if offset >= 0:
        length = maximum(minimum(rows, columns - offset), 0)
    else:
        length = maximum(minimum(rows + offset, columns), 0)
    return (*(size for d, size in enumerate(x.shape) if d not in (a, b)), length)


def _diagonal(x: TensorType, offset: int, dim1: int, dim2: int) -> TensorType:
    return TensorType(x.dtype, diagonal_shape(x, offset, dim1, dim2))


def _unfold(x: TensorType, dimension: int, size: int, step: int) -> TensorType:
    d = axis(dimension, x.rank)
    whole = x.shape[d] if x.rank else 1
    require(step > 0 and size >= 0, f"windows of {size} every {step} elements.")
    require(not surely_less(whole, size), f"windows of {size} do not fit into {whole} elements.")
    if not x.rank:
        return TensorType(x.dtype, (size,))
    shape = list(x.shape)
    shape[d] = (whole - size) // step + 1
    return TensorType(x.dtype, (*shape, size))


def strided_shape(
    x: TensorType, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> Shape:
    """Returns the shape of elements at strides; ShapeError when some lie outside of the tensor."""
    require(len(size) == len(stride), f"{len(size)} sizes have {len(stride)} strides.")
    legal = not any(surely_less(s, 0) for s in (*size, *stride, offset or 0))
    require(legal, "a size, stride or offset is negative.")
    if not any(s == 0 for s in size):
        last = (offset or 0) + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        require(surely_less(last, numel(x.shape)), f"element {last} is outside of {x}.")
    return tuple(size)


def _as_strided(
    x: TensorType, size: Sequence[int], stride: Sequence[int], offset: int | None
) -> TensorType:
    return TensorType(x.dtype, strided_shape(x, size, stride, offset))


def _itself(x: TensorType) -> TensorType:
    return x


RULES: dict[str, Rule] = {
    f"aten.{name}": rule
    for rule, names in (
        (_view, ("view.default", "_unsafe_view.default", "reshape.default")),
        (_flatten, ("flatten.using_ints",)),
        (_unflatten, ("unflatten.int",)),
        (_permute, ("permute.default", "permute_copy.default")),
        (_transpose, ("transpose.int",)),
        (_t, ("t.default",)),
        (_unsqueeze, ("unsqueeze.default",)),
        (_squeeze, ("squeeze.default", "squeeze.dim", "squeeze.dims")),
        (_expand, ("expand.default",)),
        (_slice, ("slice.Tensor",)),
        (_select, ("select.int",)),
        (_narrow, ("narrow_copy.default",)),
        (_split, ("split.Tensor",)),
        (_split_with_sizes, ("split_with_sizes.default",)),
        (_chunk, ("chunk.default",)),
        (_unbind, ("unbind.int", "unbind_copy.int")),
        (_diagonal, ("diagonal.default",)),
        (_unfold, ("unfold.default",)),
        (_as_strided, ("as_strided.default", "as_strided_copy.default")),
        (_itself, ("alias.default", "clone.default", "contiguous.default", "detach.default")),
        (_itself, ("lift_fresh_copy.default",)),
    )
    for name in names
}
