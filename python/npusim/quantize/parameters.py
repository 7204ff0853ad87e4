"""Scale and zero point of a tensor of bytes, and the bytes of weights and biases.

Owns the numbers; which values get them is decided elsewhere. All of it is exact arithmetic of
float32 and integers, so the same model and ranges give the same bytes everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
_LEAST_SCALE = float(np.finfo(np.float32).tiny)  # a normal number: 1 / scale is finite
_MOST_OF_WEIGHTS = 127  # symmetric, so that -w has the negated byte
_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Parameters:
    """What the bytes q of a tensor stand for: (q - zero) * scale.

    Attributes:
        dtype: "uint8" or "int8".
        scale: positive, a float32.
        zero: the byte that stands for 0.0.
    """

    dtype: str
    scale: float
    zero: int

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest number that bytes stand for."""
        low, high = LIMITS[self.dtype]
        return (low - self.zero) * self.scale, (high - self.zero) * self.scale

    def rounded(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the numbers that the bytes of x stand for."""
        low, high = LIMITS[self.dtype]
        codes = np.clip(np.rint(x / self.scale) + self.zero, low, high)
        return np.asarray((codes - self.zero) * self.scale)


def parameters_of(low: float, high: float, dtype: str) -> Parameters:
    """Returns the parameters whose bytes span low … high, and 0.0 exactly.

    A range of one value, and of 0.0 alone, is a range: it is widened to 0.0, and to a least scale.
    """
    least, most = LIMITS[dtype]
    low, high = min(float(low), 0.0), max(float(high), 0.0)
    scale = float(np.float32(max((high - low) / (most - least), _LEAST_SCALE)))
    zero = int(np.clip(np.rint(least - low / scale), least, most))
    return Parameters(dtype, scale, zero)


def weight_bytes(weight: Floats) -> tuple[NDArray[np.int8], Floats]:
    """Returns int8 bytes in -127 … 127 and a scale for each channel, dimension 0.

    A channel of zeros has the scale 1.
    """
    flat = weight.reshape(weight.shape[0], -1)
    largest = np.abs(flat).max(axis=1, initial=0.0).astype(np.float64)
    scales = np.maximum(largest / _MOST_OF_WEIGHTS, _LEAST_SCALE)
    scales = np.where(largest == 0, 1.0, scales).astype(np.float32)
    codes = np.rint(flat.astype(np.float64) / scales[:, None].astype(np.float64))
    codes = np.clip(codes, -_MOST_OF_WEIGHTS, _MOST_OF_WEIGHTS)
    return codes.astype(np.int8).reshape(weight.shape), scales


def bias_integers(bias: Floats, scales: Floats) -> NDArray[np.int32] | None:
    """Returns a bias in steps of `scales`, those of the sums; None where int32 does not hold it."""
    codes = np.rint(bias.astype(np.float64) / scales.astype(np.float64))
    if not np.all(np.abs(codes) <= _INT32):  # NaN is not
        return None
    return codes.astype(np.int32)
