"""Damage of every kind is refused by both readers, with the reason; they never disagree."""

from __future__ import annotations

import dataclasses
import random
import struct
import zlib
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npusim.program.container import Section
from npusim.program.format import read_program, write_program
from npusim.program.program import CompiledProgram, Method
from tests.format.golden.make_golden import PATH
from tests.format.programs import programs
from tests.format.readers import READERS, accepts, pack, refuse, sections_of

GOLDEN = PATH.read_bytes()
TOO_MANY = 2**40 + 1
EMPTY = Method("forward", (), (), (), 0)
SMALLEST = CompiledProgram("cpu", (), (), (EMPTY,), EMPTY, (), (), b"", 0, 0)


def patched(section: Section, at: int, form: str, value: int) -> bytes:
    """Returns the golden file with one field of a section changed, and right checksums."""
    sections = sections_of(GOLDEN)
    struct.pack_into(f"<{form}", sections[section], at, value)
    return pack(sections)


@pytest.mark.parametrize("reader", READERS)
def test_every_truncation(reader: str) -> None:
    assert accepts(reader, GOLDEN)
    assert not any(accepts(reader, GOLDEN[:size]) for size in range(len(GOLDEN)))


@pytest.mark.parametrize("reader", READERS)
def test_every_byte_matters(reader: str) -> None:
    """One bit of every byte, another one each time; all bits: tests/cpp/test_program.cpp."""
    for at in range(len(GOLDEN)):
        damaged = bytearray(GOLDEN)
        damaged[at] ^= 1 << at % 8
        assert not accepts(reader, bytes(damaged)), f"byte {at}"


@pytest.mark.parametrize(
    ("at", "form", "value", "words"),
    [
        (0, "B", 0x88, "This is not a .npubin file"),
        (8, "H", 2, "format 2.0; this npusim reads 1.0 to 1.4. Upgrade npusim"),
        (8, "H", 0, "Compile the model again"),
        (12, "I", 0, "0 sections"),
        (12, "I", 65, "65 sections"),
        (16, "Q", 1, "checksum"),
        (24, "Q", 1, "checksum"),
        (60, "I", 0, "checksum"),
        (64 + 24, "I", 0, "checksum"),
    ],
)
def test_header(at: int, form: str, value: int, words: str) -> None:
    data = bytearray(GOLDEN)
    struct.pack_into(f"<{form}", data, at, value)
    refuse(bytes(data), words)


def test_appended_bytes() -> None:
    refuse(GOLDEN + b"\0", "appended to")


RECORDS = [
    (Section.PROGRAM, 0, "I", 999, "string 999 does not exist"),
    (Section.PROGRAM, 4, "I", 1, "1 ranks; 0"),
    (Section.PROGRAM, 4, "I", 65, "65 ranks; 0"),
    (Section.PROGRAM, 8, "q", TOO_MANY, "persistent_bytes"),
    (Section.PROGRAM, 16, "q", -1, "state_bytes"),
    (Section.STRINGS, 0, "I", 2**32 - 1, "cut short"),
    (Section.STRINGS, 4, "I", 1, "cut short"),
    (Section.STRINGS, 8, "Q", 2**63, "blob 0 is out of place"),
    (Section.STRINGS, 16, "Q", 0, "blob 1 is out of place"),
    (Section.KERNELS, 8, "I", 7, "image 7 does not exist"),
    (Section.BUFFERS, 0, "I", 7, "7 is unknown"),
    (Section.BUFFERS, 24 * 2 + 8, "q", -1, "buffer 2"),
    (Section.BUFFERS, 24 * 2 + 8, "q", TOO_MANY, "buffer 2"),
    (Section.BUFFERS, 24 * 2 + 8, "q", 65, "passes the method's arena"),
    (Section.BUFFERS, 24 * 2 + 16, "q", 32, "buffer 2"),
    (Section.BUFFERS, 24 * 2 + 16, "q", 2**63 - 64, "buffer 2"),
    (Section.BUFFERS, 24 * 5 + 8, "q", 17, "pass the end at 80"),
    (Section.BUFFERS, 24 * 6 + 8, "q", 257, "pass the end at 320"),
    (Section.BUFFERS, 24 * 7 + 8, "q", 65, "pass the end at 192"),
    (Section.BUFFERS, 16, "q", 64, "buffer 0"),
    (Section.METHODS, 4, "I", 2**32 - 1, "4294967295 records are asked for"),
    (Section.METHODS, 4, "I", 0, "belongs to nothing"),
    (Section.METHODS, 16, "q", TOO_MANY, "init: arena"),
    (Section.METHODS, 24 + 12, "I", 2, "records are asked for"),
    (Section.COMMANDS, 0, "I", 3, "init, command 0"),
    (Section.COMMANDS, 32 + 4, "I", 3, "method 'forward', command 0"),
    (Section.COMMANDS, 8, "I", 9, "9 does not exist"),
    (Section.COMMANDS, 12, "I", 99, "99 records are asked for"),
    (Section.COMMANDS, 28, "I", 1, "reserved"),
    (Section.OPERANDS, 0, "I", 10, "init, command 0, operand 0"),
    (Section.OPERANDS, 0, "I", 0, "not allowed here"),
    (Section.OPERANDS, 4, "I", 1, "not allowed here"),
    (Section.OPERANDS, 4, "I", 3, "3 is unknown"),
    (Section.OPERANDS, 16 * 2 + 8, "q", 24, "operand 0"),
    (Section.OPERANDS, 16 * 2 + 8, "q", -1, "operand 0"),
    (Section.OPERANDS, 16 * 2, "I", 8, "method 'forward', command 0, operand 0"),
    (Section.SPECS, 4, "I", 1, "its buffer is OUTPUT, not INPUT"),
    (Section.SPECS, 8, "I", 10, "dtype code 10"),
    (Section.SPECS, 12, "I", 33, "33 dimensions"),
    (Section.SPECS, 12, "I", 1, "the method"),
    (Section.DIMS, 0, "q", 3, "does not fit"),
    (Section.DIMS, 16, "q", -2, "method 'forward', input 'x'"),
    (Section.DIMS, 24, "q", 4, "takes 32 bytes, its buffer has 24"),
    (Section.DIMS, 24, "q", 2**62, "method 'forward', input 'x'"),
    (Section.WEIGHTS, 0, "I", 4, "weight 0"),
    (Section.WEIGHTS, 12, "I", 99, "99 records are asked for"),
    (Section.KEYS, 0, "I", 999, "string 999"),
    (Section.NODES, 12, "I", 1, "reserved"),
    (Section.METADATA, 0, "B", 0xFF, "METADATA"),
]


@pytest.mark.parametrize(("section", "at", "form", "value", "words"), RECORDS)
def test_records(section: Section, at: int, form: str, value: int, words: str) -> None:
    data = patched(section, at, form, value)
    if words == "the method":  # a shorter rank shifts DIMS: refused, whichever rule sees it first
        refuse(data)
    else:
        refuse(data, words)


def _edit(change: Callable[[dict[Section, bytearray]], None]) -> bytes:
    sections = sections_of(GOLDEN)
    change(sections)
    return pack(sections)


def test_duplicates() -> None:
    def same_method_name(sections: dict[Section, bytearray]) -> None:
        methods = sections[Section.METHODS]
        methods[48:52] = methods[24:28]

    def same_key(sections: dict[Section, bytearray]) -> None:
        keys = sections[Section.KEYS]
        keys[4:8] = keys[0:4]

    refuse(_edit(same_method_name), "twice")
    refuse(_edit(same_key), "twice")


def test_no_method_to_run() -> None:
    empty = write_program(dataclasses.replace(SMALLEST, constants=bytes(64)))
    sections = sections_of(empty)
    del sections[Section.METHODS][24:]
    refuse(pack(sections), "to run")
    sections[Section.METHODS].clear()
    refuse(pack(sections), "METHODS")


@pytest.mark.parametrize("section", [Section.METADATA, Section.SIMULATION])
def test_json_is_for_python_alone(section: Section) -> None:
    refuse(_edit(lambda s: s.update({section: bytearray(b"\xff{}")})), section.name)
    for text in (b"[1]", b"{", b'{"a": NaN}', b"[" * 100_000, b'{"a":' + b"9" * 5000 + b"}"):
        data = _edit(lambda s, text=text: s.update({section: bytearray(text)}))
        assert not accepts("python", data)
        assert accepts("native", data)


def test_shared_names_cost_nothing() -> None:
    """A long name that every record shares must not make refusing or reading slow or large."""
    method = Method("x" * 1_000_000, (), (), (), 0)
    program = dataclasses.replace(SMALLEST, methods=(method,))
    sections = sections_of(write_program(program))
    sections[Section.METHODS] *= 10_000  # all of one name
    refuse(pack(sections), "twice")


@settings(max_examples=300, deadline=None)
@given(programs(), st.integers(0, 2**32))
def test_readers_agree(program: CompiledProgram, seed: int) -> None:
    """Whatever a change does to the content of a section, both readers take it or neither."""
    chance = random.Random(seed)
    sections = sections_of(write_program(program))
    used = [
        s
        for s, data in sections.items()
        if data and s not in (Section.METADATA, Section.SIMULATION)
    ]
    for _ in range(chance.randint(1, 3)):
        data = sections[chance.choice(used)]
        at = chance.randrange(max(len(data), 1))
        edit = chance.randrange(4)
        if edit == 0:
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif edit == 1:
            data[at : at + 8] = data[at + 8 : at + 16]
        elif edit == 2:
            del data[at // 8 * 8 :]
        else:
            data += data[: at // 8 * 8]
    image = pack(sections)
    assert accepts("python", image) == accepts("native", image)


def test_later_minor_and_optional_sections_are_read() -> None:
    data = bytearray(GOLDEN)
    struct.pack_into("<H", data, 10, 7)
    _seal(data)
    assert read_program(bytes(data)) == read_program(GOLDEN)
    assert accepts("native", bytes(data))
    for flags, accepted in ((1, True), (3, True), (0, False), (2, False), (4, False)):
        extended = _with_section(99, flags, b"news")
        assert accepts("python", extended) == accepted
        assert accepts("native", extended) == accepted
    refuse(_with_section(99, 0, b"news"), "needs section 99", "Upgrade npusim")
    features = bytearray(GOLDEN)
    struct.pack_into("<Q", features, 16, 4)
    _seal(features)
    refuse(bytes(features), "needs features", "this npusim reads 1.0", "Upgrade npusim")


def _seal(data: bytearray) -> None:
    (count,) = struct.unpack_from("<I", data, 12)
    table = bytes(data[64 : 64 + 32 * count])
    struct.pack_into("<I", data, 60, zlib.crc32(table, zlib.crc32(bytes(data[:60]))))


def _with_section(number: int, flags: int, content: bytes) -> bytes:
    """Returns the smallest program's file with a further section at its end."""
    base = write_program(SMALLEST)
    (count,) = struct.unpack_from("<I", base, 12)
    entries = [list(struct.unpack_from("<IIQQII", base, 64 + 32 * i)) for i in range(count)]
    bodies = [base[e[2] : e[2] + e[3]] for e in entries] + [content]
    entries.append([number, flags, 0, len(content), zlib.crc32(content), 0])
    out = bytearray(base[:64] + bytes(32 * (count + 1)))
    for index, (entry, body) in enumerate(zip(entries, bodies, strict=True)):
        out += bytes(-len(out) % (4096 if entry[1] & 2 else 64))
        entry[2] = len(out)
        out += body
        struct.pack_into("<IIQQII", out, 64 + 32 * index, *entry)
    struct.pack_into("<I", out, 12, count + 1)
    struct.pack_into("<Q", out, 24, len(out))
    _seal(out)
    return bytes(out)
