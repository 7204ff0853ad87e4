"""Blocks of images side by side as columns, and columns added up to images (`unfold`, `fold`).

Owns `im2col` and `col2im` as views: Core ATen has them as gathers and additions at computed places.
With a stride s, a pixel at a + s * y (a < s) is in row a + s * t of block y - t, for all t that
exist. So an image is a sum over t of columns that lie t blocks apart, along both axes; where a
block does not exist, zeros around the columns are added.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from npusim.frontends.composites import written

aten = torch.ops.aten


@written(aten.im2col.default)
def _im2col(
    x: Tensor,
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """Blocks of x[…, c, h, w] as […, c * kernel_h * kernel_w, blocks]."""
    if not _is_static(x.shape[-2:]):
        return _gathered(aten.im2col.default, x, kernel_size, dilation, padding, stride)
    images = x if x.dim() == 4 else x.unsqueeze(0)
    if any(padding):
        sides = [amount for amount in reversed(padding) for _ in range(2)]
        images = aten.constant_pad_nd.default(images, sides, 0)
    for axis, size, apart, step in zip((2, 3), kernel_size, dilation, stride, strict=True):
        images = images.unfold(axis, (size - 1) * apart + 1, step)[..., ::apart]
    n, _, rows, columns, _, _ = images.shape
    blocks = images.permute(0, 1, 4, 5, 2, 3).reshape(n, -1, rows * columns)
    return blocks if x.dim() == 4 else blocks.squeeze(0)


@written(aten.col2im.default)
def _col2im(
    x: Tensor,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Tensor:
    """Sums of blocks x[…, c * kernel_h * kernel_w, blocks] as images […, c, *output_size]."""
    known = _is_static((*x.shape[-2:], *output_size)) and x.dtype != torch.bool
    if not known or any(apart != 1 for apart in dilation):
        return _gathered(
            aten.col2im.default, x, output_size, kernel_size, dilation, padding, stride
        )
    columns = x if x.dim() == 3 else x.unsqueeze(0)
    whole = [size + 2 * side for size, side in zip(output_size, padding, strict=True)]
    counts = [(w - k) // s + 1 for w, k, s in zip(whole, kernel_size, stride, strict=True)]
    n, channels = columns.shape[0], columns.shape[1] // (kernel_size[0] * kernel_size[1])
    parts = columns.reshape(n * channels, *kernel_size, *counts).permute(0, 1, 3, 2, 4)
    terms = [-(-k // s) for k, s in zip(kernel_size, stride, strict=True)]
    sides, lengths = [], []
    for w, k, s, count, t in zip(whole, kernel_size, stride, counts, terms, strict=True):
        lengths.append(-(-w // s))  # pixels of each remainder a
        sides.append([0, t * s - k, t - 1, lengths[-1] - count])
    padded = aten.constant_pad_nd.default(parts, [*_reversed(sides[1]), *_reversed(sides[0])], 0)
    padded = padded.reshape(
        -1, padded.shape[1] * padded.shape[2], padded.shape[3] * padded.shape[4]
    )
    for axis, (t, s, length) in enumerate(zip(terms, stride, lengths, strict=True), 1):
        # From [t, a, y + t'] at t' = terms - 1 - t: neighbours in t are a row of y shorter by one.
        rows = s * (length + t - 1)
        padded = padded.narrow(axis, t - 1, padded.shape[axis] - (t - 1))
        padded = padded.unfold(axis, rows, rows - 1 if t > 1 else 1)
    apart = padded.permute(0, 1, 3, 2, 4)  # [n * c, t_h, rows_h, t_w, rows_w]
    apart = apart.unflatten(4, (stride[1], -1)).narrow(5, 0, lengths[1])
    apart = apart.unflatten(2, (stride[0], -1)).narrow(3, 0, lengths[0])
    # [n * c, t_h, a_h, y, t_w, a_w, x]
    pixels = apart.permute(0, 3, 2, 6, 5, 1, 4).sum((5, 6)).to(x.dtype)
    images = pixels.reshape(n, channels, lengths[0] * stride[0], lengths[1] * stride[1])
    for axis, (side, size) in enumerate(zip(padding, output_size, strict=True), 2):
        images = images.narrow(axis, side, size)
    return images if x.dim() == 3 else images.squeeze(0)


def _reversed(sides: Sequence[int]) -> list[int]:
    """Returns what is before and behind two dimensions as padding has it, the last first."""
    return [sides[2], sides[3], sides[0], sides[1]]


def _is_static(sizes: Sequence[object]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _gathered(operator: torch._ops.OpOverload, *args: object) -> Tensor:
    """Returns what PyTorch's own decomposition gives, at computed places."""
    found: Tensor = decomposition_table[operator](*args)
    return found
