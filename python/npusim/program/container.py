"""The container of a `.npubin` file: header, section table, checksums, blob tables.

Owns where bytes lie (docs/npubin.md, "Container"); knows nothing of what a section means beyond
its id and flags. Bytes are refused unless every one of them belongs to exactly one thing. Another
kind of file may have the same container under a Layout of its own.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from npusim.errors import ProgramFormatError
from npusim.version import install_hint

MAGIC = b"\x89NPUB\r\n\x1a"
MAJOR, MINOR = 1, 4
KNOWN_FEATURES = 0
ALIGNMENT = 64
PAGE = 4096
MAX_SECTIONS = 64

OPTIONAL, PAGE_ALIGNED = 1, 2  # section flags

_HEADER = struct.Struct("<8sHHIQQ28xI")
_READER = struct.Struct("<HHH")  # behind the size: the first npusim that reads a newer format
_READER_AT = 32
_ENTRY = struct.Struct("<IIQQI4x")
_BLOB_HEADER = struct.Struct("<II")

_S = TypeVar("_S", bound="SectionId")


class SectionId(enum.IntEnum):
    """Sections by id; the order of ids is the order in the file."""

    @property
    def flags(self) -> int:
        """The flags this section carries in every file."""
        return 0


class Section(SectionId):
    """The sections by id; the order of ids is the order in the file."""

    PROGRAM = 1
    STRINGS = 2
    KERNELS = 3
    IMAGES = 4
    BUFFERS = 5
    METHODS = 6
    COMMANDS = 7
    OPERANDS = 8
    PARAMS = 9
    SPECS = 10
    WEIGHTS = 11
    KEYS = 12
    DIMS = 13
    NODES = 14
    CONSTANTS = 15
    METADATA = 16
    # Since 1.1, for symbolic sizes.
    SYMBOLS = 17
    EXPRESSIONS = 18
    SHAPES = 19
    SYMBOLIC_DIMS = 20
    PATCHES = 21
    SPECIALIZED = 22  # since 1.2, for symbolic sizes in device code
    SIMULATION = 23  # since 1.3, for the timing model
    WEIGHT_PARTS = 24  # since 1.4, of programs of several ranks

    @property
    def flags(self) -> int:
        """The flags this section carries in every file."""
        if self in (Section.IMAGES, Section.CONSTANTS):
            return PAGE_ALIGNED
        return OPTIONAL if self in (Section.METADATA, Section.SIMULATION) else 0


@dataclass(frozen=True, slots=True)
class Layout:
    """A kind of file in this container.

    Attributes:
        what: its name in messages.
        magic: its first eight bytes.
        major, minor: the newest version that is read; files of this one are written, or of the
            lowest that describes them.
        sections: those it may have, and `required` those it must.
        remake: how to get a file that this npusim reads.
        origin: where such files come from.
    """

    what: str
    magic: bytes
    major: int
    minor: int
    sections: type[SectionId]
    required: tuple[SectionId, ...]
    remake: str
    origin: str


NPUBIN = Layout(
    ".npubin",
    MAGIC,
    MAJOR,
    MINOR,
    Section,
    (Section.PROGRAM, Section.STRINGS, Section.METHODS),
    "compile the model again",
    "`npusim compile` makes one from a model.",
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The bytes of a section and where they lie in the file."""

    section: SectionId
    data: memoryview
    offset: int = 0
    layout: Layout = NPUBIN

    def refuse(self, at: int, why: str) -> ProgramFormatError:
        """Returns the error for a fault at byte `at` of this section."""
        where = f"section {self.section.name}, byte {self.offset + at} of the file"
        return damaged(f"{where}: {why}", self.layout)


def damaged(why: str, layout: Layout = NPUBIN) -> ProgramFormatError:
    """Returns the error for a file that is not what its format promises."""
    return ProgramFormatError(
        f"The {layout.what} file is damaged: {why}.", hint=f"Copy it again, or {layout.remake}."
    )


def align(offset: int, alignment: int) -> int:
    """Returns the first multiple of `alignment` at or after `offset`."""
    return (offset + alignment - 1) // alignment * alignment


def pack_container(
    sections: Mapping[_S, bytes], layout: Layout = NPUBIN, minor: int | None = None
) -> bytes:
    """Returns the file for sections by id; empty ones that may be absent are left out.

    Args:
        minor: the lowest minor version that describes the file; by default the newest.
    """
    kept = [(s, d) for s, d in sorted(sections.items()) if d or s in layout.required]
    table = bytearray()
    body = bytearray()
    start = _HEADER.size + _ENTRY.size * len(kept)
    for section, data in kept:
        offset = align(start + len(body), PAGE if section.flags & PAGE_ALIGNED else ALIGNMENT)
        body += bytes(offset - start - len(body)) + data
        table += _ENTRY.pack(section, section.flags, offset, len(data), zlib.crc32(data))
    version = (layout.magic, layout.major, layout.minor if minor is None else minor)
    header = _HEADER.pack(*version, len(kept), 0, start + len(body), 0)[:-4]
    checksum = zlib.crc32(table, zlib.crc32(header))
    return b"".join((header, checksum.to_bytes(4, "little"), table, body))


def unpack_container(data: memoryview) -> dict[Section, Chunk]:
    """Returns the sections of a `.npubin` file, as `unpack_sections`."""
    return {Section(s): chunk for s, chunk in unpack_sections(data, NPUBIN).items()}


def unpack_sections(data: memoryview, layout: Layout) -> dict[SectionId, Chunk]:
    """Returns the known sections of a file; absent ones are empty.

    Raises:
        ProgramFormatError: anything docs/npubin.md, "Container", forbids.
    """
    count = _check_header(data, layout)
    seen: set[int] = set()
    known = {s: Chunk(s, memoryview(b""), 0, layout) for s in layout.sections}
    ids = {int(s) for s in known}
    end = _HEADER.size + _ENTRY.size * count
    for index in range(count):
        at = _HEADER.size + _ENTRY.size * index
        section, flags, offset, size, checksum = _ENTRY.unpack_from(data, at)
        where = f"section table entry {index} (id {section})"
        _check_reserved(data, at + _ENTRY.size - 4, at + _ENTRY.size, where, layout)
        if section in seen:
            raise damaged(f"{where}: the section appears twice", layout)
        seen.add(section)
        _check_flags(section, flags, where, data, layout)
        wanted = align(end, PAGE if flags & PAGE_ALIGNED else ALIGNMENT)
        if offset != wanted or offset + size > len(data):
            raise damaged(
                f"{where}: bytes {offset} … {offset + size} are out of place; the section must "
                f"start at {wanted} and end within {len(data)}",
                layout,
            )
        _check_reserved(data, end, offset, f"padding before {where}", layout)
        end = offset + size
        chunk = data[offset:end]
        if zlib.crc32(chunk) != checksum:
            raise damaged(f"{where}: the checksum of bytes {offset} … {end} is wrong", layout)
        if section in ids:
            known[layout.sections(section)] = Chunk(layout.sections(section), chunk, offset, layout)
    if end != len(data):
        raise damaged(f"{len(data) - end} bytes follow the last section", layout)
    if missing := [s.name for s in layout.required if s not in seen]:
        raise damaged(f"section {missing[0]} is missing", layout)
    return known


def is_newer(data: bytes, layout: Layout) -> bool:
    """Whether a file that is read may hold what this npusim does not know, and would not write."""
    _, _, minor, count, *_ = _HEADER.unpack_from(data)
    ids = (_ENTRY.unpack_from(data, _HEADER.size + _ENTRY.size * i)[0] for i in range(count))
    return bool(minor > layout.minor or set(ids) - {int(s) for s in layout.sections})


def _check_header(data: memoryview, layout: Layout) -> int:
    """Verifies everything up to the end of the section table; returns the number of sections."""
    if len(data) < 8 or bytes(data[:8]) != layout.magic:
        raise ProgramFormatError(
            f"This is not a {layout.what} file{_guess(bytes(data[:8]))}.", hint=layout.origin
        )
    if len(data) < _HEADER.size:
        raise damaged(f"it ends after {len(data)} bytes, inside its header", layout)
    _, major, minor, count, features, size, checksum = _HEADER.unpack_from(data)
    if major != layout.major:
        raise _other_version(data, "", layout)
    end = _HEADER.size + _ENTRY.size * count
    if not 1 <= count <= MAX_SECTIONS:
        raise damaged(f"header: {count} sections; 1 … {MAX_SECTIONS} are possible", layout)
    if end > len(data):
        raise damaged(f"it ends after {len(data)} bytes, inside its section table", layout)
    if zlib.crc32(data[_HEADER.size : end], zlib.crc32(data[:60])) != checksum:
        raise damaged("the checksum of its header and section table is wrong", layout)
    if unknown := features & ~KNOWN_FEATURES:
        raise _other_version(data, f" and needs features {unknown:#x}", layout)
    free = _READER.size if minor > layout.minor else 0
    _check_reserved(data, _READER_AT + free, 60, "header", layout)
    if size != len(data):
        state = "cut short" if size > len(data) else "appended to"
        raise damaged(f"it was {state}: its header says {size} bytes, it has {len(data)}", layout)
    return int(count)


def _check_flags(section: int, flags: int, where: str, data: memoryview, layout: Layout) -> None:
    if flags & ~(OPTIONAL | PAGE_ALIGNED):
        raise damaged(f"{where}: unknown flags {flags:#x}", layout)
    known = {int(s): s.flags for s in layout.sections}
    if section not in known:
        if not flags & OPTIONAL:
            raise _other_version(data, f" and needs section {section}", layout)
    elif flags != known[section]:
        raise damaged(f"{where}: flags {flags:#x} instead of {known[section]:#x}", layout)


def _check_reserved(data: memoryview, start: int, end: int, where: str, layout: Layout) -> None:
    if any(data[start:end]):
        raise damaged(f"{where}: bytes {start} … {end} are reserved and must be zero", layout)


def _other_version(data: memoryview, needs: str, layout: Layout) -> ProgramFormatError:
    """Returns the error for a file that this npusim does not read; it has a whole header."""
    again = layout.remake
    _, major, minor, *_ = _HEADER.unpack_from(data)
    reader = _READER.unpack_from(data, _READER_AT)
    hint = install_hint(".".join(map(str, reader)) if any(reader) else None)
    return ProgramFormatError(
        f"The {layout.what} file has format {major}.{minor}{needs}; this npusim reads "
        f"{layout.major}.0 to {layout.major}.{layout.minor}.",
        hint=f"{again[0].upper()}{again[1:]}."
        if major < layout.major
        else f"{hint}, or {again} here.",
    )


def _guess(start: bytes) -> str:
    if start.lstrip()[:1] == b"{":
        return "; it looks like JSON, perhaps an IR that is still to be compiled"
    if start.startswith(b"PK\x03\x04"):
        return "; it looks like a PyTorch checkpoint or another zip archive"
    return "; it is empty" if not start else ""


def pack_blobs(blobs: Iterable[bytes], alignment: int) -> bytes:
    """Returns a blob table."""
    ends: list[int] = []
    body = bytearray()
    for blob in blobs:
        body += bytes(align(len(body), alignment) - len(body)) + blob
        ends.append(len(body))
    head = _BLOB_HEADER.pack(len(ends), 0) + struct.pack(f"<{len(ends)}Q", *ends)
    return head + bytes(align(len(head), ALIGNMENT) - len(head)) + bytes(body)


def unpack_blobs(chunk: Chunk, alignment: int) -> list[bytes]:
    """Returns the blobs of a blob table; none when the section is absent.

    Raises:
        ProgramFormatError: ends that fall, gaps that are not zero, a wrong size.
    """
    data = chunk.data
    if not data:
        return []
    if len(data) < _BLOB_HEADER.size:
        raise chunk.refuse(0, "the table is cut short")
    count, reserved = _BLOB_HEADER.unpack_from(data)
    head = _BLOB_HEADER.size + 8 * count
    base = align(head, ALIGNMENT)
    if reserved or base > len(data) or any(data[head:base]):
        raise chunk.refuse(0, f"the table of {count} blobs is cut short or padded with non-zeros")
    blobs: list[bytes] = []
    end = base
    for index in range(count):
        start = align(end, alignment)
        stop = base + struct.unpack_from("<Q", data, _BLOB_HEADER.size + 8 * index)[0]
        if not start <= stop <= len(data) or any(data[end:start]):
            raise chunk.refuse(_BLOB_HEADER.size + 8 * index, f"blob {index} is out of place")
        blobs.append(bytes(data[start:stop]))
        end = stop
    if end != len(data):
        raise chunk.refuse(end, "bytes follow the last blob")
    return blobs
