"""Resizing with antialiasing, and images read at places that a grid says.

Antialiasing is a product with a matrix of filter weights from either side. The filter is as wide as
the scale where it shrinks (PyTorch's UpSampleKernel.cpp): element j weighs in output i by
f((j + 1/2 - center_i) / max(scale, 1)), center_i = scale * (i + 1/2), normalised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

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


# ---- grids (PyTorch's GridSampler.h) ----

_BILINEAR, _NEAREST = 0, 1  # 2: bicubic
_ZEROS, _BORDER = 0, 1  # 2: reflection


@written(aten.grid_sampler_2d.default)
def _grid_sampled(
    x: Tensor, grid: Tensor, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Tensor:
    """x[n, c, h, w] at grid[n, oh, ow, 2], columns before rows, to [n, c, oh, ow].

    What lies outside of an image is 0, whatever the image holds: PyTorch's own way to take the
    operator apart reads the first element there and weighs it by 0, so an infinity of it is NaN.
    """
    sizes = x.shape[3], x.shape[2]
    read = _Reader(widened(x), partial(_padded, mode=padding_mode, align=align_corners))
    columns, rows = (
        _place(widened(grid[..., axis].unsqueeze(1)), size, align_corners)
        for axis, size in enumerate(sizes)
    )
    if interpolation_mode in (_BILINEAR, _NEAREST):
        columns, rows = read.pad(columns, sizes[0]), read.pad(rows, sizes[1])
    if interpolation_mode == _NEAREST:
        return read.inside(columns.round(), rows.round()).to(x.dtype)
    left, top = columns.floor(), rows.floor()
    if interpolation_mode == _BILINEAR:
        across, down = _linear_weights(columns, left), _linear_weights(rows, top)
        taps = [read.inside(left + j, top + i) * (across[j] * down[i])
                for i in range(2) for j in range(2)]  # fmt: skip
        return reduce(torch.add, taps).to(x.dtype)
    across, down = (_cubic_weights(t) for t in (columns - left, rows - top))
    lines = (
        reduce(torch.add, [w * read(left + (j - 1), top + (i - 1)) for j, w in enumerate(across)])
        for i in range(4)
    )
    return reduce(torch.add, [w * y for w, y in zip(down, lines, strict=True)]).to(x.dtype)


def _place(at: Tensor, size: int, align: bool) -> Tensor:
    """Returns where -1 … 1 lies among the elements of a dimension."""
    return (at + 1) * (size * 0.5 - 0.5) if align else (at + 1) * (size * 0.5) - 0.5


def _padded(at: Tensor, size: int, mode: int, align: bool) -> Tensor:
    """Returns the places to read instead of those outside; NaN is the first there."""
    if mode == _ZEROS:
        return at
    first = at.new_zeros(())
    if mode == _BORDER:
        return at.fmax(first).clamp_max(size - 1)
    twice = 2 * (size - 1) if align else 2 * size  # there and back again
    if align and size == 1:
        return torch.zeros_like(at)
    low = 0.0 if align else -0.5
    rest = torch.fmod((at - low).abs(), twice)
    return (torch.minimum(rest, twice - rest) + low).fmax(first).clamp_max(size - 1)


class _Reader:
    """Reads all channels of images.

    Args:
        x: images [n, c, h, w].
        pad: called as (places, size), gives the places to read instead.
    """

    def __init__(self, x: Tensor, pad: Callable[[Tensor, int], Tensor]) -> None:
        self._height, self._width, self.pad = x.shape[2], x.shape[3], pad
        self._pixels = torch.nn.functional.pad(x.flatten(2), (0, 1))  # the last one lies outside
        images, channels = (torch.arange(size, device=x.device) for size in x.shape[:2])
        self._image, self._channel = images.view(-1, 1, 1, 1), channels.view(1, -1, 1, 1)

    def __call__(self, columns: Tensor, rows: Tensor) -> Tensor:
        """Returns [n, c, oh, ow] of whole-numbered places [n, 1, oh, ow], padded first."""
        return self.inside(self.pad(columns, self._width), self.pad(rows, self._height))

    def inside(self, columns: Tensor, rows: Tensor) -> Tensor:
        """Returns [n, c, oh, ow] of whole-numbered places [n, 1, oh, ow]; 0 outside.

        One index a place, of a formula that nothing else reads a part of: what is read outside is
        a pixel of zeros, and so nothing has to be chosen behind.
        """
        height, width = self._height, self._width
        inside = (columns >= 0) & (columns < width) & (rows >= 0) & (rows < height)
        i, j = (torch.where(inside, t, 0).to(torch.int64) for t in (rows, columns))
        at = torch.where(inside, i * width + j, height * width)
        return self._pixels[self._image, self._channel, at]


def _linear_weights(at: Tensor, floor: Tensor) -> tuple[Tensor, Tensor]:
    return (floor + 1) - at, at - floor


def _cubic_weights(t: Tensor) -> tuple[Tensor, ...]:
    """Returns those of the four elements around a place, t after the second; a = -3/4."""

    def near(x: Tensor) -> Tensor:
        return (1.25 * x - 2.25) * x * x + 1

    def far(x: Tensor) -> Tensor:
        return ((-0.75 * x + 3.75) * x - 6) * x + 3

    return far(t + 1), near(t), near(1 - t), far(2 - t)
