"""The schedules of a program: which of its buffers stay on the chip, and tiles for each command.

A temporary buffer stays in the nearest memory from the command that makes it to the last one that
reads it, where it fits beside the others that do: so chains of commands meet there, and weights
and what is too large come from DRAM. What stays takes half of the memory at most; tiles have the
rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.abi.kernels import KERNELS
from npusim.errors import TargetConstraintError
from npusim.program.program import Access, BufferKind, Command, CompiledProgram, Method
from npusim.schedule.schedule import Schedule
from npusim.schedule.search import Kept, best_schedule
from npusim.schedule.work import Work, works_of
from npusim.targets import Npu, TargetConfig
from npusim.targets.hardware import Calibration

MIB = 2**20


@dataclass(frozen=True, slots=True)
class _Life:
    """A temporary buffer from its first to its last command, and how often it is touched."""

    buffer: int
    nbytes: int
    first: int
    last: int
    touched: int


def schedule_program(
    program: CompiledProgram, target: TargetConfig, position: int | None = None
) -> dict[str, tuple[Schedule, ...]]:
    """Returns the schedules of every method by name, in the order of its commands.

    Args:
        program: compiled for the target, or for another whose kernels are the same.
        target: its machine is made of parts.
        position: what commands at a position of a cache read there; None: as if all were in use.

    Raises:
        TargetConstraintError: the target describes no such machine, the program does not fit into
            its memory, or no tile of a command does; the message names the node and the limit.
    """
    npu = npu_of(target)
    check_capacity(program, npu)
    assert target.hardware is not None
    reached = target.hardware.calibration
    return {m.name: _method(program, m, npu, reached, position) for m in program.methods}


def npu_of(target: TargetConfig) -> Npu:
    """Returns a target's machine; TargetConstraintError where it has none that is made of parts."""
    if target.hardware is None or target.hardware.npu is None:
        raise TargetConstraintError(
            f"Target '{target.name}' describes no machine that programs are scheduled for.",
            hint="'npusim targets' lists those of the kind 'npu'.",
        )
    return target.hardware.npu


def check_capacity(program: CompiledProgram, npu: Npu) -> None:
    """Refuses a program that does not fit into a machine's DRAM.

    Raises:
        TargetConstraintError: the message says by how much, and names the largest tensor.
    """
    weights = [(program.buffers[spec.buffer].bytes, spec.keys[0]) for spec in program.weights]
    arena = max((method.arena_bytes for method in program.methods), default=0)
    needed = sum(nbytes for nbytes, _ in weights) + program.persistent_bytes
    needed += program.state_bytes + len(program.constants) + arena
    room = int(npu.dram.capacity_mib * MIB)
    if needed <= room:
        return
    rows = [*weights, (program.state_bytes, "the state"), (arena, "temporary buffers")]
    largest, name = max(rows)
    raise TargetConstraintError(
        f"The program takes {needed} bytes, and 'dram.capacity_mib' is {npu.dram.capacity_mib:g} "
        f"({room} bytes): {needed - room} too many. The largest are {largest} bytes: {name}.",
        hint="Compile a smaller model, quantize it, or describe a machine with more memory.",
    )


def _method(
    program: CompiledProgram,
    method: Method,
    npu: Npu,
    calibration: Calibration,
    position: int | None,
) -> tuple[Schedule, ...]:
    lives = _kept(_lives(program, method), npu)
    if lives:
        try:
            return _schedules(program, method, npu, calibration, position, lives)
        except TargetConstraintError:
            pass  # no tile fits beside what stays
    return _schedules(program, method, npu, calibration, position, [])


def _schedules(
    program: CompiledProgram,
    method: Method,
    npu: Npu,
    calibration: Calibration,
    position: int | None,
    lives: list[_Life],
) -> tuple[Schedule, ...]:
    found: list[Schedule] = []
    for index, command in enumerate(method.commands):
        here = {life.buffer: life for life in lives if life.first <= index <= life.last}
        kept = tuple(at for at, o in enumerate(command.operands) if o.buffer in here)
        taken = sum(life.nbytes for life in here.values())
        kernel = program.kernels[command.kernel].name
        works = works_of(kernel, KERNELS[kernel].unpack(command.params), position)
        for work in works:
            schedule = _scheduled(program, command, npu, calibration, work, kept, taken)
            found.append(replace(schedule, command=index))
    return tuple(found)


def _scheduled(
    program: CompiledProgram,
    command: Command,
    npu: Npu,
    calibration: Calibration,
    work: Work,
    kept: Kept,
    taken: int,
) -> Schedule:
    inside = tuple(part.operand for part in work.parts if part.operand < 0)
    try:
        return best_schedule(npu, work, (*kept, *inside), taken, calibration)
    except TargetConstraintError as error:
        node = program.nodes[command.node]
        place = f" ({node.source})" if node.source else ""
        tensors = "; ".join(
            f"operand {at} is {_tensor(program, operand.buffer)}"
            for at, operand in enumerate(command.operands)
        )
        raise TargetConstraintError(
            f"Node '{node.name}' ({node.op}){place}: {error} Its tensors: {tensors}.",
            hint="Describe a machine with a larger memory, or with smaller multiples of tiles.",
        ) from error


def _tensor(program: CompiledProgram, buffer: int) -> str:
    """Returns what a buffer is to a person: a weight by its key, or its name, with its bytes."""
    keys = {spec.buffer: spec.keys[0] for spec in program.weights}
    found = program.buffers[buffer]
    name = keys.get(buffer) or found.name
    kind = found.kind.name.lower()
    return f"{kind} '{name}' of {found.bytes} bytes" if name else f"{kind} of {found.bytes} bytes"


def _lives(program: CompiledProgram, method: Method) -> list[_Life]:
    """Returns the temporary buffers that one command writes first and others read."""
    found: dict[int, _Life] = {}
    for index, command in enumerate(method.commands):
        for operand in command.operands:
            buffer = program.buffers[operand.buffer]
            if buffer.kind is not BufferKind.TEMP or not buffer.bytes:
                continue
            life = found.get(operand.buffer)
            if life is None and operand.access is Access.WRITE:
                found[operand.buffer] = _Life(operand.buffer, buffer.bytes, index, index, 1)
            elif life is not None:
                found[operand.buffer] = replace(life, last=index, touched=life.touched + 1)
    return [life for life in found.values() if life.last > life.first]


def _kept(lives: list[_Life], npu: Npu) -> list[_Life]:
    """Returns the buffers that stay: those first that save most traffic for the room they take.

    With several cores only a memory that all share can keep what another core may read.
    """
    level = npu.level
    if npu.cores.count > 1 and level.scope == "core":
        return []
    room, taken = level.bytes // 2, dict[int, int]()
    kept = []
    for life in sorted(lives, key=lambda one: (-one.touched / (one.last - one.first), one.first)):
        span = range(life.first, life.last + 1)
        if all(taken.get(i, 0) + life.nbytes <= room for i in span):
            kept.append(life)
            for i in span:
                taken[i] = taken.get(i, 0) + life.nbytes
    return kept
