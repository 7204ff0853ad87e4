"""Calls of a session with foreign arrays of a GPU that say in which stream they are worked on.

Such an array shows itself through `__cuda_array_interface__`, version 3: CuPy's do, and Numba's.
The call is put into that stream, and nobody waits. An array that names no stream takes the
session's long way, which waits, since nobody knows when its memory is used again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from npusim import _runtime
from npusim.ir.symbolic import is_symbolic
from npusim.program.program import TensorSpec
from npusim.runtime.device import DeviceBuffer, is_row_major
from npusim.runtime.host import is_cuda_array, is_torch, numpy_dtype


class CudaArrayCalls:
    """The arrays of one method in the interface's terms."""

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        specs = (*inputs, *outputs)
        self._inputs, self._outputs = inputs, outputs
        self._dense = all(s.shape == s.alloc_shape and not is_symbolic(s.shape) for s in specs)
        self._known = all(spec.dtype != "bfloat16" for spec in specs)  # to the interface

    def run(
        self,
        args: tuple[Any, ...],
        executor: _runtime.Executor,
        device: _runtime.Device,
        method: int,
        weights: _runtime.Weights | None,
    ) -> tuple[Any, ...] | None:
        """Runs in the arrays' stream; None when one does not fit as it is, or names no stream.

        Gives CuPy's arrays for CuPy's, else buffers, which `device.stream` waits for.
        """
        if not self._dense or not self._known or len(args) != len(self._inputs):
            return None
        if not all(map(is_foreign, args)):
            return None
        shown: list[dict[str, Any]] = [value.__cuda_array_interface__ for value in args]
        (queue, *others) = {array.get("stream") for array in shown}
        if others or not isinstance(queue, int):
            return None
        if not all(map(_fits, shown, self._inputs, [device] * len(shown))):
            return None
        places = [array["data"][0] for array in shown]
        arrays = _cupy_arrays(args[0], self._outputs, device)
        if arrays is not None:
            executor.run_at(method, places, [int(a.data.ptr) for a in arrays], weights, queue)
            return arrays
        buffers = tuple(DeviceBuffer.for_result(device, spec) for spec in self._outputs)
        device.order(device.stream, queue)  # in which their memory is there from now on
        executor.run_at(method, places, [b.address for b in buffers], weights, queue)
        device.order(queue, device.stream)
        return buffers


def is_foreign(value: object) -> bool:
    """Tells whether a value is such an array of another library than PyTorch."""
    own = isinstance(value, _runtime.DeviceBuffer) or is_torch(value)
    return not own and is_cuda_array(value)


def _cupy_arrays(
    like: Any, specs: Sequence[TensorSpec], device: _runtime.Device
) -> tuple[Any, ...] | None:
    """Returns uninitialised arrays of CuPy for outputs; None where the inputs are another's."""
    cupy = sys.modules.get("cupy")
    if cupy is None or not isinstance(like, cupy.ndarray):
        return None
    with cupy.cuda.Device(device.ordinal):
        return tuple(cupy.empty(spec.shape, spec.dtype) for spec in specs)


def _fits(array: dict[str, Any], spec: TensorSpec, device: _runtime.Device) -> bool:
    """Tells whether an array can be used where it lies."""
    address, dtype = array["data"][0], numpy_dtype(spec.dtype)
    return (
        tuple(array["shape"]) == spec.shape
        and array["typestr"] == dtype.str
        and is_row_major(spec.shape, array.get("strides"), dtype.itemsize)
        and bool(address)
        and address % device.alignment == 0
        and device.holds(address)
        and array.get("mask") is None
    )
