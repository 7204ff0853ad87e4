"""Resizes that are one of PyTorch's upsamplings: the same elements, or the same weights of them.

Owns the proof. These have kernels, for layouts with channels last too, and sizes that calls choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.kinds import Array, is_floating
from npusim.ir.symbolic import bounds, is_symbolic

_LINEAR = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}
_MOST = 64  # the greatest factor that is looked for between two sizes that calls choose


@dataclass(frozen=True)
class Axis:
    """What a resize does along an axis: from `size` to `length` elements, by a factor.

    Where one of them is symbolic the length is exact, and the factor None unless it is whole and
    the same for all sizes.
    """

    size: int
    length: int
    factor: float | None

    @property
    def is_symbolic(self) -> bool:
        """Whether calls choose one of the sizes."""
        return is_symbolic((self.size, self.length))

    @property
    def is_kept(self) -> bool:
        """Whether nothing changes along the axis."""
        return self.length == self.size and self.factor == 1.0

    @property
    def is_exact(self) -> bool:
        """Whether the length is the factor times the size, with nothing cut off."""
        if self.is_symbolic:
            return True
        return self.factor is not None and self.size * self.factor == self.length


def factor_between(size: int, length: int) -> float | None:
    """Returns length / size; where one is symbolic only if it is whole and always the same."""
    if not is_symbolic((size, length)):
        return 1.0 if length == size else length / size
    return next((float(k) for k in range(1, _MOST + 1) if size * k == length), None)


def nearest(
    x: Tensor, axes: Sequence[Axis], coordinates: str, rounding: str, taken: Callable[[Axis], Array]
) -> Tensor | None:
    """Returns x upsampled by taking the nearest elements, or None where PyTorch takes others.

    Args:
        axes: one for each dimension of x.
        coordinates, rounding: ONNX's modes.
        taken: the elements that ONNX takes along an axis of known sizes.
    """
    if not _fits(x, axes):
        return None
    down = (coordinates, rounding) == ("asymmetric", "floor")
    # By a whole factor all of these take each element that often.
    middle = coordinates in ("half_pixel", "pytorch_half_pixel") and rounding.startswith("round")
    rank = len(axes) - 2
    names = [(f"upsample_nearest{rank}d", 0.0), (f"_upsample_nearest_exact{rank}d", 0.5)]
    if any(axis.is_symbolic for axis in axes[2:]):
        names.reverse()  # by a whole factor middles stay clear of where float32 might round down
    for name, shift in names:
        if all(
            (down or middle if axis.factor else down and not shift)
            if axis.is_symbolic
            else np.array_equal(taken(axis), _pytorch_takes(axis, shift))
            for axis in axes[2:]
        ):
            return x.op(f"{name}.default", [axis.length for axis in axes[2:]])
    return None


def linear(x: Tensor, axes: Sequence[Axis], coordinates: str) -> Tensor | None:
    """Returns x upsampled by linear interpolation, or None where PyTorch has no such one."""
    corners = coordinates == "align_corners"  # whose factor is that of the sizes
    if not _fits(x, axes) or not (corners or all(axis.is_exact for axis in axes)):
        return None
    if coordinates == "pytorch_half_pixel":  # takes the first element where there is one result
        for axis in axes[2:]:
            if bounds(axis.length)[0] > 1 or axis.is_kept:
                continue
            if axis.is_symbolic:
                raise ExportError(
                    f"it makes {axis.length} elements, and a single one comes from elsewhere than "
                    "where there are more; let sizes begin higher (least, greatest)."
                )
            return None
    elif coordinates != "half_pixel" and not corners:
        return None
    name = f"upsample_{_LINEAR[len(axes) - 2]}.default"
    size = [axis.length for axis in axes[2:]]
    return x.op(name, size, corners)


def _fits(x: Tensor, axes: Sequence[Axis]) -> bool:
    """Tells whether only the dimensions behind channels change, of a dtype that kernels have."""
    outer = all(axis.is_kept for axis in axes[:2])
    return outer and 3 <= len(axes) <= 5 and is_floating(x.kind) and x.dtype != "float64"


def _pytorch_takes(axis: Axis, shift: float) -> Array:
    """Returns the elements that PyTorch takes, in its own float32: ATen's UpSample.h."""
    scale = np.float32(axis.size) / np.float32(axis.length)
    places = (np.arange(axis.length, dtype=np.float32) + np.float32(shift)) * scale
    return np.minimum(np.floor(places).astype(np.int64), axis.size - 1)
