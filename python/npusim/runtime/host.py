"""Host arrays in terms of dtype names: NumPy, PyTorch and DLPack tensors.

Owns what counts as which dtype. NumPy has no bfloat16; there a bfloat16 tensor shows as float32,
which holds all of its values, and a float32 array given for one is rounded to nearest even. Arrays
of `ml_dtypes.bfloat16` are used as they are.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_FROM_NUMPY = {
    np.dtype(name): name
    for name in (
        "float32", "float16", "float64", "int64", "int32", "int16", "int8", "uint8", "bool",
    )
}  # fmt: skip


def is_torch(value: object) -> bool:
    """Tells whether a value is a PyTorch tensor, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_dlpack(value: object) -> bool:
    """Tells whether a value can be lent through DLPack."""
    return hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__")


def is_cuda_array(value: object) -> bool:
    """Tells whether a value shows memory of a GPU through `__cuda_array_interface__`."""
    return hasattr(value, "__cuda_array_interface__")


def torch_bits(tensor: Any) -> Array:
    """Returns a PyTorch tensor of the cpu as NumPy shows it; bfloat16 as uint16 bits."""
    import torch

    tensor = tensor.detach().contiguous()
    if tensor.dtype is torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy().view(np.uint16)
        return bits
    array: Array = tensor.numpy()
    return array


def dtype_of(value: Any) -> str:
    """Returns the dtype name of an array or tensor: an npusim name where there is one."""
    if isinstance(value, np.ndarray):
        return _FROM_NUMPY.get(value.dtype.newbyteorder("="), value.dtype.name)
    return str(value.dtype).removeprefix("torch.")


def is_bfloat16_array(value: object) -> bool:
    """Tells whether a value is an array of the dtype that ml_dtypes gives NumPy."""
    arrays = (np.ndarray, np.generic)
    return isinstance(value, arrays) and value.dtype.name == "bfloat16"


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Returns the NumPy dtype that shows a dtype."""
    return np.dtype("float32" if dtype == "bfloat16" else dtype)


def to_bfloat16_bits(array: Array) -> NDArray[np.uint16]:
    """Rounds float32 to bfloat16, to nearest even, and returns the bits; NaN stays NaN."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    out: NDArray[np.uint16] = np.where(np.isnan(array), quiet, rounded).astype(np.uint16)
    return out


def from_bfloat16_bits(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Returns the float32 values of bfloat16 bits."""
    return np.asarray(bits.astype(np.uint32) << 16).view(np.float32)  # a scalar's is no array yet
