"""How Python objects of the program package reach C++. Owns the cache of native programs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from npusim import _runtime
from npusim.errors import DeviceError, Error
from npusim.ir.size_text import parse_size
from npusim.ir.symbolic import symbol
from npusim.program.program import CompiledProgram, TensorSpec

ProgramLike: TypeAlias = "CompiledProgram | _runtime.Program | str | os.PathLike[str]"

Rows: TypeAlias = "list[tuple[str, int, str, tuple[int | str, ...], tuple[int, ...]]]"

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
    if not isinstance(program, (CompiledProgram, str, os.PathLike)):
        raise Error(
            f"A program is a CompiledProgram or the path of a .npubin file, not a "
            f"{type(program).__name__}."
        )
    if isinstance(program, CompiledProgram):
        twin = program.__dict__.get(_CACHE)
        if twin is None:
            twin = _runtime.Program.from_bytes(program.to_bytes())
            program.__dict__[_CACHE] = twin
        return twin
    return _runtime.Program.open(Path(program))


def native_device(device: object) -> _runtime.Device:
    """Returns a device.

    Raises:
        DeviceError: it is none.
    """
    if not isinstance(device, _runtime.Device):
        raise DeviceError(
            f"A device is an npusim.Device, not a {type(device).__name__}.",
            hint="Make one: npusim.Device('cpu').",
        )
    return device


def specs(rows: Rows, symbols: Sequence[tuple[str, int, int]] = ()) -> list[TensorSpec]:
    """Returns the TensorSpecs of what `Program.inputs` and `Program.outputs` list.

    Args:
        symbols: (name, least, greatest) of the symbols that shapes may hold, as text.
    """
    names = {name: symbol(name, low, high) for name, low, high in symbols}
    return [
        TensorSpec(name, buffer, dtype, tuple(_size(d, names) for d in shape), room)
        for name, buffer, dtype, shape, room in rows
    ]


def _size(value: int | str, symbols: Mapping[str, int]) -> int:
    return parse_size(value, symbols) if isinstance(value, str) else value
