"""The elements of tinygrad's tensors as arrays, each when it is asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from npusim.frontends.tinygrad.reader import dtype_name, stored_dtype


class LazyWeights(Mapping[str, Any]):
    """Arrays by key. A tensor that was not computed yet is when it is asked for, it alone."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self._tensors = dict(tensors)

    def __getitem__(self, key: str) -> Any:
        tensor = self._tensors[key]
        tensor = tensor.cast(stored_dtype(tensor))
        buffer = tensor._buffer()
        elements = buffer.as_memoryview(allow_zero_copy=True)
        dtype = dtype_name(tensor.dtype)
        shape = tuple(tensor.shape)
        if dtype == "bfloat16":  # NumPy has none
            return torch.frombuffer(bytearray(elements), dtype=torch.bfloat16).reshape(shape)
        return np.asarray(_Pinned(buffer, elements, dtype)).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class _Pinned:
    """The elements of a buffer of tinygrad, for NumPy: arrays on them keep this object.

    tinygrad gives the memory of a buffer to others as soon as nobody holds the buffer.
    """

    def __init__(self, buffer: Any, elements: memoryview, dtype: str) -> None:
        self._held = (buffer, elements)
        flat = np.frombuffer(elements, dtype=dtype)
        self.__array_interface__ = flat.__array_interface__


def elements_of(uop: Any) -> Any:
    """Returns the elements of what is computed already, flat; None of anything else."""
    while uop.op.name in ("RESHAPE", "CONTIGUOUS", "COPY"):
        uop = uop.src[0]
    if uop.op.name != "BUFFER" or not uop.buffer.is_allocated():
        return None
    raw = bytes(uop.buffer.as_memoryview())
    dtype = dtype_name(uop.dtype)
    size = math.prod(int(d) for d in uop.shape)
    if dtype == "bfloat16":
        return torch.frombuffer(bytearray(raw), dtype=torch.bfloat16).float().numpy()[:size]
    return np.frombuffer(raw, dtype=dtype)[:size]
