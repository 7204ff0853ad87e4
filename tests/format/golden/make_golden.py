"""The program of the golden file `v1.0.npubin`, and the command that wrote it.

    PYTHONPATH=python python tests/format/golden/make_golden.py

The file is never written again once 1.0 is released: every later npusim must read it. A new minor
version gets a file and a function of its own beside these.
"""

from __future__ import annotations

from pathlib import Path

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
    TensorSpec,
    WeightSpec,
)

PATH = Path(__file__).parent / "v1.0.npubin"
READ, WRITE, BOTH = Access.READ, Access.WRITE, Access.READ_WRITE


def golden_program() -> CompiledProgram:
    """Returns a program that uses everything version 1.0 has."""
    buffers = (
        Buffer(BufferKind.INPUT, 24, 0, "x"),
        Buffer(BufferKind.OUTPUT, 32, 0, "y"),
        Buffer(BufferKind.TEMP, 40, 0, "h"),
        Buffer(BufferKind.WEIGHT, 48, 0, "linear.weight"),
        Buffer(BufferKind.WEIGHT, 0, 0, "empty"),
        Buffer(BufferKind.CONSTANT, 16, 64, ""),
        Buffer(BufferKind.PERSISTENT, 256, 64, "linear.weight packed"),
        Buffer(BufferKind.STATE, 64, 128, "cache"),
        Buffer(BufferKind.INPUT, 8, 0, "position"),
        Buffer(BufferKind.OUTPUT, 2, 0, "größe"),
    )
    forward = Method(
        "forward",
        (
            Command(
                1, 1, b"\x02" * 24, (Operand(0, 4, READ), Operand(5, 8, READ), Operand(2, 0, WRITE))
            ),
            Command(
                2,
                1,
                b"",
                (Operand(2, 39, BOTH), Operand(6, 0, READ), Operand(1, 0, WRITE)),
            ),
        ),
        (TensorSpec("x", 0, "float32", (2, 2), (2, 3)),),
        (TensorSpec("y", 1, "int64", (4,), (4,)),),
        64,
    )
    decode = Method(
        "decode",
        (
            Command(
                1,
                2,
                b"\x02" * 24,
                (
                    Operand(8, 0, READ),
                    Operand(7, 16, BOTH),
                    Operand(4, 0, READ),
                    Operand(9, 0, WRITE),
                ),
            ),
        ),
        (TensorSpec("position", 8, "int64", (), ()),),
        (TensorSpec("größe", 9, "bfloat16", (1, 1, 1), (1, 1, 1)),),
        0,
    )
    init = Method(
        "init",
        (Command(0, 0, b"\x01" * 9, (Operand(3, 0, READ), Operand(6, 0, WRITE))),),
        (),
        (),
        0,
    )
    return CompiledProgram(
        target="cpu",
        kernels=(
            Kernel("pack_b", "groups:i64 n:i64"),
            Kernel("gemm", "m:i64 n:i64 k:i64"),
            Kernel("device_code", "m:i64", b"\x7fcode"),
        ),
        buffers=buffers,
        methods=(forward, decode),
        init=init,
        weights=(
            WeightSpec(("linear.weight", "head.weight"), 3, "float32", (4, 3)),
            WeightSpec(("empty",), 4, "uint8", (0, 7)),
        ),
        nodes=(
            NodeInfo("pack", "npu.pack", ""),
            NodeInfo("linear", "aten.linear.default", "linear, model.py:12"),
            NodeInfo("update", "aten.index_put.default", "cache, model.py:31"),
        ),
        constants=bytes(range(80)),
        persistent_bytes=320,
        state_bytes=192,
        metadata={"producer": "npusim", "model": "golden", "numbers": [1, 2.5, None, True]},
    )


if __name__ == "__main__":
    PATH.write_bytes(golden_program().to_bytes())
