"""How sums of products of bytes become bytes by integers alone: multiplier, shift, rounding.

A machine without floats behind its sums keeps a scale M as a multiplier m of 31 bits and a shift
r, M = m / 2**r: float32's 24 bits are in it exactly. `rounded(s * m / 2**r)` is what the sum s
becomes, in int64, which holds every product. `kernels/cpu/int8_requantize.h` has the same
arithmetic.

| rule | what lies between two integers becomes |
|---|---|
| "half_even" | the nearer one, in the middle the even one |
| "half_up" | the nearer one, in the middle the greater one |
| "half_away" | the nearer one, in the middle the one farther from 0 |
| "floor" | the lesser one |
| "double" | rounded twice, as by TensorFlow Lite's reference: s·m / 2**31 with halves up, then |
| | the rest of the shift with halves away from 0 |
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FLOAT32 = "float32"  # no integers: the sum times a float32, rounded half to even
ROUNDINGS = {"half_even": 1, "half_up": 2, "half_away": 3, "floor": 4, "double": 5}
BITS = 31  # of a multiplier, without its sign
MOST_SHIFT = 62

Ints = npt.NDArray[np.int64]
_LIMIT = 2**BITS - 1


def fixed(scale: npt.ArrayLike) -> tuple[Ints, Ints]:
    """Returns the multipliers and shifts of scales: m of -2**31 < m < 2**31, r of 1 … 62.

    The scale is taken as float32. What is 2**30 or more in magnitude becomes the greatest
    multiplier, shifted by one; of what is below 2**-32 the lowest bits are cut off; NaN is 0.
    """
    given = np.asarray(scale, np.float32).astype(np.float64)
    known = np.where(np.isfinite(given), given, 0.0)
    part, exponent = np.frexp(known)
    m, r = np.ldexp(part, BITS), BITS - exponent.astype(np.int64)
    m = np.trunc(np.ldexp(m, -np.maximum(r - MOST_SHIFT, 0)))
    large = (r < 1) | np.isinf(given)
    m = np.where(large, np.sign(given) * _LIMIT, m)
    m = np.where(np.isnan(given), 0.0, m)
    return m.astype(np.int64), np.where(large, 1, np.clip(r, 1, MOST_SHIFT))


def requantized(sums: npt.ArrayLike, scale: npt.ArrayLike, rounding: str) -> Ints:
    """Returns sums (int32) times scales (broadcast to them), rounded to integers."""
    s = np.asarray(sums).astype(np.int64)
    m, r = fixed(scale)
    if rounding != "double":
        return shifted(s * m, r, rounding)
    left = np.maximum(BITS - r, 0)
    near = np.clip(s << left, -(2**31), 2**31 - 1)
    product = near * m
    nudged = product + np.where(product >= 0, 2**30, 1 - 2**30)
    high = np.sign(nudged) * (np.abs(nudged) >> BITS)
    return np.where(r > BITS, shifted(high, np.maximum(r - BITS, 1), "half_away"), high)


def shifted(values: Ints, shift: Any, rounding: str) -> Ints:
    """Returns int64 values below 2**62 divided by 2**shift, 1 … 62, and rounded."""
    r = np.asarray(shift, np.int64)
    half = np.int64(1) << (r - 1)
    if rounding == "floor":
        return values >> r
    if rounding in ("half_away", "double"):
        return np.sign(values) * ((np.abs(values) + half) >> r)
    up = (values + half) >> r
    if rounding == "half_up":
        return up
    tie = (values & ((half << 1) - 1)) == half
    return up - (tie & ((up & 1) == 1))


def joined(
    own: npt.ArrayLike, other: npt.ArrayLike, factors: tuple[float, float], rounding: str
) -> Ints:
    """Returns own * factors[0] + other * factors[1], of one shift, rounded once.

    The shift is that of the factor that is larger in magnitude; the other's multiplier is rounded
    to it, half to even. "double" rounds as "half_away".
    """
    first, second = (np.float64(np.float32(f)) for f in factors)
    larger = max(abs(first), abs(second))
    _, r = fixed(larger)
    scale = np.ldexp(1.0, int(r))
    a, b = (int(np.clip(np.rint(f * scale), -_LIMIT, _LIMIT)) for f in (first, second))
    total = np.asarray(own).astype(np.int64) * a + np.asarray(other).astype(np.int64) * b
    return shifted(total, r, rounding)
