"""Resizing with antialiasing, as a product with a matrix of filter weights from either side.

The filter is as wide as the scale where it shrinks (PyTorch's UpSampleKernel.cpp): element j weighs
in output i by f((j + 1/2 - center_i) / max(scale, 1)), center_i = scale * (i + 1/2), normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from npusim.frontends.composites import widened, written

aten = torch.ops.aten

Filter = Callable[[Tensor], Tensor]


def _triangle(x: Tensor) -> Tensor:
    return (1 - x).clamp_min(0)


def _cubic(x: Tensor) -> Tensor:
    """Keys' kernel with a = -1/2, for x >= 0."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


def _antialiased(kernel: Filter) -> Callable[..., Tensor]:
    def resized(
        x: Tensor,
        output_size: Sequence[int],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        """x[b, c, h, w] to [b, c, *output_size]."""
        sizes = zip(x.shape[2:], output_size, (scales_h, scales_w), strict=True)
        rows, columns = (
            _weights(kernel, size, out, align_corners, factor, widened(x))
            for size, out, factor in sizes
        )
        return torch.matmul(torch.matmul(rows, widened(x)), columns.t()).to(x.dtype)

    return resized


def _weights(
    kernel: Filter, size: int, out: int, align: bool, factor: float | None, like: Tensor
) -> Tensor:
    """Returns [out, size], in the dtype of `like`."""
    if align:
        scale = (size - 1) / (out - 1) if out > 1 else 0.0
    else:
        scale = 1 / factor if factor else size / out
    center = (torch.arange(out, dtype=torch.float64, device=like.device) + 0.5) * scale
    place = torch.arange(size, dtype=torch.float64, device=like.device) + 0.5
    share = kernel((place - center.unsqueeze(1)).abs() / torch.sym_max(scale, 1.0))
    return (share / share.sum(1, keepdim=True)).to(like.dtype)


def _by_factors(resized: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The overload that takes factors instead of sizes."""

    def called(
        x: Tensor,
        output_size: Sequence[int] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> Tensor:
        if output_size is not None:
            return resized(x, output_size, align_corners)
        assert scale_factors is not None
        sizes = [torch.sym_int(n * f) for n, f in zip(x.shape[2:], scale_factors, strict=True)]
        return resized(x, sizes, align_corners, *scale_factors)

    return called


for _packet, _kernel in (
    (aten._upsample_bilinear2d_aa, _triangle),
    (aten._upsample_bicubic2d_aa, _cubic),
):
    written(_packet.default)(_antialiased(_kernel))
    written(_packet.vec)(_by_factors(_antialiased(_kernel)))
