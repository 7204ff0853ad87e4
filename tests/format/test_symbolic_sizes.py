"""Symbolic sizes in a file: exact round trip, and damage that both readers refuse alike."""

from __future__ import annotations

import dataclasses
import random
import struct

import pytest

from npusim import _runtime
from npusim.errors import ProgramFormatError
from npusim.ir.symbolic import symbol
from npusim.program.container import Section
from npusim.program.format import read_program, write_program
from npusim.program.program import Kernel
from tests.format.readers import READERS, accepts, pack, refuse, sections_of
from tests.format.symbolic_program import BATCH, SEQ, symbolic_program

DATA = write_program(symbolic_program())
SHAPES, STEPS = Section.SHAPES, Section.EXPRESSIONS
DIMS, PATCHES, SYMBOLS = Section.SYMBOLIC_DIMS, Section.PATCHES, Section.SYMBOLS


def test_what_is_read_is_what_was_written() -> None:
    program = read_program(DATA)
    assert program == symbolic_program()
    assert write_program(program) == DATA
    assert [s.name for s in program.methods[0].symbols] == ["batch", "seq"]
    assert program.methods[1].symbols == ()


def test_both_readers_show_the_same_sizes() -> None:
    native = _runtime.Program.from_bytes(DATA)
    method = read_program(DATA).methods[0]
    for shown, specs in ((native.inputs(0), method.inputs), (native.outputs(0), method.outputs)):
        texts = [[str(size) for size in spec.shape] for spec in specs]
        assert [[str(size) for size in row[3]] for row in shown] == texts
    assert native.symbols(0) == [("batch", 1, 8), ("seq", 2, 64)] and native.symbols(1) == []
    assert native.inputs(0)[0][3] == ("batch", "4*seq")
    assert native.outputs(0)[0][3] == ("batch*seq", 4)
    assert native.bind(0, [(3, 20)]) == (3, 5)
    inputs, outputs = native.specs_at(0, (3, 5))
    assert inputs[0][3:] == ((3, 20), (3, 20)) and outputs[0][3:] == ((15, 4), (15, 4))


def test_files_without_them_keep_their_version() -> None:
    program = symbolic_program()
    static = dataclasses.replace(program, methods=program.methods[1:])
    assert struct.unpack_from("<HH", DATA, 8) == (1, 1)
    assert struct.unpack_from("<HH", write_program(static), 8) == (1, 0)


def changed(section: Section, at: int, form: str, value: int) -> bytes:
    """Returns the file with one field of a section changed, and right checksums."""
    sections = sections_of(DATA)
    struct.pack_into(f"<{form}", sections[section], at, value)
    return pack(sections)


FIELDS = [
    (SYMBOLS, 4, "I", 1, "reserved"),
    (SYMBOLS, 8, "q", -1, "bounds"),
    (SYMBOLS, 8, "q", 8, "bounds"),
    (SYMBOLS, 16, "q", 2**40 + 1, "bounds"),
    (SYMBOLS, 0, "I", 99, "string 99 does not exist"),
    (STEPS, 0, "I", 8, "unknown"),
    (STEPS, 4, "I", 2, "symbol"),
    (STEPS, 8, "I", 1, "meaning"),
    (STEPS, 12, "I", 1, "reserved"),
    (STEPS, 16, "q", 1, "meaning"),
    (SHAPES, 0, "I", 0, "out of order"),
    (SHAPES, 0, "I", 3, "out of order"),
    (SHAPES, 4, "I", 3, "records are asked for"),
    (SHAPES, 8, "I", 2**32 - 1, "records are asked for"),
    (SHAPES, 12, "I", 4, "records are asked for"),
    (SHAPES, 16, "I", 4, "belongs to nothing"),
    (SHAPES, 20, "I", 1, "reserved"),
    (DIMS, 16, "I", 9, "not exist"),
    (DIMS, 16 * 2, "I", 0, "not in order"),
    (DIMS, 16 * 2, "I", 9, "does not exist"),
    (DIMS, 4, "I", 1, "not in order"),
    (DIMS, 16 * 2 + 4, "I", 2, "does not exist"),
    (DIMS, 8, "I", 99, "does not exist"),
    (DIMS, 12, "I", 1, "reserved"),
    (DIMS, 8, "I", 2, "tells"),
    (PATCHES, 16, "I", 0, "not in order"),
    (PATCHES, 16 * 4, "I", 2, "command 2|its command"),
    (PATCHES, 4, "I", 2, "not in order"),
    (PATCHES, 16 * 4 + 4, "I", 5, "fit"),
    (PATCHES, 16 * 4 + 8, "I", 2, "fit"),
    (PATCHES, 8, "I", 2, "fit"),
    (PATCHES, 16 * 3 + 8, "I", 32, "fit"),
    (PATCHES, 12, "I", 99, "does not exist"),
]


@pytest.mark.parametrize(("section", "at", "form", "value", "words"), FIELDS)
def test_a_field_out_of_its_range(
    section: Section, at: int, form: str, value: int, words: str
) -> None:
    data = changed(section, at, form, value)
    for read in READERS.values():
        with pytest.raises(ProgramFormatError, match=words):
            read(data)


def with_steps(*steps: tuple[int, int, int, int]) -> bytes:
    """Returns the file with steps (op, a, b, value) after its own."""
    sections = sections_of(DATA)
    count = len(sections[STEPS]) // 24
    for op, a, b, value in steps:
        sections[STEPS] += struct.pack("<IIIIq", op, a, b, 0, value)
    struct.pack_into("<I", sections[SHAPES], 8, count + len(steps))
    return pack(sections)


OWN = len(sections_of(DATA)[STEPS]) // 24


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([(0, 0, 0, 2**62 + 1)], "62 bits"),
        ([(0, 0, 0, -(2**63))], "62 bits"),
        ([(0, 0, 0, 2**61), (3, OWN, OWN, 0)], "62 bits"),
        ([(0, 0, 0, 2**62), (2, OWN, OWN, 0)], "62 bits"),
        ([(0, 0, 0, 0), (4, 0, OWN, 0)], "not positive"),
        ([(0, 0, 0, -1), (5, 0, OWN, 0)], "not positive"),
        ([(3, OWN, 0, 0)], "not before it"),
        ([(0, 0, 0, 1), *((2, OWN + i, OWN + i, 0) for i in range(10))], "1000 steps"),
    ],
)
def test_steps_that_could_fail(steps: list[tuple[int, int, int, int]], words: str) -> None:
    refuse(with_steps(*steps), words)


def test_steps_that_are_large_but_sound() -> None:
    steps = [(0, 0, 0, -7), *((6, OWN + i, 0, 0) for i in range(400))]
    data = with_steps(*steps)
    assert all(accepts(reader, data) for reader in READERS)


def test_symbols_are_sorted_and_named() -> None:
    sections = sections_of(DATA)
    first, second = sections[SYMBOLS][:24], sections[SYMBOLS][24:]
    refuse(pack({**sections, SYMBOLS: second + first}), "sorted")
    renamed = read_program(DATA)
    for name in ("a b", "é", "1a"):
        texts = sections_of(DATA)
        blob = bytes(texts[Section.STRINGS]).replace(b"batch", name.encode().ljust(5, b"!")[:5])
        refuse(pack({**texts, Section.STRINGS: bytearray(blob)}))
    assert renamed.methods[0].symbols[0].name == "batch"


def test_device_code_has_no_symbolic_sizes() -> None:
    program = dataclasses.replace(symbolic_program(), kernels=(Kernel("copy", "schema", b"code"),))
    with pytest.raises(ProgramFormatError, match="device code"):
        write_program(program)


def test_a_size_that_no_input_tells_is_not_written() -> None:
    program = symbolic_program()
    method = program.methods[0]
    other = dataclasses.replace(method.inputs[0], shape=(BATCH, symbol("other", 1, 64) * SEQ))
    broken = dataclasses.replace(method, inputs=(other,))
    data = write_program(dataclasses.replace(program, methods=(broken,)))
    refuse(data, "tells")


def test_readers_agree_on_random_damage() -> None:
    """Random fields of the new sections: refused by both, or by none."""
    rng = random.Random(7)
    sections = (SYMBOLS, STEPS, SHAPES, DIMS, PATCHES)
    taken = 0
    for _ in range(600):
        section = rng.choice(sections)
        size = len(sections_of(DATA)[section])
        at, value = rng.randrange(size // 4) * 4, rng.choice((*range(12), 2**31, 2**32 - 1))
        data = changed(section, at, "I", value)
        verdicts = {reader: accepts(reader, data) for reader in READERS}
        assert len(set(verdicts.values())) == 1, (section.name, at, value, verdicts)
        taken += verdicts["python"]
    assert taken
