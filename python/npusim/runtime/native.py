"""How Python objects of the program package reach C++. Owns the cache of native programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from npusim import _runtime
from npusim.program.program import CompiledProgram, TensorSpec

ProgramLike: TypeAlias = "CompiledProgram | _runtime.Program | str | os.PathLike[str]"

_CACHE = "_native_program"  # attribute of a CompiledProgram that holds its native twin


def native_program(program: ProgramLike) -> _runtime.Program:
    """Returns the C++ twin of a program: always the same one for the same CompiledProgram.

    Args:
        program: a CompiledProgram, the path of a `.npubin` file, or a native program already.

    Raises:
        ProgramFormatError: the bytes are not a sound program.
        Error: the file cannot be read.
    """
    if isinstance(program, _runtime.Program):
        return program
    if isinstance(program, CompiledProgram):
        twin = program.__dict__.get(_CACHE)
        if twin is None:
            twin = _runtime.Program.from_bytes(program.to_bytes())
            program.__dict__[_CACHE] = twin
        return twin
    return _runtime.Program.open(Path(program))


def specs(rows: list[tuple[str, int, str, tuple[int, ...], tuple[int, ...]]]) -> list[TensorSpec]:
    """Returns the TensorSpecs of what `Program.inputs` and `Program.outputs` list."""
    return [TensorSpec(*row) for row in rows]
