"""Backward operators written as forward ones.

Owns the gradients that Core ATen counts among its operators and a model may call like any other.
Pooling is separable, so its gradient is a product with a matrix of shares from either side; the
gradients of a convolution are convolutions (Dumoulin & Visin, arXiv:1603.07285).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from npusim.frontends.composites import widened, written

aten = torch.ops.aten


# ---- average pooling ----


@written(aten._adaptive_avg_pool2d_backward.default)
def _adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    """grad[…, oh, ow] to […, h, w]: each window hands out equal shares."""
    shares = []
    for size, windows in zip(x.shape[-2:], grad.shape[-2:], strict=True):
        window = torch.arange(windows, device=x.device)
        first = torch.div(size * window, windows, rounding_mode="floor")
        last = -torch.div(-size * (window + 1), windows, rounding_mode="floor")
        inside = _membership(first, last, size, x)
        shares.append(inside / inside.sum(1, keepdim=True))
    return _spread(grad, shares)


@written(aten.avg_pool2d_backward.default)
def _avg_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Tensor:
    """grad[…, oh, ow] to […, h, w]: a window's gradient over what its average was divided by."""
    geometry = (_each(v, 2) for v in (kernel, stride or kernel, padding))
    shares = []
    for size, windows, k, s, p in zip(x.shape[-2:], grad.shape[-2:], *geometry, strict=True):
        first = torch.arange(windows, device=x.device) * s - p
        last = (first + k).clamp_max(size + p)
        inside = _membership(first, last, size, x)
        if divisor is None and count_include_pad:
            inside = inside / (last - first).to(inside.dtype).unsqueeze(1)
        elif divisor is None:
            inside = inside / inside.sum(1, keepdim=True)
        shares.append(inside)
    return _spread(grad if divisor is None else grad / divisor, shares)


def _membership(first: Tensor, last: Tensor, size: int, like: Tensor) -> Tensor:
    """Returns [windows, size]: 1 where a position lies in [first, last) of a window."""
    place = torch.arange(size, device=like.device)
    inside = (place >= first.unsqueeze(1)) & (place < last.unsqueeze(1))
    return inside.to(widened(like).dtype)


def _spread(grad: Tensor, shares: list[Tensor]) -> Tensor:
    """Returns rowsᵀ · grad · columns over the last two dimensions."""
    rows, columns = shares
    return torch.matmul(torch.matmul(rows.t(), widened(grad)), columns).to(grad.dtype)


# ---- convolution ----


@written(aten.convolution_backward.default)
def _convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """Gradients of a convolution's input, weight and bias; None for those not asked for."""
    rank = x.dim() - 2
    stride, padding, dilation = (_each(v, rank) for v in (stride, padding, dilation))
    zeros = [0] * rank
    grad_x = grad_weight = grad_bias = None
    if output_mask[0] and transposed:
        grad_x = aten.convolution.default(
            grad, weight, None, stride, padding, dilation, False, zeros, groups
        )
    elif output_mask[0]:
        reached = [
            (o - 1) * s - 2 * p + d * (k - 1) + 1
            for o, s, p, d, k in zip(
                grad.shape[2:], stride, padding, dilation, weight.shape[2:], strict=True
            )
        ]
        extra = [n - r for n, r in zip(x.shape[2:], reached, strict=True)]
        grad_x = aten.convolution.default(
            grad, weight, None, stride, padding, dilation, True, extra, groups
        )
    if output_mask[1]:
        pair = (grad, x) if transposed else (x, grad)
        grad_weight = _weight_gradient(*pair, weight, stride, padding, dilation, groups)
    if output_mask[2]:
        grad_bias = grad.sum([0, *range(2, grad.dim())])
    return grad_x, grad_weight, grad_bias


def _weight_gradient(
    data: Tensor,
    taps: Tensor,
    weight: Tensor,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Correlates data[b, g·c, …] with taps[b, g·n, …] over batch and space: weight[g·n, c, k…].

    Batch and channels trade places; where the forward pass strides, this one dilates.
    """
    batch, space = data.shape[0], data.shape[2:]
    wide, channels = data.shape[1] // groups, taps.shape[1]
    lined = data.reshape(batch, groups, wide, *space).transpose(0, 2)  # [c, g, b, …]
    lined = lined.reshape(wide, groups * batch, *space)
    full = aten.convolution.default(
        lined,
        taps.transpose(0, 1),
        None,
        dilation,
        padding,
        stride,
        False,
        [0] * len(space),
        groups,
    ).transpose(0, 1)
    assert full.shape[0] == channels
    for dim, size in enumerate(weight.shape[2:], 2):
        full = full.narrow(dim, 0, size)
    return full


def _each(value: Sequence[int], rank: int) -> list[int]:
    return list(value) * rank if len(value) == 1 else list(value)


# ---- windows ----

_MOST_SHIFTS = 32  # sums of shifted windows that stand for one scatter


@written(aten.unfold_backward.default)
def _unfold_backward(grad: Tensor, input_sizes: list[int], dim: int, size: int, step: int) -> Any:
    """Adds windows of `size` elements up where they lay, `step` apart: what istft ends with.

    grad[…, frames (at dim), …, size] is cut into pieces of `step`; piece i of all windows lies
    densely, i pieces further on.
    """
    count = -(-size // step)
    if not input_sizes:
        return NotImplemented
    dim, extent = dim % len(input_sizes), input_sizes[dim]
    windows = widened(grad).movedim(dim, -2)
    *front, frames, _ = windows.shape
    if count > _MOST_SHIFTS:
        place = torch.arange(extent, device=grad.device).unfold(0, size, step).reshape(-1)
        empty = windows.new_zeros((*front, extent))
        index = [*[None] * len(front), place]
        flat = windows.reshape(*front, frames * size)
        added = aten.index_put.default(empty, index, flat, True)
        return added.movedim(-1, dim).to(grad.dtype)
    whole = torch.nn.functional.pad(windows, (0, count * step - size))
    pieces = whole.reshape(*front, frames, count, step)
    total = (frames + count - 1) * step
    parts = (pieces.select(-2, i).reshape(*front, frames * step) for i in range(count))
    shifted = [
        torch.nn.functional.pad(part, (i * step, total - (i + frames) * step))
        for i, part in enumerate(parts)
    ]
    added = functools.reduce(torch.add, shifted)
    fitted = torch.nn.functional.pad(added, (0, extent - total))
    return fitted.movedim(-1, dim).to(grad.dtype)
