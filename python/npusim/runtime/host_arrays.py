"""Arguments of calls that lie in host memory, as the arrays that calls take where they lie.

A call with contiguous NumPy arrays costs half a microsecond, the long way ten times that and more.
What shows host memory in another way (scalars, byte orders, subclasses, `__array_interface__`,
buffers off their alignment, DLPack of the host) becomes such arrays here first, by NumPy's own
conversions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim import _runtime
from npusim.runtime.host import is_cuda_array, is_dlpack, is_torch

Array = NDArray[Any]
_HOST = (1, 3)  # DLPack's kDLCPU and kDLCUDAHost


def host_arrays(args: Sequence[Any]) -> list[Array] | None:
    """Returns arguments as contiguous arrays of NumPy.

    None when one of them is none that NumPy shows without a guess (a list, a tensor of PyTorch or
    of a device, a masked array), and when all are such arrays already.
    """
    arrays = [_host_array(value) for value in args]
    if any(array is None for array in arrays):
        return None
    found = [array for array in arrays if array is not None]
    return None if all(a is b for a, b in zip(found, args, strict=True)) else found


def _host_array(value: Any) -> Array | None:
    if type(value) is np.ndarray:
        return _plain(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return None if isinstance(value, np.ma.MaskedArray) else _plain(np.asarray(value))
    if is_torch(value) or isinstance(value, _runtime.DeviceBuffer) or is_cuda_array(value):
        return None
    if is_dlpack(value):
        return _from_dlpack(value)
    if hasattr(value, "__array_interface__") or _lends(value):
        return _plain(np.asarray(value))
    return None


def _lends(value: Any) -> bool:
    """Tells whether a value has Python's buffer protocol."""
    try:
        memoryview(value).release()
    except (TypeError, BufferError):
        return False
    return True


def _plain(array: Array) -> Array:
    """Returns the array itself where it is contiguous, aligned and of native byte order."""
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype.isnative:
        return array
    native = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
    copied: Array = np.require(array, native, ["C_CONTIGUOUS", "ALIGNED"])
    # NumPy takes an array of one dimension out of none.
    return copied.reshape(array.shape)


def _from_dlpack(value: Any) -> Array | None:
    if int(value.__dlpack_device__()[0]) not in _HOST or taker(value) is None:
        return None
    try:
        return _plain(np.from_dlpack(value))
    except (BufferError, RuntimeError, TypeError):  # read only, or of a dtype that NumPy lacks
        return None


def taker(like: Any) -> Callable[[Any], Any] | None:
    """Returns the function `from_dlpack` of a tensor's library; None: it has none."""
    namespace = getattr(like, "__array_namespace__", None)
    library = namespace() if namespace else sys.modules.get(type(like).__module__.split(".")[0])
    found: Callable[[Any], Any] | None = getattr(library, "from_dlpack", None)
    return found


def as_library(like: Any, made: Sequence[Array]) -> tuple[Any, ...]:
    """Returns arrays as the kind that an argument is of: its library's tensors, or NumPy's."""
    take = None
    if not isinstance(like, (np.ndarray, np.generic)) and is_dlpack(like):
        take = taker(like)
    return tuple(made) if take is None else tuple(map(take, made))
