"""Programs for Metal written by hand: MSL texts as images, so that tests of the backend depend on
no code generation."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from npusim.program.program import Access, BufferKind, Command, CompiledProgram, NodeInfo, Operand
from tests.runtime.programs import Builder

MAGIC = b"NPUMETL\x01"
OPENING = "#include <metal_stdlib>\nusing namespace metal;\n"
BINARY = (
    OPENING
    + """kernel void run(device const float* a [[buffer(0)]], device const float* b [[buffer(1)]],
                device float* y [[buffer(2)]], uint i [[thread_position_in_grid]]) {{
  y[i] = {expression};
}}
"""
)
UNARY = (
    OPENING
    + """kernel void run(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                uint i [[thread_position_in_grid]]) {{
  y[i] = {expression};
}}
"""
)
# y[i] = table[ids[i]], or code 1 in the failure.
LOOKUP = (
    OPENING
    + """struct Failure { int code; int padding; long value; long limit; };
kernel void run(device const long* ids [[buffer(0)]], device const float* table [[buffer(1)]],
                device float* y [[buffer(2)]], device Failure* failure [[buffer(3)]],
                uint i [[thread_position_in_grid]]) {
  const long id = ids[i];
  if (id < 0 || id >= ROWS) {
    failure->code = 1;
    failure->value = id;
    failure->limit = ROWS;
    return;
  }
  y[i] = table[id];
}
"""
)


def image(
    source: str,
    *,
    threads: int = 1,
    entries: Sequence[str] = ("run",),
    arch: str = "apple7",
    **header: Any,
) -> bytes:
    """Returns an image whose launches have one threadgroup of so many threads."""
    launches = [{"entry": e, "grid": [1, 1, 1], "block": [threads, 1, 1]} for e in entries]
    blob = zlib.compress(source.encode())
    fields = {"arch": arch, "launches": launches, "source": [0, len(blob)], **header}
    return frame(fields, blob)


def frame(header: object, blobs: bytes = b"") -> bytes:
    """Returns an image of a header as it is given."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return MAGIC + struct.pack("<I", len(text)) + text + blobs


class MetalBuilder(Builder):
    """A Builder whose commands have images."""

    def __init__(self) -> None:
        super().__init__()
        self.images: list[bytes] = []

    def launch(
        self, code: bytes, reads: Sequence[int], writes: Sequence[int], *, init: bool = False
    ) -> None:
        """Adds a command that runs an image over buffers, in this order."""
        self.images.append(code)
        name = f"code_{len(self.images)}"
        self.kernels.append(name)
        self.nodes.append(NodeInfo(name, "test.code", "net.py:7"))
        operands = [Operand(b, 0, Access.READ) for b in reads]
        operands += [Operand(b, 0, Access.WRITE) for b in writes]
        command = Command(len(self.kernels) - 1, len(self.nodes) - 1, b"", tuple(operands))
        (self.init if init else self.run).append(command)

    def finish(self) -> CompiledProgram:
        """Returns the program for Metal."""
        built = self.build()
        kernels = tuple(
            replace(kernel, image=code)
            for kernel, code in zip(built.kernels, self.images, strict=True)
        )
        return replace(built, kernels=kernels, target="metal")


def unary(expression: str, count: int) -> bytes:
    """The image of y[i] = expression of x[i], of so many elements."""
    return image(UNARY.format(expression=expression), threads=count)


def binary(expression: str, count: int) -> bytes:
    """The image of y[i] = expression of a[i] and b[i], of so many elements."""
    return image(BINARY.format(expression=expression), threads=count)


def one_command(code: bytes, count: int = 8) -> CompiledProgram:
    """A program of one command, from x to y."""
    b = MetalBuilder()
    x, y = b.input("x", (count,)), b.output("y", (count,))
    b.launch(code, [x], [y])
    return b.finish()


def diamonds(count: int, layers: int) -> CompiledProgram:
    """Layers of y = (x + 1) * (x + 2) over memory that is used again: each hazard is there.

    Read after write between a layer's parts, write after read and write after write between layers.
    """
    b = MetalBuilder()
    x, y = b.input("x", (count,)), b.output("y", (count,))
    left, right, last = (b.buffer(BufferKind.TEMP, 4 * count) for _ in range(3))
    for layer in range(layers):
        source, target = x if layer == 0 else last, y if layer == layers - 1 else last
        b.launch(unary("x[i] + 1.0f", count), [source], [left])
        b.launch(unary("x[i] + 2.0f", count), [source], [right])
        b.launch(binary("a[i] * b[i] * 0.125f", count), [left, right], [target])
    return b.finish()


def lookup(rows: int, count: int) -> CompiledProgram:
    """y = table[ids]: fails at run time for an id out of range."""
    b = MetalBuilder()
    ids, y = b.input("ids", (count,), "int64"), b.output("y", (count,))
    table = b.weight("table", (rows,))
    source = LOOKUP.replace("ROWS", str(rows))
    b.launch(image(source, threads=count, failure=True), [ids, table], [y])
    return b.finish()
