"""What is simulated: a method of a program at given sizes, the machine, and its schedules.

A program for one machine means something on another where that one would have been given the same
commands: it has their kernels and takes their dtypes and ranks, images lie likewise, and channels
are padded to what it asks for.
Everything else is refused with a sentence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from npusim.abi.kernels import KERNELS
from npusim.errors import Error, ShapeError, TargetConstraintError
from npusim.ir.types import DTYPE_NAMES
from npusim.profile.commands import CommandFacts, method_facts
from npusim.program.program import CompiledProgram, Method, method_named
from npusim.program.sized_command import greatest_sizes, params_at
from npusim.schedule import (
    Schedule,
    check_capacity,
    schedule_program,
    schedules_of,
    searched,
    target_of,
)
from npusim.schedule.cost import reached
from npusim.targets import TargetConfig, override
from npusim.targets.hardware import Hardware


@dataclass(frozen=True, slots=True)
class Plan:
    """What is walked.

    Attributes:
        program, method: of which every size is settled.
        target, hardware: the machine; hardware is the target's.
        commands: what each command is.
        schedules: of each command, in order; of a machine that is a roofline none.
    """

    program: CompiledProgram
    method: Method
    target: TargetConfig
    hardware: Hardware
    commands: tuple[CommandFacts, ...]
    schedules: tuple[tuple[Schedule, ...], ...]


def planned(
    program: CompiledProgram,
    target: str | TargetConfig | None = None,
    *,
    method: str | None = None,
    sizes: Mapping[str, int] | None = None,
    context: int | None = None,
    overrides: Iterable[str] = (),
) -> Plan:
    """Returns what is to be walked; arguments and errors are those of `npusim.simulate`."""
    if program.ranks > 1:
        raise TargetConstraintError(
            f"The program is of {program.ranks} ranks, and machines here are of one.",
            hint="Compile it for one rank.",
        )
    compiled_for = target_of(program)
    named = TargetConfig.named(target) if isinstance(target, str) else target
    chosen = override(named or compiled_for, overrides)
    hardware = chosen.hardware
    if hardware is None:
        raise TargetConstraintError(
            f"Target '{chosen.name}' describes no machine to simulate.",
            hint="'npusim targets' lists those that do; of a GPU's program name h200 or a100.",
        )
    entry = method_named(program, method)
    settled = _settled(entry, sizes or {})
    same = chosen == compiled_for
    if not same:
        _check_meaning(program, compiled_for, chosen)
    position = _position(program, context)
    sized = replace(program, methods=(_sized(entry, settled),))
    commands = method_facts(program, entry, settled, position)
    if not same and hardware.roofline is not None and hardware.roofline.dtypes:
        _check_dtypes(chosen, hardware.roofline.dtypes, commands)
    schedules: tuple[tuple[Schedule, ...], ...] = ()
    if hardware.npu is not None:
        as_compiled = settled == greatest_sizes(entry) and position is None
        if as_compiled and _same_search(compiled_for, hardware):
            check_capacity(program, hardware.npu)
            rows = schedules_of(program)[entry.name]
        else:
            rows = schedule_program(sized, chosen, position)[entry.name]
        schedules = _by_command(rows, len(commands))
        if not same:
            _check_units(program, entry, chosen, schedules)
    return Plan(sized, sized.methods[0], chosen, hardware, commands, schedules)


def _same_search(compiled_for: TargetConfig, other: Hardware) -> bool:
    """Returns whether the schedules that a program carries are those of a machine."""
    own = compiled_for.hardware
    if own is None or own.npu is None or other.npu is None:
        return False
    same = reached(own.calibration) == reached(other.calibration)
    return same and searched(own.npu) == searched(other.npu)


def _settled(method: Method, sizes: Mapping[str, int]) -> dict[str, int]:
    """Returns a value for each symbolic size: the one given, or the greatest."""
    settled = greatest_sizes(method)
    for name, value in sizes.items():
        symbol = next((s for s in method.symbols if s.name == name), None)
        if symbol is None:
            known = ", ".join(settled) or "none"
            raise ShapeError(
                f"Method '{method.name}' has no symbolic size '{name}'; it has: {known}."
            )
        if not symbol.low <= value <= symbol.high:
            raise ShapeError(f"{name} is {value}; possible is {symbol.low} … {symbol.high}.")
        settled[name] = value
    return settled


def _sized(method: Method, sizes: Mapping[str, int]) -> Method:
    """Returns a method whose commands are those of one call."""
    if not any(command.patches for command in method.commands):
        return method
    commands = (
        replace(command, params=params_at(command, sizes), patches=())
        for command in method.commands
    )
    return replace(method, commands=tuple(commands))


def _position(program: CompiledProgram, context: int | None) -> int | None:
    """Returns where in its cache a language model stands, or None: at its end."""
    if context is None:
        return None
    facts = program.metadata.get("language_model")
    if not isinstance(facts, Mapping):
        raise Error("The program is no language model: it has no context.")
    if not 0 <= context < facts["max_context"]:
        raise Error(
            f"A context of {context} tokens does not fit: the program holds "
            f"{facts['max_context']}.",
            hint=f"Give 0 … {facts['max_context'] - 1}.",
        )
    return context


def _by_command(rows: tuple[Schedule, ...], count: int) -> tuple[tuple[Schedule, ...], ...]:
    found: list[list[Schedule]] = [[] for _ in range(count)]
    for row in rows:
        found[row.command].append(row)
    return tuple(map(tuple, found))


def _check_meaning(program: CompiledProgram, own: TargetConfig, other: TargetConfig) -> None:
    """Refuses a machine for which the model would have become another program."""
    why = _difference(program, own, other)
    if why is not None:
        raise TargetConstraintError(
            f"The program was compiled for '{own.name}' and says nothing of '{other.name}': {why}.",
            hint=f"Compile the model for it: --target {other.name}.",
        )


def _difference(program: CompiledProgram, own: TargetConfig, other: TargetConfig) -> str | None:
    if own.device != other.device:
        return f"its commands are those of device '{own.device}', not of '{other.device}'"
    stems = {kernel.name for kernel in program.kernels}
    if missing := sorted(stems - set(other.kernels)):
        return f"it has not the kernels {', '.join(missing)}"
    if "conv_winograd" in stems and not other.winograd_tiles:
        return "convolutions are computed by Winograd's algorithm, which it has not"
    if own.conv_channels_last != other.conv_channels_last:
        return "images lie in another order"
    for dtype in sorted(_dtypes(program)):
        mine, wanted = own.channel_multiple(dtype), other.channel_multiple(dtype)
        if mine % wanted:
            return f"channels of {dtype} are padded to multiples of {mine}, not of {wanted}"
    rank = 0 if other.npu is None else other.npu.constraints.max_rank
    allowed = 0 if own.npu is None else own.npu.constraints.max_rank
    if rank and not 0 < allowed <= rank:
        most = f"at most {allowed}" if allowed else "any number of"
        return f"tensors have {most} dimensions in it, and at most {rank} there"
    return None


def _check_dtypes(
    other: TargetConfig, held: Sequence[str], commands: Iterable[CommandFacts]
) -> None:
    """Refuses a machine, one that is a roofline, that takes other dtypes only."""
    for command in commands:
        dtype = _taken(command)
        if dtype is not None and dtype not in held:
            raise TargetConstraintError(
                f"The program says nothing of '{other.name}': it takes {' or '.join(held)}, not "
                f"{dtype}, which node '{command.node}' ({command.op}) has, so that PyTorch would "
                "have got it.",
                hint="Compile the model in a dtype that the machine takes.",
            )


def _taken(command: CommandFacts) -> str | None:
    """Returns the dtype of a command's first operand, or None where its kernel does not say."""
    fields = {name for name, _, _ in KERNELS[command.kernel].fields}
    key = next((key for key in ("x_dtype", "dtype") if key in fields), None)
    if key is None or ("n_inputs" in fields and not command.params.get("n_inputs", 0)):
        return None
    code = command.params.get(key, 0)
    return DTYPE_NAMES[code[0] if isinstance(code, tuple) else code]


def _check_units(
    program: CompiledProgram,
    method: Method,
    other: TargetConfig,
    schedules: Iterable[tuple[Schedule, ...]],
) -> None:
    """Refuses a machine that computes less of the program than it was compiled for."""
    for command, rows in zip(method.commands, schedules, strict=True):
        for row in rows:
            if row.unit == "host":
                node = program.nodes[command.node]
                raise TargetConstraintError(
                    f"The program says nothing of '{other.name}': no unit of it computes "
                    f"{row.dtype}, which node '{node.name}' ({node.op}) has, so that PyTorch would "
                    "have got it.",
                    hint="Compile the model in a dtype that the machine computes.",
                )


def _dtypes(program: CompiledProgram) -> set[str]:
    specs = [s for method in program.methods for s in (*method.inputs, *method.outputs)]
    return {spec.dtype for spec in specs} | {spec.dtype for spec in program.weights}
