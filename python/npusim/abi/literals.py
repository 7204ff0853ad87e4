"""Python numbers as values of a dtype, as PyTorch converts the scalars that operators take.

Owns rounding to the float dtypes, wrapping to the integer ones, and the check that PyTorch makes
where an operator refuses what does not fit.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.errors import GraphError
from npusim.ir.types import TensorType, dtype_size, is_float


def literal_in(value: float | int, dtype: str) -> float | int:
    """Returns a number as a value of a dtype: rounded, or truncated and wrapped; bool as 0 or 1.

    Raises:
        GraphError: a number that is infinite or NaN, for an integer dtype.
    """
    if dtype == "bool":
        return int(value != 0)
    if is_float(dtype):
        return _rounded(value, dtype)
    if isinstance(value, float) and not math.isfinite(value):
        raise GraphError(f"{value} is no value of {dtype}.", hint="Pass an integer.")
    bits = 8 * dtype_size(dtype)
    low = int(value) & (2**bits - 1)
    return low if dtype.startswith("u") or low < 2 ** (bits - 1) else low - 2**bits


def checked_literal(value: float | int, dtype: str, what: str) -> float | int:
    """Returns a number as a value of a dtype, as fills, clamps and selections take it.

    An unsigned dtype also takes negative whole numbers of as many bits, which wrap; a float beyond
    what a float dtype holds is refused, and infinities are not.

    Args:
        what: takes the number; for the message.

    Raises:
        GraphError: a number that the dtype does not hold; PyTorch refuses it in these operators.
    """
    if not _fits(value, dtype):
        raise GraphError(
            f"{what}: {value} does not fit {dtype}; PyTorch refuses it there, too.",
            hint="Convert the tensor to a wider dtype first, or pass a number that fits.",
        )
    return literal_in(value, dtype)


def filled_literal(value: float | int, type: TensorType, what: str) -> float | int:
    """Returns a number as a value of a tensor that is filled with it.

    Beyond what 16-bit floats hold, PyTorch refuses to fill tensors, but for those of one element
    (`scalar_tensor`, which `torch.where(x, 1e9, y)` means), which become infinite.

    Args:
        what: fills; for the message.

    Raises:
        GraphError: as `checked_literal`.
    """
    if type.dtype in ("float16", "bfloat16") and type.numel == 1:
        return literal_in(value, type.dtype)
    return checked_literal(value, type.dtype, what)


def _fits(value: float | int, dtype: str) -> bool:
    if dtype == "bool":
        return True
    if isinstance(value, float) and not math.isfinite(value):
        return is_float(dtype)
    if is_float(dtype):
        return abs(value) <= _LARGEST[dtype]
    bits = 8 * dtype_size(dtype)
    if dtype.startswith("u"):
        whole = float(value).is_integer() or value >= 0
        return whole and -(2**bits) < value < 2**bits
    return -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


_LARGEST = {
    "float16": 65504.0,
    "bfloat16": float.fromhex("0x1.fep127"),
    "float32": float.fromhex("0x1.fffffep127"),
    "float64": float.fromhex("0x1.fffffffffffffp1023"),
}


def _rounded(value: float | int, dtype: str) -> float:
    """Rounds by way of float32, as PyTorch does; an int of 64 bits goes there in one step."""
    if dtype == "float64" or (dtype == "float32" and isinstance(value, float)):
        return float(value)  # a kernel rounds it to what it computes in
    fits = isinstance(value, int) and -(2**63) <= value < 2**63
    with np.errstate(over="ignore"):
        narrow = (np.int64(value) if fits else np.float64(value)).astype(np.float32)
        if dtype == "float16":
            narrow = narrow.astype(np.float16)
    if dtype == "bfloat16":
        upper = bfloat16_bits(np.atleast_1d(narrow)).astype(np.uint32) << 16
        return float(upper.view(np.float32)[0])
    return float(narrow)


def bfloat16_bits(x: NDArray[Any]) -> NDArray[Any]:
    """Rounds float32 to the nearest bfloat16, ties to even; returns the upper 16 bits, flat."""
    bits = np.ascontiguousarray(x).reshape(-1).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet_nan = (bits >> 16) | 0x40
    return np.where(np.isnan(x).reshape(-1), quiet_nan, rounded)
