"""Planting a fault: one command of a compiled program computes something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from npusim.abi.kernels import KERNELS
from npusim.program.program import CompiledProgram


def plant(
    program: CompiledProgram, stem: str, which: int, **changes: Any
) -> tuple[CompiledProgram, int]:
    """Changes parameters of the `which`-th command of a stem; returns the program and the index
    of the command."""
    method = program.methods[0]
    found = [i for i, c in enumerate(method.commands) if program.kernels[c.kernel].name == stem]
    index = found[which]
    command = method.commands[index]
    fields = {**KERNELS[stem].unpack(command.params), **changes}
    wrong = replace(command, params=KERNELS[stem].pack(fields))
    assert wrong.params != command.params
    commands = (*method.commands[:index], wrong, *method.commands[index + 1 :])
    methods = (replace(method, commands=commands), *program.methods[1:])
    return replace(program, methods=methods), index
