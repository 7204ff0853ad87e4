"""Programs that run one command many times, to time a choice of who computes it.

Owns how a command is isolated: its weights rotate over more memory than the GPU's cache holds, as
they would in a model, and its other operands stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.abi.kernels import KERNELS
from npusim.codegen.choice import Choice
from npusim.codegen.generate import generate
from npusim.codegen.generator import CodeGenerator
from npusim.program.program import (
    ALIGNMENT,
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
)
from npusim.targets import TargetConfig

REPEATS = 24  # of the command in a run
_ROTATED = 192 << 20  # bytes of weights that a run walks over
_MOST_COPIES = 12


@dataclass(frozen=True, slots=True)
class Subject:
    """A command to be timed.

    Attributes:
        bytes: of each operand of its own kernel, from where the command begins to read or write.
    """

    stem: str
    params: bytes
    bytes: tuple[int, ...]


def subjects(
    program: CompiledProgram, generator: CodeGenerator
) -> dict[tuple[str, bytes], Subject]:
    """Returns the commands of a program's methods that more than one choice could be made for."""
    found: dict[tuple[str, bytes], Subject] = {}
    for method in program.methods:
        for command in method.commands:
            key = (program.kernels[command.kernel].name, command.params)
            count = generator.own_operands(*key)
            if key in found or count is None:
                continue
            sizes = tuple(
                program.buffers[o.buffer].bytes - o.offset for o in command.operands[:count]
            )
            found[key] = Subject(*key, sizes)
    return found


def trial(subject: Subject, choice: Choice, target: TargetConfig) -> CompiledProgram:
    """Returns a program whose one method runs the command REPEATS times."""
    weights, bias = _roles(subject)
    size = sum(subject.bytes[i] for i in weights)
    copies = max(2, min(_MOST_COPIES, _ROTATED // max(size, 1)))
    last = len(subject.bytes) - 1
    buffers: list[Buffer] = []
    inputs: list[TensorSpec] = []
    operands: list[list[Operand]] = []
    constants = b""
    for index, bytes_ in enumerate(subject.bytes):
        operands.append([])
        for copy in range(copies if index in weights else 1):
            kind = BufferKind.CONSTANT if index == bias else BufferKind.INPUT
            kind = BufferKind.OUTPUT if index == last else kind
            if index == bias:
                constants = _constant(bytes_)
            else:
                name = f"operand {index} copy {copy}"
                spec = TensorSpec(name, len(buffers), "uint8", (bytes_,), (bytes_,))
                inputs.append(spec)
            access = Access.WRITE if index == last else Access.READ
            operands[-1].append(Operand(len(buffers), 0, access))
            buffers.append(Buffer(kind, bytes_))
    commands = tuple(
        Command(0, 0, subject.params, tuple(choice_[i % len(choice_)] for choice_ in operands))
        for i in range(REPEATS)
    )
    method = Method("run", commands, tuple(inputs[:-1]), (inputs[-1],), 0)
    program = CompiledProgram(
        target=target.device,
        kernels=(Kernel(subject.stem, KERNELS[subject.stem].schema),),
        buffers=tuple(buffers),
        methods=(method,),
        init=Method("init", (), (), (), 0),
        weights=(),
        nodes=(NodeInfo("trial", subject.stem, ""),),
        constants=constants,
        persistent_bytes=0,
        state_bytes=0,
    )
    return generate(program, target, {(subject.stem, subject.params): choice})


def _roles(subject: Subject) -> tuple[range, int | None]:
    """Returns which operands are weights, and which is the bias."""
    if subject.stem == "matmul":
        return range(1, 2), None
    fields = KERNELS[subject.stem].unpack(subject.params)
    end = 1 + (int(fields["segments"]) if subject.stem == "linear" else 1)
    return range(1, end), end if fields["has_bias"] else None


def _constant(size: int) -> bytes:
    values = np.random.default_rng(0).standard_normal(size // 4, np.float32)
    return values.tobytes().ljust((size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT, b"\0")


def random_bits(size: int, dtype: str, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Returns normally distributed numbers of a float dtype as bytes; the rest is zero."""
    count = size // (4 if dtype == "float32" else 2)
    values = np.random.default_rng(seed).standard_normal(count, np.float32)
    if dtype == "float16":
        raw = values.astype(np.float16).tobytes()
    elif dtype == "bfloat16":
        raw = (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    else:
        raw = values.tobytes()
    return np.frombuffer(raw.ljust(size, b"\0"), np.uint8)
