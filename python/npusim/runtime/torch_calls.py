"""Calls of a session with PyTorch tensors that fit as they are: used where they lie.

Such a call costs little more than one with NumPy arrays. A PyTorch that has DLPack's C interface is
served in C++ and only asked for outputs (`makers`); an older one by `TorchCalls`. All others take
the session's long way, which converts what can be converted and has the words for what cannot.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim import _runtime
from npusim.ir.symbolic import is_symbolic
from npusim.program.program import TensorSpec

_DEFAULT_STREAM = 1  # as CUDA writes it where 0 says none


def makers(
    kind: type, outputs: Sequence[TensorSpec], device: _runtime.Device
) -> list[Callable[[], Any]] | None:
    """Returns what makes an uninitialised tensor for each output; None for other kinds of tensor.

    Args:
        kind: the type of the inputs.
        outputs: dense ones.
        device: where the outputs are to lie.
    """
    torch = sys.modules.get("torch")
    if torch is None or kind is not torch.Tensor or device.torch_name is None:
        return None
    where = torch.device(device.torch_name)
    # The overload with strides takes half the time of torch.empty.
    return [
        partial(
            torch.empty_strided,
            spec.shape,
            tuple(math.prod(spec.shape[i + 1 :]) for i in range(len(spec.shape))),
            dtype=getattr(torch, spec.dtype),
            device=where,
        )
        for spec in outputs
    ]


def _fixed(shape: tuple[int, ...]) -> Any:
    """Returns a shape, or None for one with symbolic sizes, which are checked by the call."""
    import torch

    return None if is_symbolic(shape) else torch.Size(shape)


class TorchCalls:
    """The tensors of one method in PyTorch's terms. Needs PyTorch.

    A method with symbolic sizes is not run here over tensors of a device.
    """

    def __init__(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
        import torch

        specs = (*inputs, *outputs)
        self._inputs = [(getattr(torch, s.dtype), _fixed(s.shape)) for s in inputs]
        self._outputs = [(getattr(torch, s.dtype), _fixed(s.shape)) for s in outputs]
        self._dense = all(
            is_symbolic(a) or a == b
            for spec in specs
            for a, b in zip(spec.shape, spec.alloc_shape, strict=True)
        )
        self._in_numpy = all(spec.dtype != "bfloat16" for spec in specs)
        self._host = torch.device("cpu")

    def arrays(self, args: tuple[Any, ...]) -> list[NDArray[Any]] | None:
        """Returns tensors of the cpu as arrays on their memory; None when one does not fit."""
        if not (self._dense and self._in_numpy and self._fit(args, self._host)):
            return None
        return [np.asarray(value.numpy(force=True)) for value in args]

    def run(
        self,
        args: tuple[Any, ...],
        executor: _runtime.Executor,
        device: _runtime.Device,
        method: int,
        weights: _runtime.Weights | None,
    ) -> tuple[Any, ...] | None:
        """Runs over tensors of the device, and returns such; None when one does not fit."""
        import torch

        if not self._dense or not device.speaks_cuda:
            return None
        where = torch.device(device.torch_name)
        if not (self._fit(args, where) and all(value.is_contiguous() for value in args)):
            return None
        addresses = [value.data_ptr() for value in args]
        if any(address % device.alignment for address in addresses):
            return None
        outputs = tuple(
            torch.empty(shape, dtype=dtype, device=where) for dtype, shape in self._outputs
        )
        queue = torch.cuda.current_stream(where).cuda_stream or _DEFAULT_STREAM
        executor.run_at(method, addresses, [y.data_ptr() for y in outputs], weights, queue)
        return outputs

    def _fit(self, args: tuple[Any, ...], where: Any) -> bool:
        import torch

        if len(args) != len(self._inputs):
            return False
        return all(
            type(value) is torch.Tensor
            and value.dtype is dtype
            and (shape is None or value.shape == shape)
            and value.device == where
            for value, (dtype, shape) in zip(args, self._inputs, strict=True)
        )
