"""A program on a device with inputs and weights: runs it, and reads and replaces its values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from npusim.errors import ShapeError
from npusim.ir.types import TensorType
from npusim.partition.crossing import Held
from npusim.program.program import CompiledProgram, TensorSpec

if TYPE_CHECKING:
    from npusim.runtime import Device, DeviceBuffer, Executor, State


class NativeRun:
    """A program ready to run on given inputs, any number of times.

    Args:
        inputs: one tensor an input of the first method, in order.
        weights: by checkpoint key.

    Raises:
        Error: inputs or weights do not fit, or the program cannot run on the device.
    """

    def __init__(
        self,
        program: CompiledProgram,
        device: Device,
        inputs: Sequence[Tensor],
        weights: Mapping[str, Tensor],
    ) -> None:
        from npusim.runtime import Executor, load_weights

        specs = program.input_specs
        if len(inputs) != len(specs):
            raise ShapeError(f"The program takes {len(specs)} inputs, not {len(inputs)}.")
        self.program, self.device = program, device
        self.inputs, self.state_dict = list(inputs), weights
        self.executor: Executor = Executor(program, device)
        self.weights = load_weights(weights, program, device)
        self.buffers = self._bound(inputs)

    def give(self, inputs: Sequence[Tensor]) -> None:
        """Takes other inputs for the runs that follow, of the same shapes and dtypes."""
        self.inputs, self.buffers = list(inputs), self._bound(inputs)

    def run(self) -> list[Tensor]:
        """Returns the outputs of a run, in order, on the host. States start as zeros."""
        results = self.executor.run(self.buffers, self.weights, state=self._state())
        return [self._on_host(results[spec.name]) for spec in self.program.output_specs]

    def observe(self, after: Callable[[int], None]) -> None:
        """Runs once more, command by command, calling `after(index)` after each."""
        self.executor.observe(after, self.buffers, self.weights, state=self._state())

    def read(self, buffer: int, type: TensorType) -> Tensor | None:
        """Returns what a program buffer holds, as a tensor of a value's type, or None when the
        buffer is not there or too small."""
        flat = self.executor.read_buffer(buffer, type.dtype)
        if flat is None or flat.size < type.numel:
            return None
        tensor = torch.from_numpy(flat[: type.numel].copy())
        if type.dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        order = type.order or tuple(range(type.rank))
        logical = [order.index(d) for d in range(type.rank)]
        return tensor.reshape([type.shape[d] for d in order]).permute(logical)

    def write(self, buffer: int, type: TensorType, tensor: Tensor) -> None:
        """Replaces what a program buffer holds by a tensor of a value's type."""
        order = type.order or tuple(range(type.rank))
        stored = tensor.detach().cpu().permute(order).contiguous()
        self.executor.write_buffer(buffer, stored.reshape(-1).view(torch.uint8).numpy().tobytes())

    def _bound(self, inputs: Sequence[Tensor]) -> dict[str, DeviceBuffer]:
        return {
            spec.name: _buffer(tensor.detach().contiguous(), self.device, spec)
            for spec, tensor in zip(self.program.input_specs, inputs, strict=True)
        }

    def _on_host(self, buffer: DeviceBuffer) -> Tensor:
        kind = TensorType(buffer.dtype, buffer.shape)
        return Held("", kind, self.executor.device, buffer=buffer).tensor().clone()

    def _state(self) -> State | None:
        from npusim.runtime import State

        return State(self.program, self.executor.device) if self.program.state_bytes else None


def _buffer(tensor: Tensor, device: Device, spec: TensorSpec) -> DeviceBuffer:
    """Returns a tensor on a device: itself where the device can use it, else a copy."""
    from npusim.runtime import DeviceBuffer
    from npusim.runtime.host import torch_bits

    if device.host_visible:
        return DeviceBuffer.from_dlpack(tensor, device)
    return DeviceBuffer.from_bits(torch_bits(tensor.cpu()), device, spec)
