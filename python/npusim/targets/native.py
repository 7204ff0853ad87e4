"""The architecture of this machine's GPU: what a target means where it is not told one."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import cache

from npusim.targets.features import listed_architectures

_CAPABILITY = (75, 76)  # the driver's numbers for its major and its minor part
_OLDEST = 8  # major number of the first devices that have what kernels use


def native_architecture(code_format: str) -> str:
    """Returns what to generate code for to run it on this machine; empty where nothing tells.

    Args:
        code_format: of the device code, such as "cubin"; empty: none is generated.
    """
    asked = _ASKED.get(code_format)
    return asked() if asked is not None else ""


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


_ASKED: Mapping[str, Callable[[], str]] = {"cubin": _cuda_architecture}  # by format of device code
