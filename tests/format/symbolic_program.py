"""A sound program with symbolic sizes, for the tests of its file."""

from __future__ import annotations

import dataclasses

from npusim.ir.symbolic import maximum, symbol
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
    Patch,
    PatchKind,
    Specialized,
    TensorSpec,
)

BATCH, SEQ = symbol("batch", 1, 8), symbol("seq", 2, 64)
ROWS = BATCH * SEQ


def symbolic_program() -> CompiledProgram:
    """Returns x[batch, 4*seq] -> y[batch*seq, 4], with a patch of every kind."""
    patches = (
        Patch(PatchKind.I32, 4, SEQ // 2 + 1),
        Patch(PatchKind.I64, 8, ROWS),
        Patch(PatchKind.F32, 16, SEQ % 3),
        Patch(PatchKind.F64, 24, maximum(SEQ - 4, BATCH)),
        Patch(PatchKind.OPERAND, 1, 4 * BATCH - 4),
    )
    operands = (Operand(0, 0, Access.READ), Operand(1, 28, Access.WRITE))
    command = Command(0, 0, bytes(32), operands, patches=patches)
    still = Command(0, 0, bytes(8), operands)
    forward = Method(
        "forward",
        (still, command),
        (TensorSpec("x", 0, "float32", (BATCH, 4 * SEQ), (8, 256)),),
        (TensorSpec("y", 1, "float32", (ROWS, 4), (512, 4)),),
        0,
    )
    fixed = Method("fixed", (), (TensorSpec("x", 2, "float32", (2,), (2,)),), (), 0)
    return CompiledProgram(
        target="cpu",
        kernels=(Kernel("copy", "schema"),),
        buffers=(
            Buffer(BufferKind.INPUT, 8192, 0, "x"),
            Buffer(BufferKind.OUTPUT, 8192, 0, "y"),
            Buffer(BufferKind.INPUT, 8, 0, "x"),
        ),
        methods=(forward, fixed),
        init=Method("init", (), (), (), 0),
        weights=(),
        nodes=(NodeInfo("node", "aten.copy", ""),),
        constants=b"",
        persistent_bytes=0,
        state_bytes=0,
    )


def specialized_program() -> CompiledProgram:
    """Returns the program with device code for some parameters of its kernel."""
    codes = (
        Specialized(bytes(32), b"device code"),
        Specialized(bytes(31) + b"\1", b"other code"),
        Specialized(b"", b"device code"),
    )
    kernels = (
        Kernel("still", "schema", b"fixed"),
        Kernel("copy", "schema", specialized=codes),
        Kernel("copy", "schema", specialized=codes[1:]),
    )
    program = symbolic_program()
    forward, fixed = program.methods
    still, command = forward.commands
    commands = (still, dataclasses.replace(command, kernel=1))
    methods = (dataclasses.replace(forward, commands=commands), fixed)
    return dataclasses.replace(program, kernels=kernels, methods=methods, target="cuda")
