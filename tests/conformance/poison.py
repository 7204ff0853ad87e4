"""Programs run over memory in which everything that is nobody's holds NaN."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

import npusim
from npusim.program.program import Buffer, BufferKind, CompiledProgram
from npusim.runtime import DeviceBuffer, Executor

POISON = 0xFF  # of every byte: NaN as a float, -1 as an integer, true as a bool


def run_poisoned(
    program: CompiledProgram, given: Sequence[np.ndarray], device: npusim.Device
) -> list[np.ndarray]:
    """Returns the bits of all outputs; padding of inputs and temporaries is poisoned."""
    executor = Executor(program, device)
    inputs = {
        spec.name: _poisoned(DeviceBuffer(device, spec.dtype, spec.shape, spec.alloc_shape), array)
        for spec, array in zip(executor.inputs(), given, strict=True)
    }
    temps = {i: b for i, b in enumerate(program.buffers) if b.kind is BufferKind.TEMP and b.bytes}
    lives = _lives(program, temps)

    def poison(wanted: Sequence[int]) -> None:
        for index in wanted:
            executor.write_buffer(index, bytes([POISON]) * temps[index].bytes)

    def everything(command: int) -> None:
        if command == len(program.methods[0].commands) - 1:
            poison(list(lives))

    def fresh(command: int) -> None:
        poison(_untouched(command + 1, lives, temps))

    executor.observe(everything, inputs)
    results = executor.observe(fresh, inputs)
    return [bits(buffer) for buffer in results.values()]


def bits(buffer: DeviceBuffer) -> np.ndarray:
    """Returns the bytes of a buffer's elements, without its padding."""
    corner = tuple(slice(0, n) for n in buffer.shape)
    whole = np.frombuffer(buffer.read(), f"V{buffer.nbytes // max(_count(buffer), 1) or 1}")
    return whole.reshape(buffer.alloc_shape)[(..., *corner)].copy()


def _count(buffer: DeviceBuffer) -> int:
    return int(np.prod(buffer.alloc_shape, dtype=np.int64))


def _poisoned(buffer: DeviceBuffer, array: np.ndarray) -> DeviceBuffer:
    if not buffer.nbytes:
        return buffer
    whole = np.full(buffer.nbytes, POISON, np.uint8).view(array.dtype).reshape(buffer.alloc_shape)
    whole[(..., *(slice(0, n) for n in array.shape))] = array
    buffer.write(whole)
    return buffer


def _lives(program: CompiledProgram, temps: Mapping[int, Buffer]) -> dict[int, tuple[int, int]]:
    """Returns the first and the last command that touches each temporary."""
    lives: dict[int, tuple[int, int]] = {}
    for index, command in enumerate(program.methods[0].commands):
        for operand in command.operands:
            if operand.buffer in temps:
                first, _ = lives.get(operand.buffer, (index, index))
                lives[operand.buffer] = first, index
    return lives


def _untouched(
    command: int, lives: Mapping[int, tuple[int, int]], temps: Mapping[int, Buffer]
) -> list[int]:
    """Returns the temporaries that a command touches first, in memory that holds nothing else."""
    now = [i for i, (first, last) in lives.items() if first <= command <= last]

    def apart(a: Buffer, b: Buffer) -> bool:
        return a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset

    return [
        i
        for i in now
        if lives[i][0] == command and all(j == i or apart(temps[i], temps[j]) for j in now)
    ]
