"""Types of the operators that move elements: joins, padding, rolls, writing into a part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from npusim.ir.symbolic import is_symbolic, minimum
from npusim.ir.types import TensorType
from npusim.ops.inference.promotion import require, result_dtype
from npusim.ops.inference.sizes import (
    axes,
    axis,
    broadcast_shapes,
    differ,
    require_shape,
    surely_less,
)
from npusim.ops.inference.views import diagonal_shape, slice_length, strided_shape

Rule = Callable[..., TensorType]


def _cat(tensors: Sequence[TensorType], dim: int) -> TensorType:
    require(len(tensors) > 0, "there is nothing to join.")
    dtype = result_dtype(*tensors)
    real = [t for t in tensors if t.shape != (0,)]  # PyTorch leaves such out, whatever the rank
    if not real:
        axis(dim, 1)
        return TensorType(dtype, (0,))
    first = real[0]
    require(first.rank > 0, "scalars cannot be joined.")
    d = axis(dim, first.rank)
    for other in real[1:]:
        fits = other.rank == first.rank and not any(
            differ(a, b)
            for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=True))
            if i != d
        )
        require(fits, f"{other} cannot be joined to {first} along dimension {d}.")
    whole = sum(t.shape[d] for t in real)
    return TensorType(dtype, (*first.shape[:d], whole, *first.shape[d + 1 :]))


def _stack(tensors: Sequence[TensorType], dim: int) -> TensorType:
    require(len(tensors) > 0, "there is nothing to stack.")
    first = tensors[0]
    for other in tensors[1:]:
        require_shape(other.shape, first.shape, "a tensor to stack")
    d = axis(dim, first.rank + 1)
    shape = (*first.shape[:d], len(tensors), *first.shape[d:])
    return TensorType(result_dtype(*tensors), shape)


def _flip(x: TensorType, dims: Sequence[int]) -> TensorType:
    axes(dims, x.rank)
    return x


def _roll(x: TensorType, shifts: Sequence[int], dims: Sequence[int]) -> TensorType:
    require(len(shifts) > 0, "there are no shifts.")
    fits = len(shifts) == len(dims) or (not dims and len(shifts) == 1)
    require(fits, f"{len(shifts)} shifts for {len(dims)} dimensions.")
    for d in dims:
        axis(d, x.rank)
    return x


def _repeat(x: TensorType, repeats: Sequence[int]) -> TensorType:
    new = len(repeats) - x.rank
    legal = new >= 0 and not any(surely_less(r, 0) for r in repeats)
    require(legal, f"{x} cannot be repeated {list(repeats)} times.")
    own = (*(1,) * max(new, 0), *x.shape)
    return TensorType(x.dtype, tuple(size * r for size, r in zip(own, repeats, strict=True)))


def _padded(x: TensorType, pad: Sequence[int]) -> list[int]:
    require(len(pad) % 2 == 0 and len(pad) // 2 <= x.rank, f"{list(pad)} does not pad {x}.")
    shape = list(x.shape)
    for i in range(len(pad) // 2):
        d = x.rank - 1 - i
        before, after = pad[2 * i : 2 * i + 2]
        left = shape[d] + minimum(before, 0) + minimum(after, 0)
        require(not surely_less(left, 0), f"{list(pad)} leaves less than nothing of {x}.")
        shape[d] = shape[d] + before + after
    return shape


def _constant_pad(x: TensorType, pad: Sequence[int], value: Any) -> TensorType:
    return TensorType(x.dtype, tuple(_padded(x, pad)))


def _edge_pad(rank: int, reflects: bool) -> Rule:
    """Padding with elements of the tensor: of `rank` spatial dimensions after one or two."""

    def rule(x: TensorType, pad: Sequence[int]) -> TensorType:
        fits = x.rank in (rank + 1, rank + 2) and len(pad) == 2 * rank
        require(fits, f"{list(pad)} does not pad {x}.")
        shape = _padded(x, pad)
        require(not any(size == 0 for size in x.shape[1:]), f"{x} has no elements.")
        for i in range(rank):
            size = x.shape[-1 - i]
            room = size - 1 if reflects else size
            for amount in pad[2 * i : 2 * i + 2]:
                least = not surely_less(amount, -size)
                enough = not (surely_less(room, amount) if reflects else surely_less(size, 1))
                require(least and enough, f"{x} has no {amount} elements to pad with.")
            require(not surely_less(shape[-1 - i], 1), f"{list(pad)} leaves nothing of {x}.")
        return TensorType(x.dtype, tuple(shape))

    return rule


def _copy(x: TensorType, src: TensorType) -> TensorType:
    return _fits_into(x, src, x.shape)


def _fits_into(x: TensorType, src: TensorType, shape: tuple[int, ...]) -> TensorType:
    joint = broadcast_shapes(src.shape, shape)
    require_shape(joint, shape, "the source, broadcast,")
    return x


def _slice_scatter(
    x: TensorType, src: TensorType, dim: int, start: int | None, end: int | None, step: int
) -> TensorType:
    require(x.rank > 0, "a scalar has no slices.")
    d = axis(dim, x.rank)
    length = slice_length(x.shape[d], start, end, step)
    require_shape(src.shape, (*x.shape[:d], length, *x.shape[d + 1 :]), "the source")
    return x


def _select_scatter(x: TensorType, src: TensorType, dim: int, index: int) -> TensorType:
    require(x.rank > 0, "a scalar has no dimension to select from.")
    d = axis(dim, x.rank)
    size = x.shape[d]
    inside = not surely_less(index, -size) and not surely_less(size - 1, index)
    require(inside, f"there is no index {index} among {size}.")
    require_shape(src.shape, (*x.shape[:d], *x.shape[d + 1 :]), "the source")
    return x


def _diagonal_scatter(
    x: TensorType, src: TensorType, offset: int, dim1: int, dim2: int
) -> TensorType:
    require_shape(src.shape, diagonal_shape(x, offset, dim1, dim2), "the source")
    return x


def _strided_scatter(
    x: TensorType,
    src: TensorType,
    size: Sequence[int],
    stride: Sequence[int],
    offset: int | None,
) -> TensorType:
    require_shape(src.shape, strided_shape(x, size, stride, offset), "the source")
    return x


def _pixel_shuffle(x: TensorType, factor: int) -> TensorType:
    require(x.rank >= 3 and factor > 0, f"{x} cannot be shuffled by {factor}.")
    *front, channels, height, width = x.shape
    square = factor * factor
    fits = is_symbolic(channels) or channels % square == 0
    require(fits, f"{channels} channels are no multiple of {square}.")
    return TensorType(x.dtype, (*front, channels // square, height * factor, width * factor))


def _pixel_unshuffle(x: TensorType, factor: int) -> TensorType:
    require(x.rank >= 3 and factor > 0, f"{x} cannot be shuffled by {factor}.")
    *front, channels, height, width = x.shape
    for size in (height, width):
        fits = is_symbolic(size) or size % factor == 0
        require(fits, f"{size} is no multiple of {factor}.")
    shape = (*front, channels * factor * factor, height // factor, width // factor)
    # PyTorch gives an empty tensor back as it is, and its shape rule says otherwise.
    require(0 not in x.shape or shape == x.shape, f"{x} has no elements.")
    return TensorType(x.dtype, shape)


def _channel_shuffle(x: TensorType, groups: int) -> TensorType:
    require(x.rank >= 3 and groups > 0, f"{x} cannot be shuffled in {groups} groups.")
    fits = is_symbolic((x.shape[1], groups)) or x.shape[1] % groups == 0
    require(fits, f"{x.shape[1]} channels are no multiple of {groups}.")
    return x


RULES: dict[str, Rule] = {
    "aten.cat.default": _cat,
    "aten.stack.default": _stack,
    "aten.flip.default": _flip,
    "aten.roll.default": _roll,
    "aten.repeat.default": _repeat,
    "aten.constant_pad_nd.default": _constant_pad,
    **{f"aten.reflection_pad{n}d.default": _edge_pad(n, True) for n in (1, 2, 3)},
    **{f"aten.replication_pad{n}d.default": _edge_pad(n, False) for n in (1, 2, 3)},
    "aten.copy.default": _copy,
    "aten.slice_scatter.default": _slice_scatter,
    "aten.select_scatter.default": _select_scatter,
    "aten.diagonal_scatter.default": _diagonal_scatter,
    "aten.as_strided_scatter.default": _strided_scatter,
    "aten.pixel_shuffle.default": _pixel_shuffle,
    "aten.pixel_unshuffle.default": _pixel_unshuffle,
    "aten.channel_shuffle.default": _channel_shuffle,
    "aten.native_channel_shuffle.default": _channel_shuffle,
}
