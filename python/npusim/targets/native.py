"""The architecture of this machine's GPU: what a target means where it is not told one."""

from __future__ import annotations

import ctypes
import os
from functools import cache

from npusim.targets.features import listed_architectures

_CAPABILITY = (75, 76)  # the driver's numbers for its major and its minor part
_OLDEST = 8  # major number of the first devices that have what kernels use


def native_architecture(device: str) -> str:
    """Returns what to generate code for to run it on this machine; empty where nothing tells.

    Args:
        device: the runtime backend, such as "cuda".
    """
    return _cuda_architecture() if device == "cuda" else ""


@cache
def _cuda_architecture() -> str:
    """Returns the first CUDA device's, such as "sm_80"; empty if kernels cannot run on it.

    Asks NVIDIA's driver: the one that `NPUSIM_CUDA_DRIVER` names, or the system's.
    """
    numbers = []
    try:
        driver = ctypes.CDLL(os.environ.get("NPUSIM_CUDA_DRIVER") or "libcuda.so.1")
        if driver.cuInit(0) != 0:
            return ""
        for attribute in _CAPABILITY:
            value = ctypes.c_int()
            if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0) != 0:
                return ""
            numbers.append(value.value)
    except (OSError, AttributeError):
        return ""
    major, minor = numbers
    name = f"sm_{major}{minor}"
    if f"{name}a" in listed_architectures():  # it has instructions that no other device has
        name = f"{name}a"
    return name if major >= _OLDEST else ""
