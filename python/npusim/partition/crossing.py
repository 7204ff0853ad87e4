"""Values on their way between a caller, native partitions and PyTorch.

Owns the forms of one value: what the caller gave, a buffer of the device, a torch tensor. Each is
made when somebody asks for it, and at most once. On a device in host memory all are the same bytes;
others copy through pinned memory, and nobody waits for a copy before its value is read. bfloat16
stays bfloat16 on either side. torch is imported when a tensor is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from npusim import _runtime
from npusim.errors import ShapeError
from npusim.ir.types import HOST_DTYPES, TensorType
from npusim.program.program import TensorSpec
from npusim.runtime.device import DeviceBuffer
from npusim.runtime.host import (
    Array,
    dtype_of,
    from_bfloat16_bits,
    is_torch,
    numpy_dtype,
    torch_bits,
)
from npusim.runtime.session import as_buffer, tensor_like

if TYPE_CHECKING:
    from torch import Tensor


class Held:
    """One value of a run; made of a caller's tensor, a buffer, a torch tensor, or of zeros."""

    def __init__(
        self,
        name: str,
        type: TensorType,
        device: _runtime.Device,
        *,
        given: Any = None,
        buffer: DeviceBuffer | _runtime.DeviceBuffer | None = None,
        tensor: Tensor | None = None,
    ) -> None:
        self.spec = TensorSpec(name, 0, type.dtype, type.shape, type.shape)
        self._device = device
        self._given = given
        self._buffer = buffer
        self._tensor = tensor
        self._arrival: _runtime.Arrival | None = None

    def buffer(self, spec: TensorSpec | None = None) -> DeviceBuffer | _runtime.DeviceBuffer:
        """Returns the value on the device.

        Args:
            spec: how a program wants it; by default dense.

        Raises:
            ShapeError: the caller gave another shape or dtype, or the device lacks the dtype.
        """
        if self._buffer is None:
            spec = spec or self.spec
            if self.spec.dtype in HOST_DTYPES:
                raise ShapeError(
                    f"'{self.spec.name}' is {self.spec.dtype}, which no device has: it cannot "
                    f"cross to {self._device.name}."
                )
            if self._tensor is not None:
                self._buffer = _upload(self._tensor, self._device, spec)
            elif self._given is not None:
                self._buffer = as_buffer(self._given, self._device, spec)
            else:
                self._buffer = DeviceBuffer.from_spec(self._device, spec)
        return self._buffer

    def tensor(self) -> Tensor:
        """Returns the value as a torch tensor on the CPU; waits for it, and for nothing else.

        Raises:
            ShapeError: the caller gave another shape or dtype.
        """
        if self._tensor is None:
            import torch

            self.start_download()
            if self._arrival is not None:
                bits = torch.from_numpy(self._arrived("int16"))
                self._tensor = bits.view(getattr(torch, self.spec.dtype))
            elif self._buffer is not None:
                self._tensor = torch.from_dlpack(self._buffer)
            elif self._given is not None:
                self._tensor = _host_tensor(self._given, self.spec)
            else:
                dtype = getattr(torch, self.spec.dtype)
                self._tensor = torch.zeros(self.spec.shape, dtype=dtype)
        return self._tensor

    def start_download(self) -> None:
        """Starts to bring the value to the host, after the work that makes it.

        Nothing happens where the host has it already.
        """
        if self._device.uses_host_memory or self._tensor is not None or self._arrival is not None:
            return
        if self._buffer is None and self._is_given_on_device():
            self.buffer()
        if self._buffer is not None:
            self._arrival = self._buffer.start_read()

    def like(self, other: Any) -> Any:
        """Returns the value as the kind of array that `other` is; NumPy's for None."""
        if self._given is not None and type(other) is type(self._given):
            return self._given
        foreign = self.spec.dtype in HOST_DTYPES
        if self._buffer is not None and is_for_host(other):
            self.start_download()
        if self._arrival is not None and is_for_host(other):
            return self._brought(other)
        made_there = self._buffer is None or (self._tensor is not None and is_for_host(other))
        if is_torch(other) and (foreign or made_there):
            return self.tensor().to(other.device)
        if foreign or (is_numpy(other) and self._tensor is not None):
            return _to_numpy(self.tensor(), self.spec)
        return tensor_like(other, cast(DeviceBuffer, self.buffer()))

    def _is_given_on_device(self) -> bool:
        if isinstance(self._given, _runtime.DeviceBuffer):
            return True
        lent = is_torch(self._given) and self._given.device.type != "cpu"
        return lent and self.spec.dtype not in HOST_DTYPES

    def _arrived(self, bfloat16: str) -> Array:
        """Returns the elements in pinned memory; those of bfloat16 as an integer dtype."""
        assert self._arrival is not None and self._buffer is not None
        self._arrival.wait()
        dtype = (
            np.dtype(bfloat16) if self.spec.dtype == "bfloat16" else numpy_dtype(self.spec.dtype)
        )
        shape = self._buffer.alloc_shape
        whole = np.ndarray(shape, dtype, cast(Any, self._arrival))
        corner: tuple[Any, ...] = (..., *(slice(0, extent) for extent in self._buffer.shape))
        return cast(Array, whole[corner])

    def _brought(self, other: Any) -> Any:
        """Returns the value in memory of the caller's own: pinned memory is kept for other runs."""
        if is_torch(other):
            return self.tensor().clone()
        bits = self._arrived("uint16")
        return from_bfloat16_bits(bits) if self.spec.dtype == "bfloat16" else bits.copy()

    def copy(self) -> Held:
        """Returns the value in memory of its own, wherever it is."""
        twin = Held(self.spec.name, self._type, self._device)
        if self._tensor is not None or self.spec.dtype in HOST_DTYPES:
            twin._tensor = self.tensor().clone()
        else:
            source = self.buffer()
            twin._buffer = DeviceBuffer(
                self._device, source.dtype, source.shape, source.alloc_shape
            )
            twin._buffer.copy_from(source)
        return twin

    @property
    def _type(self) -> TensorType:
        return TensorType(self.spec.dtype, self.spec.shape)


def shape_of(name: str, value: Any) -> tuple[int, ...]:
    """Returns the shape of a caller's tensor; ShapeError when it is none."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise ShapeError(
            f"'{name}' is a {value.__class__.__name__}.",
            hint="Pass a NumPy array, a torch tensor, or any tensor that speaks DLPack.",
        )
    return tuple(value.shape)


def check_given(name: str, type: TensorType, value: Any) -> None:
    """Raises ShapeError unless a caller's tensor has the type of an input.

    For bfloat16, NumPy arrays of float32 do.
    """
    shape, dtype = tuple(value.shape), dtype_of(value)
    if shape != type.shape:
        raise ShapeError(f"'{name}' has shape {list(shape)}, expected {list(type.shape)}.")
    rounded = type.dtype == "bfloat16" and dtype == "float32" and is_numpy(value)
    if dtype != type.dtype and not rounded:
        raise ShapeError(f"'{name}' has dtype {dtype}, expected {type.dtype}.", hint="Cast it.")


def is_numpy(value: Any) -> bool:
    """Tells whether results for a caller who gave this are NumPy's."""
    return value is None or isinstance(value, (np.ndarray, np.generic))


def is_for_host(value: Any) -> bool:
    """Tells whether results for a caller who gave this are NumPy's, or PyTorch's on the CPU."""
    return is_numpy(value) or (is_torch(value) and bool(value.is_cpu))


def _upload(
    tensor: Tensor, device: _runtime.Device, spec: TensorSpec
) -> DeviceBuffer | _runtime.DeviceBuffer:
    """Returns a buffer that shows a tensor of the CPU, in its memory where the device shares it."""
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    if device.host_visible and spec.shape == spec.alloc_shape:
        return DeviceBuffer.from_dlpack(dense, device)
    return DeviceBuffer.from_bits(torch_bits(dense), device, spec)


def _host_tensor(value: Any, spec: TensorSpec) -> Tensor:
    """Returns a caller's tensor on the CPU; its own memory where that can be."""
    import torch

    if isinstance(value, _runtime.DeviceBuffer):  # in memory that the host shares
        shown: Tensor = torch.from_dlpack(value)
        return shown
    if is_torch(value):
        lent: Tensor = value.detach().cpu()
        return lent
    if not isinstance(value, (np.ndarray, np.generic)):
        other: Tensor = torch.from_dlpack(value).cpu()
        return other
    array = np.asarray(value)
    usable = array.flags.writeable and array.dtype.isnative and min(array.strides, default=0) >= 0
    if not usable:
        array = np.array(array, array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array).to(getattr(torch, spec.dtype))


def _to_numpy(tensor: Tensor, spec: TensorSpec) -> Any:
    """Returns a tensor as an array; bfloat16 as float32, as everywhere."""
    if spec.dtype.startswith("float8"):
        raise ShapeError(
            f"'{spec.name}' is {spec.dtype}, which NumPy does not have.",
            hint="Pass torch tensors, and torch tensors come back.",
        )
    dense = tensor.float() if spec.dtype == "bfloat16" else tensor
    return dense.detach().resolve_conj().resolve_neg().numpy()
