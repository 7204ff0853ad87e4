"""Values on their way between a caller, native partitions and PyTorch.

Owns the forms of one value: what the caller gave, a buffer of the device, a torch tensor. Each is
made when somebody asks for it, and at most once. On a device in host memory all are the same bytes;
bfloat16 stays bfloat16 on either side. torch is imported when a tensor is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from npusim import _runtime
from npusim.errors import ShapeError
from npusim.ir.types import HOST_DTYPES, TensorType
from npusim.program.program import TensorSpec
from npusim.runtime.device import DeviceBuffer
from npusim.runtime.host import dtype_of, is_torch, numpy_dtype, torch_bits
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
        """Returns the value as a torch tensor on the CPU.

        Raises:
            ShapeError: the caller gave another shape or dtype.
        """
        if self._tensor is None:
            import torch

            if self._buffer is not None:
                self._tensor = _download(self._buffer)
            elif self._given is not None:
                self._tensor = _host_tensor(self._given, self.spec)
            else:
                dtype = getattr(torch, self.spec.dtype)
                self._tensor = torch.zeros(self.spec.shape, dtype=dtype)
        return self._tensor

    def like(self, other: Any) -> Any:
        """Returns the value as the kind of array that `other` is; NumPy's for None."""
        if self._given is not None and type(other) is type(self._given):
            return self._given
        foreign = self.spec.dtype in HOST_DTYPES
        if is_torch(other) and (foreign or self._buffer is None):
            return self.tensor().to(other.device)
        if foreign or (self._tensor is not None and _is_numpy(other)):
            return _to_numpy(self.tensor(), self.spec)
        return tensor_like(other, cast(DeviceBuffer, self.buffer()))

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


def check_given(name: str, type: TensorType, value: Any) -> None:
    """Raises ShapeError unless a caller's tensor has the type of an input.

    For bfloat16, NumPy arrays of float32 do.
    """
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise ShapeError(
            f"'{name}' is a {value.__class__.__name__}.",
            hint="Pass a NumPy array, a torch tensor, or any tensor that speaks DLPack.",
        )
    shape, dtype = tuple(value.shape), dtype_of(value)
    if shape != type.shape:
        raise ShapeError(f"'{name}' has shape {list(shape)}, expected {list(type.shape)}.")
    rounded = type.dtype == "bfloat16" and dtype == "float32" and _is_numpy(value)
    if dtype != type.dtype and not rounded:
        raise ShapeError(f"'{name}' has dtype {dtype}, expected {type.dtype}.", hint="Cast it.")


def _is_numpy(value: Any) -> bool:
    return value is None or isinstance(value, (np.ndarray, np.generic))


def _upload(
    tensor: Tensor, device: _runtime.Device, spec: TensorSpec
) -> DeviceBuffer | _runtime.DeviceBuffer:
    """Returns a buffer that shows a tensor of the CPU, in its memory where the device shares it."""
    dense = tensor.resolve_conj().resolve_neg().contiguous()
    if device.shares_host_memory and spec.shape == spec.alloc_shape:
        return DeviceBuffer.from_dlpack(dense, device)
    return DeviceBuffer.from_bits(torch_bits(dense), device, spec)


def _download(buffer: DeviceBuffer | _runtime.DeviceBuffer) -> Tensor:
    """Returns a tensor of the CPU that shows a buffer, in its memory where the host shares it."""
    import torch

    if buffer.device.shares_host_memory:
        shared: Tensor = torch.from_dlpack(buffer)
        return shared
    is_bf16 = buffer.dtype == "bfloat16"
    bits = np.empty(buffer.alloc_shape, "int16" if is_bf16 else numpy_dtype(buffer.dtype))
    buffer.read_into(bits)
    corner: tuple[Any, ...] = (..., *(slice(0, extent) for extent in buffer.shape))
    tensor = torch.from_numpy(np.ascontiguousarray(bits[corner])).reshape(buffer.shape)
    return tensor.view(torch.bfloat16) if is_bf16 else tensor


def _host_tensor(value: Any, spec: TensorSpec) -> Tensor:
    """Returns a caller's tensor on the CPU; its own memory where that can be."""
    import torch

    if isinstance(value, _runtime.DeviceBuffer):
        return _download(value)
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
