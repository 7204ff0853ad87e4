"""What a call of a small network costs on the CPU, by the kind of its argument.

    PYTHONPATH=python:. python -m benchmarks.call_arguments [--runs 7] [--calls 4000]

An MLP of two layers of 16, one thread, called from Python; runs of the kinds take turns. Printed:
the median and the least of the runs' means, in microseconds a call.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import nn

import npusim


class Shown:
    """Memory that only `__array_interface__` shows."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


class Lent:
    """A tensor by DLPack alone, without a shape or a library that one could ask."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __dlpack__(self, **given: Any) -> Any:
        return self.array.__dlpack__(**given)


def arguments() -> dict[str, Callable[[], object]]:
    """Returns a call of each kind of argument; Error or TypeError where one is not taken."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)).eval()
    x = torch.randn(1, 16)
    sessions = {}
    for dtype in (torch.float32, torch.bfloat16):
        own = model.to(dtype)
        program = npusim.compile((own, (x.to(dtype),)))
        weights = {k: v.clone() for k, v in own.state_dict().items()}
        sessions[dtype] = npusim.load(program, weights=weights, threads=1)
    plain, narrow = sessions[torch.float32], sessions[torch.bfloat16]
    array = x.numpy().copy()
    apart = np.zeros((1, 32), np.float32)[:, ::2]
    buffer = npusim.DeviceBuffer.from_numpy(array, plain.device)
    lent = memoryview((ctypes.c_float * 16)(*array[0])).cast("B").cast("f", (1, 16))
    short, half = array.astype(ml_dtypes.bfloat16), x.bfloat16()
    return {
        "NumPy": lambda: plain(array),
        "memoryview": lambda: plain(lent),
        "NumPy, strided": lambda: plain(apart),
        "__array_interface__": lambda: plain(Shown(array)),
        "DLPack without a library": lambda: plain(Lent(array)),
        "ml_dtypes.bfloat16": lambda: narrow(short),
        "PyTorch": lambda: plain(x),
        "PyTorch, bfloat16": lambda: narrow(half),
        "DeviceBuffer over an array": lambda: plain(buffer),
    }


def main() -> None:
    """Prints a line a kind."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--calls", type=int, default=4000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    calls = arguments()
    found: dict[str, list[float]] = {kind: [] for kind in calls}
    for _ in range(args.runs):
        for kind, call in calls.items():
            for _ in range(200):
                call()
            start = time.perf_counter()
            for _ in range(args.calls):
                call()
            found[kind].append(1e6 * (time.perf_counter() - start) / args.calls)
    for kind, times in found.items():
        print(f"{kind:28} {statistics.median(times):7.3f} ({min(times):.3f})")


if __name__ == "__main__":
    main()
