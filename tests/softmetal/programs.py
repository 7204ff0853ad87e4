"""Runs programs compiled for Metal on the software Metal device, without the runtime.

What engineers of kernels use: one command after another, each waited for, in the memory that the
program plans. `pytest tests/conformance --device metal` goes through the runtime instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from npusim.abi.kernels import KERNELS
from npusim.codegen.metal.generator import specialise
from npusim.program.program import BufferKind, Command, CompiledProgram, Method
from npusim.targets import TargetConfig
from tests.softmetal import metal

FAILURE_BYTES = 24


class KernelFailure(Exception):
    """What a kernel reported: (code, value, limit)."""


class Kernels:
    """Pipelines by stem and parameters, compiled when they are first wanted."""

    def __init__(self, device: metal.Device, target: str = "metal") -> None:
        self.device = device
        self.features = TargetConfig.named(target).features
        self._made: dict[str, metal.Object] = {}

    def pipeline(self, source: str, entry: str) -> metal.Object:
        """Returns the pipeline of an entry of a text."""
        key = f"{entry}\0{source}"
        if key not in self._made:
            self._made[key] = self.device.kernel(source, entry)
        return self._made[key]

    def run(self, stem: str, params: bytes, operands: Sequence[tuple[metal.Buffer, int]]) -> None:
        """Runs one command over (buffer, byte offset) of each operand.

        Raises:
            KernelFailure: what a kernel reported.
            metal.MetalError: the text was refused, or the device stopped.
        """
        source, config = specialise(stem, params, self.features)
        bound = list(operands)
        for size in (config.scratch, FAILURE_BYTES if config.failure else 0):
            if size:
                bound.append((self.device.buffer(np.zeros(size, np.uint8)), 0))
        for launch in config.launches:
            pipeline = self.pipeline(source, launch.entry)  # raises before an encoder is open
            with metal.Pool():
                commands = self.device.commands()
                encoder = commands.encoder()
                encoder.send("setComputePipelineState:", pipeline)
                for index, (buffer, offset) in enumerate(bound):
                    encoder.send("setBuffer:offset:atIndex:", buffer, offset, index)
                if launch.shared:
                    encoder.send("setThreadgroupMemoryLength:atIndex:", launch.shared, 0)
                encoder.send(
                    "dispatchThreadgroups:threadsPerThreadgroup:",
                    metal.size(*launch.grid),
                    metal.size(*launch.block),
                )
                encoder.end()
                commands.run()
        if config.failure:
            code, value, limit = bound[-1][0].array(np.int64)
            if code:
                raise KernelFailure(int(code), int(value), int(limit))

    def call(self, stem: str, operands: Sequence[torch.Tensor], **params: object) -> None:
        """Runs one kernel over contiguous tensors, and writes back what it left in them.

        Also where the kernel failed.
        """
        buffers = [self.device.buffer(_bytes(t)) for t in operands]
        try:
            self.run(stem, KERNELS[stem].pack(params), [(b, 0) for b in buffers])  # type: ignore[arg-type]
        finally:
            for tensor, buffer in zip(operands, buffers, strict=True):
                _bytes(tensor)[:] = buffer.array()


def run_program(
    kernels: Kernels,
    program: CompiledProgram,
    inputs: Sequence[NDArray[np.uint8]],
    weights: Mapping[str, NDArray[np.uint8]] | None = None,
) -> list[NDArray[np.uint8]]:
    """Runs init and the first method of an assembled program; returns its outputs' bytes."""
    memory = _Memory(kernels.device, program, program.methods[0], inputs)
    for spec in program.weights:
        data = next((weights or {})[key] for key in spec.keys if key in (weights or {}))
        memory.own[spec.buffer] = kernels.device.buffer(data)
    for method in (program.init, program.methods[0]):
        memory.enter(method)
        for command in method.commands:
            stem = program.kernels[command.kernel].name
            kernels.run(stem, command.params, [memory.place(command, i) for i in _indices(command)])
    return [memory.own[spec.buffer].array().copy() for spec in program.output_specs]


def _indices(command: Command) -> range:
    return range(len(command.operands))


class _Memory:
    """The buffers of a program, as its memory plan lays them out."""

    def __init__(
        self,
        device: metal.Device,
        program: CompiledProgram,
        method: Method,
        inputs: Sequence[NDArray[np.uint8]],
    ) -> None:
        self.device, self.program = device, program
        constants = np.frombuffer(program.constants, np.uint8)
        self.arenas = {
            BufferKind.CONSTANT: device.buffer(constants) if constants.size else _room(device, 0),
            BufferKind.PERSISTENT: _room(device, program.persistent_bytes),
            BufferKind.STATE: _room(device, program.state_bytes),
        }
        given = {s.buffer: data for s, data in zip(method.inputs, inputs, strict=True)}
        self.own: dict[int, metal.Buffer] = {}
        for index, buffer in enumerate(program.buffers):
            if buffer.kind in (BufferKind.INPUT, BufferKind.OUTPUT):
                data = given.get(index)
                self.own[index] = (
                    _room(device, buffer.bytes) if data is None else device.buffer(data)
                )

    def enter(self, method: Method) -> None:
        """Gives a method its arena."""
        self.arenas[BufferKind.TEMP] = _room(self.device, method.arena_bytes)

    def place(self, command: Command, index: int) -> tuple[metal.Buffer, int]:
        """Returns where an operand lies."""
        operand = command.operands[index]
        if operand.buffer in self.own:
            return self.own[operand.buffer], operand.offset
        buffer = self.program.buffers[operand.buffer]
        return self.arenas[buffer.kind], buffer.offset + operand.offset


def _bytes(tensor: torch.Tensor) -> NDArray[np.uint8]:
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _room(device: metal.Device, size: int) -> metal.Buffer:
    """Returns memory full of what nobody should read."""
    return device.buffer(np.full(max(size, 16), 0xA5, np.uint8))
