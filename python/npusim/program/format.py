"""CompiledProgram to and from the bytes of a `.npubin` file (docs/npubin.md).

Owns the records of each section; the container around them is `program/container.py`, what must
hold between them `program/validate.py`. Equal programs give equal bytes, and what is read equals
what was written (metadata as JSON has it: tuples come back as lists).
"""

from __future__ import annotations

import enum
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import NoReturn, TypeVar

from npusim.errors import Error, ProgramFormatError
from npusim.files import read_whole, write_atomic
from npusim.ir.symbolic import Symbol, is_symbolic
from npusim.ir.types import DTYPE_NAMES, MOST_RANKS, dtype_code
from npusim.program.container import (
    Chunk,
    Section,
    pack_blobs,
    pack_container,
    unpack_blobs,
    unpack_container,
)
from npusim.program.program import (
    Access,
    Buffer,
    BufferKind,
    Command,
    CompiledProgram,
    Kernel,
    Method,
    NodeInfo,
    Operand,
    Specialized,
    TensorSpec,
    WeightPart,
    WeightSpec,
)
from npusim.program.sizes import SizesReader, SizeTable, Step, read_symbol
from npusim.program.validate import MAX_RANK, validate_program

_NONE = 0xFFFFFFFF
_RECORDS = {
    Section.PROGRAM: struct.Struct("<IIqq"),
    Section.KERNELS: struct.Struct("<IIII"),
    Section.BUFFERS: struct.Struct("<IIqq"),
    Section.METHODS: struct.Struct("<IIIIq"),
    Section.COMMANDS: struct.Struct("<IIIIIIII"),
    Section.OPERANDS: struct.Struct("<IIq"),
    Section.SPECS: struct.Struct("<IIII"),
    Section.WEIGHTS: struct.Struct("<IIII"),
    Section.KEYS: struct.Struct("<I"),
    Section.DIMS: struct.Struct("<q"),
    Section.NODES: struct.Struct("<IIII"),
    Section.SYMBOLS: struct.Struct("<IIqq"),
    Section.EXPRESSIONS: struct.Struct("<IIIIq"),
    Section.SHAPES: struct.Struct("<IIIIII"),
    Section.SYMBOLIC_DIMS: struct.Struct("<IIII"),
    Section.PATCHES: struct.Struct("<IIII"),
    Section.SPECIALIZED: struct.Struct("<IIII"),
    Section.WEIGHT_PARTS: struct.Struct("<IIII"),
}
_BLOB_ALIGNMENT = {Section.STRINGS: 1, Section.IMAGES: 64, Section.PARAMS: 8}

_T = TypeVar("_T")
_E = TypeVar("_E", bound=enum.Enum)


def write_program(program: CompiledProgram) -> bytes:
    """Returns the `.npubin` image of a program.

    Raises:
        ProgramFormatError: the program breaks an invariant, or holds text or metadata that a file
            cannot (NUL, lone surrogates, values JSON does not have).
    """
    validate_program(program)
    return _Writer().write(program)


def save_program(program: CompiledProgram, path: str | os.PathLike[str]) -> None:
    """Writes a `.npubin` file; whole or not at all.

    Raises:
        Error: the path cannot be written.
        ProgramFormatError: as `write_program`.
    """
    write_atomic(path, write_program(program))


def read_program(data: bytes | bytearray | memoryview) -> CompiledProgram:
    """Reads a `.npubin` image.

    Raises:
        ProgramFormatError: truncated, corrupt, of another version, or not a program.
    """
    program = _Reader(memoryview(data).cast("B")).read()
    validate_program(program)
    return program


def load_program(path: str | os.PathLike[str]) -> CompiledProgram:
    """Reads a `.npubin` file.

    Raises:
        Error: the file cannot be read.
        ProgramFormatError: as `read_program`; the message names the file.
    """
    try:
        data = read_whole(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Error(f"Cannot read {os.fspath(path)}: {reason.lower()}.") from error
    try:
        return read_program(data)
    except ProgramFormatError as error:
        raise ProgramFormatError(f"{os.fspath(path)}: {error}") from error


class _Writer:
    """Collects records and blobs while a program is taken apart; equal blobs are stored once."""

    def __init__(self) -> None:
        self._records = {section: bytearray() for section in _RECORDS}
        self._blobs: dict[Section, dict[bytes, int]] = {s: {} for s in _BLOB_ALIGNMENT}

    def write(self, program: CompiledProgram) -> bytes:
        target = self._string(program.target)
        ranks = 0 if program.ranks == 1 else program.ranks
        self._add(Section.PROGRAM, target, ranks, program.persistent_bytes, program.state_bytes)
        for index, kernel in enumerate(program.kernels):
            image = self._blob(Section.IMAGES, kernel.image) if kernel.image else _NONE
            name, schema = self._string(kernel.name), self._string(kernel.schema)
            self._add(Section.KERNELS, name, schema, image, 0)
            for code in kernel.specialized:
                params = self._blob(Section.PARAMS, code.params)
                image = self._blob(Section.IMAGES, code.image)
                self._add(Section.SPECIALIZED, index, params, image, 0)
        for b in program.buffers:
            self._add(Section.BUFFERS, b.kind, self._string(b.name), b.bytes, b.offset)
        for index, method in enumerate((program.init, *program.methods)):
            self._method(method)
            self._sizes(index, method)
        for index, weight in enumerate(program.weights):
            self._weight(weight)
            if weight.part is not None:
                part = (weight.part.axis, weight.part.parts)
                self._add(Section.WEIGHT_PARTS, index, *part, 0)
        for node in program.nodes:
            texts = (self._string(t) for t in (node.name, node.op, node.source))
            self._add(Section.NODES, *texts, 0)
        sections = {section: bytes(rows) for section, rows in self._records.items()}
        for section, blobs in self._blobs.items():
            sections[section] = pack_blobs(blobs, _BLOB_ALIGNMENT[section]) if blobs else b""
        sections[Section.CONSTANTS] = program.constants
        sections[Section.METADATA] = _json_bytes(program.metadata, "metadata")
        sections[Section.SIMULATION] = _json_bytes(program.simulation, "simulation")
        minors = ((Section.SIMULATION, 3), (Section.SPECIALIZED, 2), (Section.SHAPES, 1))
        minor = next((minor for section, minor in minors if sections[section]), 0)
        minor = 4 if program.ranks > 1 or sections[Section.WEIGHT_PARTS] else minor
        return pack_container(sections, minor=minor)

    def _method(self, method: Method) -> None:
        counts = (len(method.commands), len(method.inputs), len(method.outputs))
        self._add(Section.METHODS, self._string(method.name), *counts, method.arena_bytes)
        for command in method.commands:
            params = self._blob(Section.PARAMS, command.params)
            count = len(command.operands)
            self._add(Section.COMMANDS, command.kernel, command.node, params, count, 0, 0, 0, 0)
            for operand in command.operands:
                self._add(Section.OPERANDS, operand.buffer, operand.access, operand.offset)
        for spec in method.inputs + method.outputs:
            name, dtype = self._string(spec.name), dtype_code(spec.dtype)
            self._add(Section.SPECS, name, spec.buffer, dtype, len(spec.shape))
            pairs = zip(spec.shape, spec.alloc_shape, strict=True)
            self._dims(tuple(room if is_symbolic(size) else size for size, room in pairs))
            self._dims(spec.alloc_shape)

    def _sizes(self, index: int, method: Method) -> None:
        """Writes what depends on the sizes of a call; nothing for a method of static shapes."""
        specs = method.inputs + method.outputs
        table = SizeTable.over(size for spec in specs for size in spec.shape)
        if not table.symbols:
            return
        dims = [
            (number, axis, table.add(size))
            for number, spec in enumerate(specs)
            for axis, size in enumerate(spec.shape)
            if is_symbolic(size)
        ]
        patches = [
            (number, patch.kind, patch.at, table.add(patch.size))
            for number, command in enumerate(method.commands)
            for patch in command.patches
        ]
        counts = (len(table.symbols), len(table.steps), len(dims), len(patches))
        self._add(Section.SHAPES, index, *counts, 0)
        for symbol in table.symbols:
            self._add(Section.SYMBOLS, self._string(symbol.name), 0, symbol.low, symbol.high)
        for step in table.steps:
            self._add(Section.EXPRESSIONS, step.op, step.a, step.b, 0, step.value)
        for dim in dims:
            self._add(Section.SYMBOLIC_DIMS, *dim, 0)
        for row in patches:
            self._add(Section.PATCHES, *row)

    def _weight(self, weight: WeightSpec) -> None:
        dtype, rank = dtype_code(weight.dtype), len(weight.shape)
        self._add(Section.WEIGHTS, weight.buffer, dtype, rank, len(weight.keys))
        self._dims(weight.shape)
        for key in weight.keys:
            self._add(Section.KEYS, self._string(key))

    def _dims(self, dims: tuple[int, ...]) -> None:
        for dim in dims:
            self._add(Section.DIMS, dim)

    def _add(self, section: Section, *fields: int) -> None:
        self._records[section] += _RECORDS[section].pack(*fields)

    def _blob(self, section: Section, blob: bytes) -> int:
        table = self._blobs[section]
        return table.setdefault(blob, len(table))

    def _string(self, text: str) -> int:
        try:
            raw = text.encode()
        except UnicodeEncodeError as error:
            raise ProgramFormatError(f"The name {text!r} is not valid Unicode text.") from error
        if b"\0" in raw:
            raise ProgramFormatError(f"The name {text!r} holds a NUL character.")
        return self._blob(Section.STRINGS, raw)


def _json_bytes(facts: Mapping[str, object], what: str) -> bytes:
    if not facts:
        return b""
    try:
        return json.dumps(dict(facts), allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProgramFormatError(f"The program's {what} is not JSON: {error}.") from error


class _Rows:
    """The records of a section, consumed from front to back."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._record = _RECORDS[Section(chunk.section)]
        if len(chunk.data) % self._record.size:
            raise chunk.refuse(0, f"its size is no multiple of {self._record.size}")
        self._at = 0

    def take(self, count: int | None = None) -> Iterator[tuple[int, ...]]:
        """Yields the next `count` records, or all that are left."""
        left = (len(self._chunk.data) - self._at) // self._record.size
        if count is not None and count > left:
            raise self._chunk.refuse(self._at, f"{count} records are asked for, {left} are left")
        for _ in range(left if count is None else count):
            row = self._record.unpack_from(self._chunk.data, self._at)
            self._at += self._record.size
            yield row

    def numbers(self, count: int) -> tuple[int, ...]:
        """Returns the next `count` records of one field."""
        return tuple(row[0] for row in self.take(count))

    def refuse(self, why: str) -> ProgramFormatError:
        """Returns the error for a fault in the record taken last."""
        return self._chunk.refuse(self._at - self._record.size, why)

    def finish(self) -> None:
        """Verifies that no record is left over."""
        if self._at != len(self._chunk.data):
            raise self._chunk.refuse(self._at, "this record belongs to nothing")


class _Reader:
    """Puts a program together again: lists are consumed in the order the writer made them."""

    def __init__(self, data: memoryview) -> None:
        self._chunks = unpack_container(data)
        self._rows = {section: _Rows(self._chunks[section]) for section in _RECORDS}
        self._strings = _read_strings(self._chunks[Section.STRINGS])
        self._images, self._params = (
            unpack_blobs(self._chunks[s], _BLOB_ALIGNMENT[s])
            for s in (Section.IMAGES, Section.PARAMS)
        )

    def read(self) -> CompiledProgram:
        root = self._rows[Section.PROGRAM]
        target, ranks, persistent_bytes, state_bytes = next(root.take(1))
        if ranks == 1 or ranks > MOST_RANKS:
            raise root.refuse(f"{ranks} ranks; 0 (for one), or 2 … {MOST_RANKS}, are possible")
        methods = tuple(self._with_sizes(list(self._methods())))
        program = CompiledProgram(
            target=self._string(root, target),
            kernels=tuple(self._kernels()),
            buffers=tuple(self._buffers()),
            methods=methods[1:],
            init=methods[0],
            weights=self._with_parts(list(self._weights()), max(ranks, 1)),
            nodes=tuple(self._nodes()),
            constants=bytes(self._chunks[Section.CONSTANTS].data),
            persistent_bytes=persistent_bytes,
            state_bytes=state_bytes,
            metadata=_read_json(self._chunks[Section.METADATA]),
            simulation=_read_json(self._chunks[Section.SIMULATION]),
            ranks=max(ranks, 1),
        )
        for rows in self._rows.values():
            rows.finish()
        return program

    def _kernels(self) -> Iterator[Kernel]:
        rows = self._rows[Section.KERNELS]
        kernels = list(rows.take())
        specialized = self._specialized(len(kernels))
        for (name, schema, image, reserved), codes in zip(kernels, specialized, strict=True):
            self._reserved(rows, reserved)
            code = b"" if image == _NONE else _item(self._images, image, rows, "image")
            yield Kernel(self._string(rows, name), self._string(rows, schema), code, tuple(codes))

    def _specialized(self, kernels: int) -> list[list[Specialized]]:
        """Returns the device code by parameters of each kernel."""
        rows = self._rows[Section.SPECIALIZED]
        found: list[list[Specialized]] = [[] for _ in range(kernels)]
        before = 0
        for kernel, params, image, reserved in rows.take():
            self._reserved(rows, reserved)
            if not before <= kernel < kernels:
                raise rows.refuse(f"kernel {kernel} does not exist, or is out of order")
            before = kernel
            blob = _item(self._params, params, rows, "parameter blob")
            found[kernel].append(Specialized(blob, _item(self._images, image, rows, "image")))
        return found

    def _buffers(self) -> Iterator[Buffer]:
        rows = self._rows[Section.BUFFERS]
        for kind, name, size, offset in rows.take():
            yield Buffer(_member(BufferKind, kind, rows), size, offset, self._string(rows, name))

    def _methods(self) -> Iterator[Method]:
        rows = self._rows[Section.METHODS]
        if not self._chunks[Section.METHODS].data:
            raise self._chunks[Section.METHODS].refuse(0, "it has no init method")
        for name, commands, inputs, outputs, arena_bytes in rows.take():
            yield Method(
                self._string(rows, name),
                tuple(self._commands(commands)),
                tuple(self._specs(inputs)),
                tuple(self._specs(outputs)),
                arena_bytes,
            )

    def _with_sizes(self, methods: list[Method]) -> list[Method]:
        """Puts the symbolic sizes into the methods that have some."""
        rows = self._rows[Section.SHAPES]
        before = 0  # init has none
        for index, symbols, steps, dims, patches, reserved in rows.take():
            self._reserved(rows, reserved)
            if not before < index < len(methods):
                raise rows.refuse(f"method {index} does not exist, or is out of order")
            before = index
            methods[index] = SizesReader(
                methods[index],
                tuple(self._symbols(symbols)),
                tuple(self._steps(steps)),
                self._rows[Section.SYMBOLIC_DIMS].take(dims),
                self._rows[Section.PATCHES].take(patches),
                self._refusals(),
            ).method()
        return methods

    def _symbols(self, count: int) -> Iterator[Symbol]:
        rows = self._rows[Section.SYMBOLS]
        for name, reserved, low, high in rows.take(count):
            self._reserved(rows, reserved)
            found = read_symbol(self._string(rows, name), low, high)
            if isinstance(found, str):
                raise rows.refuse(found)
            yield found

    def _steps(self, count: int) -> Iterator[Step]:
        rows = self._rows[Section.EXPRESSIONS]
        for op, a, b, reserved, value in rows.take(count):
            self._reserved(rows, reserved)
            yield Step(op, a, b, value)

    def _refusals(self) -> Mapping[Section, Callable[[str], ProgramFormatError]]:
        sections = (Section.SHAPES, Section.EXPRESSIONS, Section.SYMBOLIC_DIMS, Section.PATCHES)
        return {section: self._rows[section].refuse for section in sections}

    def _commands(self, count: int) -> Iterator[Command]:
        rows = self._rows[Section.COMMANDS]
        for kernel, node, params, operands, *reserved in rows.take(count):
            for field in reserved:
                self._reserved(rows, field)
            blob = _item(self._params, params, rows, "parameter blob")
            yield Command(kernel, node, blob, tuple(self._operands(operands)))

    def _operands(self, count: int) -> Iterator[Operand]:
        rows = self._rows[Section.OPERANDS]
        for buffer, access, offset in rows.take(count):
            yield Operand(buffer, offset, _member(Access, access, rows))

    def _specs(self, count: int) -> Iterator[TensorSpec]:
        rows = self._rows[Section.SPECS]
        for name, buffer, dtype, rank in rows.take(count):
            type_name = self._dtype(rows, dtype)
            shape, alloc_shape = self._shape(rows, rank), self._shape(rows, rank)
            yield TensorSpec(self._string(rows, name), buffer, type_name, shape, alloc_shape)

    def _weights(self) -> Iterator[WeightSpec]:
        rows, keys = self._rows[Section.WEIGHTS], self._rows[Section.KEYS]
        for buffer, dtype, rank, count in rows.take():
            names = tuple(self._string(keys, key) for (key,) in keys.take(count))
            type_name = self._dtype(rows, dtype)
            yield WeightSpec(names, buffer, type_name, self._shape(rows, rank))

    def _with_parts(self, weights: list[WeightSpec], ranks: int) -> tuple[WeightSpec, ...]:
        """Returns the weights, with what of them each rank needs."""
        rows, before = self._rows[Section.WEIGHT_PARTS], -1
        for index, axis, parts, reserved in rows.take():
            self._reserved(rows, reserved)
            if not before < index < len(weights):
                raise rows.refuse(f"weight {index} does not exist, or is out of order")
            before = index
            if axis >= len(weights[index].shape) or not parts or ranks % parts:
                raise rows.refuse(f"{parts} parts along axis {axis} for {ranks} ranks")
            weights[index] = replace(weights[index], part=WeightPart(axis, parts))
        return tuple(weights)

    def _nodes(self) -> Iterator[NodeInfo]:
        rows = self._rows[Section.NODES]
        for name, op, source, reserved in rows.take():
            self._reserved(rows, reserved)
            yield NodeInfo(*(self._string(rows, text) for text in (name, op, source)))

    def _shape(self, rows: _Rows, rank: int) -> tuple[int, ...]:
        if rank > MAX_RANK:
            raise rows.refuse(f"{rank} dimensions; {MAX_RANK} at most are possible")
        return self._rows[Section.DIMS].numbers(rank)

    def _string(self, rows: _Rows, index: int) -> str:
        return _item(self._strings, index, rows, "string")

    def _dtype(self, rows: _Rows, code: int) -> str:
        if code not in DTYPE_NAMES:
            raise rows.refuse(f"dtype code {code} is unknown")
        return DTYPE_NAMES[code]

    def _reserved(self, rows: _Rows, field: int) -> None:
        if field:
            raise rows.refuse(f"a reserved field is {field:#x}, not zero")


def _item(items: list[_T], index: int, rows: _Rows, what: str) -> _T:
    if index >= len(items):
        raise rows.refuse(f"{what} {index} does not exist; there are {len(items)}")
    return items[index]


def _member(enumeration: type[_E], code: int, rows: _Rows) -> _E:
    try:
        return enumeration(code)
    except ValueError:
        raise rows.refuse(f"{enumeration.__name__} code {code} is unknown") from None


def _read_strings(chunk: Chunk) -> list[str]:
    blobs = unpack_blobs(chunk, _BLOB_ALIGNMENT[Section.STRINGS])
    try:
        texts = [blob.decode() for blob in blobs]
    except UnicodeDecodeError as error:
        raise chunk.refuse(0, f"a string is not UTF-8 ({error.reason})") from error
    if any("\0" in text for text in texts):
        raise chunk.refuse(0, "a string holds a NUL character")
    return texts


def _read_json(chunk: Chunk) -> dict[str, object]:
    if not chunk.data:
        return {}
    try:
        value = json.loads(bytes(chunk.data).decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise chunk.refuse(0, f"it is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise chunk.refuse(0, "it is not a JSON object")
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
