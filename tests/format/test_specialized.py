"""Device code by parameters in a file: exact round trip, and damage that both readers refuse."""

from __future__ import annotations

import dataclasses
import random
import struct

import pytest

from npusim.errors import ProgramFormatError
from npusim.program.container import Section
from npusim.program.format import read_program, write_program
from npusim.program.program import Kernel, Specialized
from tests.format.readers import READERS, accepts, pack, sections_of
from tests.format.symbolic_program import specialized_program, symbolic_program

DATA = write_program(specialized_program())
CODES, KERNELS = Section.SPECIALIZED, Section.KERNELS


def test_what_is_read_is_what_was_written() -> None:
    program = read_program(DATA)
    assert program == specialized_program()
    assert write_program(program) == DATA
    assert all(accepts(reader, DATA) for reader in READERS)


def test_only_files_that_have_it_are_of_the_version() -> None:
    assert struct.unpack_from("<HH", DATA, 8) == (1, 2)
    assert struct.unpack_from("<HH", write_program(symbolic_program()), 8) == (1, 1)


def changed(section: Section, at: int, value: int) -> bytes:
    """Returns the file with one field of a section changed, and right checksums."""
    sections = sections_of(DATA)
    struct.pack_into("<I", sections[section], at, value)
    return pack(sections)


FIELDS = [
    (CODES, 0, 2, "out of order"),
    (CODES, 16 * 2, 3, "does not exist|out of order"),
    (CODES, 4, 99, "does not exist"),
    (CODES, 8, 99, "does not exist"),
    (CODES, 8, 2**32 - 1, "does not exist"),
    (CODES, 12, 1, "reserved"),
    (CODES, 16 + 4, struct.unpack_from("<I", sections_of(DATA)[CODES], 4)[0], "twice"),
    (KERNELS, 16 + 8, 0, "for all parameters, and for some"),
]


@pytest.mark.parametrize(("section", "at", "value", "words"), FIELDS)
def test_a_field_out_of_its_range(section: Section, at: int, value: int, words: str) -> None:
    data = changed(section, at, value)
    for read in READERS.values():
        with pytest.raises(ProgramFormatError, match=words):
            read(data)


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (Kernel("a", "s", b"code", (Specialized(b"", b"code"),)), "for all parameters, and for"),
        (Kernel("a", "s", specialized=(Specialized(b"", b""),)), "no device code for parameters"),
        (Kernel("a", "s", specialized=(Specialized(b"x", b"c"),) * 2), "twice"),
    ],
)
def test_what_is_not_sound_is_not_written(kernel: Kernel, words: str) -> None:
    program = specialized_program()
    broken = dataclasses.replace(program, kernels=(*program.kernels, kernel))
    with pytest.raises(ProgramFormatError, match=words):
        write_program(broken)


def test_readers_agree_on_random_damage() -> None:
    """Random fields: refused by both, or by none."""
    rng = random.Random(7)
    taken = 0
    for _ in range(300):
        section = rng.choice((CODES, KERNELS))
        at = rng.randrange(len(sections_of(DATA)[section]) // 4) * 4
        data = changed(section, at, rng.choice((*range(6), 2**31, 2**32 - 1)))
        verdicts = {reader: accepts(reader, data) for reader in READERS}
        assert len(set(verdicts.values())) == 1, (section.name, at, verdicts)
        taken += verdicts["python"]
    assert taken
