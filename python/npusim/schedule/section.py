"""What a program carries for the timing model: its machine and the schedules of its commands.

`docs/npubin.md`, *Simulation*, is the specification. What a file says is believed only after it was
read against the dataclasses and the program.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from npusim.errors import ProgramFormatError, TargetConstraintError
from npusim.program.program import CompiledProgram, Method
from npusim.schedule.plan import schedule_program
from npusim.schedule.schedule import DRAM, Schedule
from npusim.targets import Npu, TargetConfig
from npusim.targets.data_file import DataFile
from npusim.targets.override import file_data
from npusim.targets.records import read_record, to_data

SCHEMA = 1
Schedules = Mapping[str, tuple[Schedule, ...]]


def with_simulation(program: CompiledProgram, target: TargetConfig) -> CompiledProgram:
    """Returns a program that says what it was compiled for, and how that computes it.

    A backend's own target is known by its name, and its programs stay as they are.

    Raises:
        TargetConstraintError: the program does not fit into the machine.
    """
    if target.hardware is None or target.name == target.device:
        return program
    found = schedule_program(program, target) if target.hardware.npu is not None else {}
    facts = {
        "schema": SCHEMA,
        "target": _plain(file_data(target)),
        "schedules": {name: [to_data(s) for s in rows] for name, rows in found.items()},
    }
    return replace(program, simulation=facts)


def target_of(program: CompiledProgram) -> TargetConfig:
    """Returns the target that a program was compiled for: what it carries, or the backend's own.

    Raises:
        ProgramFormatError: what it carries is no target.
    """
    if not program.simulation:
        return TargetConfig.named(program.target)
    data = _member(program, "target")
    try:
        return TargetConfig.from_data(DataFile("its target", _numbers(data)))
    except TargetConstraintError as error:
        raise _damaged(str(error)) from error


def schedules_of(program: CompiledProgram) -> Schedules:
    """Returns the schedules that a program carries, by method; none of one that carries none.

    Raises:
        ProgramFormatError: they are malformed, contradict each other, or are not the program's.
    """
    if not program.simulation:
        return {}
    return _read_once(_Same(program))


class _Same:
    """A program as a key of the cache: the same objects, which nobody changes."""

    def __init__(self, program: CompiledProgram) -> None:
        self.program = program
        self._parts = id(program.simulation), id(program.methods)

    def __hash__(self) -> int:
        return hash(self._parts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._parts == other._parts


@lru_cache(maxsize=1)  # it keeps the program alive
def _read_once(same: _Same) -> Schedules:
    program = same.program
    stored = _member(program, "schedules")
    hardware = target_of(program).hardware
    npu = hardware.npu if hardware is not None else None
    methods = {method.name: method for method in program.methods}
    if npu is not None and set(stored) != set(methods):
        raise _damaged(f"its schedules are of {sorted(stored)}, its methods are {sorted(methods)}")
    found = {}
    for name, rows in stored.items():
        if npu is None or name not in methods or not isinstance(rows, list):
            raise _damaged(f"schedules of '{name}' are of no method, or no list")
        found[name] = tuple(_read(row, f"{name}[{i}]") for i, row in enumerate(rows))
        _check(found[name], methods[name], npu)
    return found


def _read(row: object, where: str) -> Schedule:
    try:
        return read_record(Schedule, row, f"schedule {where}")
    except TargetConstraintError as error:
        raise _damaged(str(error)) from error


def _check(schedules: tuple[Schedule, ...], method: Method, npu: Npu) -> None:
    """Holds the schedules of a method to its commands and to the machine's memories."""
    memories = {level.name: level.bytes for level in npu.sram}
    before = 0
    for schedule in schedules:
        where = f"a schedule of method '{method.name}', command {schedule.command},"
        if not before <= schedule.command < len(method.commands):
            raise _damaged(f"{where} is of no command, or out of order")
        before = schedule.command
        _check_unit(schedule, npu, where)
        if schedule.bytes > memories.get(schedule.memory, -1):
            raise _damaged(f"{where} takes {schedule.bytes} bytes of '{schedule.memory}'")
        operands = len(method.commands[schedule.command].operands)
        for plan in schedule.operands:
            if not -1 <= plan.operand < operands or plan.source not in (DRAM, *memories):
                raise _damaged(f"{where} has operand {plan.operand} in '{plan.source}'")


def _check_unit(schedule: Schedule, npu: Npu, where: str) -> None:
    """Holds a schedule to what its unit computes."""
    products = schedule.form in ("product", "conv", "depthwise")
    known = {"mxu": npu.mxu.macs_per_pe_cycle, "vpu": npu.vpu.dtype_rate}.get(schedule.unit)
    if known is not None and schedule.dtype not in known:
        raise _damaged(f"{where} computes {schedule.dtype} on '{schedule.unit}', which has none")
    if schedule.unit == "mxu" and not products:
        raise _damaged(f"{where} has the array compute '{schedule.form}'")


def _member(program: CompiledProgram, name: str) -> dict[str, Any]:
    if program.simulation.get("schema") != SCHEMA:
        raise _damaged(f"its schema is {program.simulation.get('schema')!r}, not {SCHEMA}")
    found = program.simulation.get(name)
    if not isinstance(found, dict):
        raise _damaged(f"'{name}' is no object")
    return found


def _damaged(why: str) -> ProgramFormatError:
    return ProgramFormatError(
        f"What the program says of its simulation is damaged: {why.rstrip('.')}.",
        hint="Compile the model again for the target.",
    )


def _plain(data: Any) -> Any:
    """Returns tables without infinite numbers, which JSON has not."""
    if isinstance(data, dict):
        return {k: _plain(v) for k, v in data.items()}
    if isinstance(data, list):
        return [_plain(v) for v in data]
    return "inf" if isinstance(data, float) and math.isinf(data) else data


def _numbers(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _numbers(v) for k, v in data.items()}
    if isinstance(data, list):
        return [_numbers(v) for v in data]
    return math.inf if data == "inf" else data
