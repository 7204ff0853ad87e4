"""How full memories are while a program runs: by its plan of buffers, and by its schedules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from npusim.program.program import BufferKind, CompiledProgram, Method
from npusim.schedule import Schedule
from npusim.targets import Npu

MIB = 2**20


def dram_bytes(program: CompiledProgram, method: Method) -> list[int]:
    """Returns the bytes in use during each command.

    Weights, constants, state, inputs and outputs are there all the time; a temporary buffer from
    the first command that touches it to the last.
    """
    lasting = sum(program.buffers[spec.buffer].bytes for spec in program.weights)
    lasting += program.persistent_bytes + program.state_bytes + len(program.constants)
    bound = {spec.buffer for spec in (*method.inputs, *method.outputs)}
    lasting += sum(program.buffers[index].bytes for index in bound)
    lives: dict[int, tuple[int, int]] = {}
    for at, command in enumerate(method.commands):
        for operand in command.operands:
            if program.buffers[operand.buffer].kind is BufferKind.TEMP:
                lives[operand.buffer] = lives.get(operand.buffer, (at, at))[0], at
    change = [0] * (len(method.commands) + 1)
    for buffer, (first, last) in lives.items():
        change[first] += program.buffers[buffer].bytes
        change[last + 1] -= program.buffers[buffer].bytes
    found = []
    for step in change[:-1]:
        lasting += step
        found.append(lasting)
    return found


def memories(
    program: CompiledProgram,
    method: Method,
    npu: Npu | None,
    schedules: Sequence[Iterable[Schedule]],
    starts: Sequence[float],
) -> list[dict[str, Any]]:
    """Returns the memories of a report; `bytes` is 0 where the capacity is not known.

    Args:
        starts: second at which each command begins.
    """
    dram = dram_bytes(program, method)
    if npu is None:
        return [_memory("dram", 0, starts, dram)]
    found = []
    for level in npu.sram:
        used = [
            max((s.bytes for s in rows if s.memory == level.name), default=0) for rows in schedules
        ]
        found.append(_memory(level.name, level.bytes, starts, used))
    return [*found, _memory("dram", int(npu.dram.capacity_mib * MIB), starts, dram)]


def _memory(name: str, nbytes: int, starts: Sequence[float], used: list[int]) -> dict[str, Any]:
    steps: list[list[float]] = []
    for start, amount in zip(starts, used, strict=True):
        if not steps or steps[-1][1] != amount:
            steps.append([start, amount])
    return {
        "name": name,
        "bytes": nbytes,
        "peak_bytes": max(used, default=0),
        "occupancy": steps,
    }
