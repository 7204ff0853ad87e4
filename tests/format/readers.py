"""The two readers of `.npubin`, as one kind of function: bytes in, or ProgramFormatError."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from npusim import _runtime
from npusim.errors import ProgramFormatError
from npusim.program.container import Section, pack_container, unpack_container
from npusim.program.format import read_program

READERS: dict[str, Callable[[bytes], object]] = {
    "python": read_program,
    "native": _runtime.Program.from_bytes,
}


def accepts(reader: str, data: bytes) -> bool:
    """Tells whether a reader takes a file. Any error but ProgramFormatError is a failure."""
    try:
        READERS[reader](data)
    except ProgramFormatError:
        return False
    return True


def refuse(data: bytes, *words: str) -> None:
    """Checks that both readers refuse a file; `words` must stand in either message."""
    for name, read in READERS.items():
        try:
            read(data)
        except ProgramFormatError as error:
            for word in words:
                assert word in str(error), f"{name}: no {word!r} in: {error}"
        else:
            pytest.fail(f"{name} accepted the file; expected {words}")


def sections_of(data: bytes) -> dict[Section, bytearray]:
    """Returns the sections of a sound file, to be changed and put together by `pack`."""
    chunks = unpack_container(memoryview(data))
    return {section: bytearray(chunk.data) for section, chunk in chunks.items()}


def pack(sections: dict[Section, bytearray]) -> bytes:
    """Returns a sound container around whatever the sections hold."""
    return pack_container({section: bytes(data) for section, data in sections.items()})
