"""The compiled program: what a `.npubin` file holds, as plain data.

Mirrors `cpp/runtime/program.h`; `program/format.py` converts to and from bytes, and
`docs/npubin.md` is the specification of both.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npusim.errors import Error
from npusim.ir.symbolic import Symbol, evaluate, symbols_of, upper

if TYPE_CHECKING:
    from npusim.ir.graph import Graph

ALIGNMENT = 64  # bytes; of every buffer offset
_SHOWN = 4  # methods that a repr names


class BufferKind(enum.IntEnum):
    """Where a buffer lives and for how long."""

    INPUT = 0  # bound by the caller at each run
    OUTPUT = 1  # bound or received by the caller at each run
    TEMP = 2  # in the method's arena, planned by lowering/plan_memory.py
    WEIGHT = 3  # a checkpoint tensor as it is
    CONSTANT = 4  # in the file's constant section
    PERSISTENT = 5  # written by the init method, read by all methods
    STATE = 6  # survives from run to run


class Access(enum.IntEnum):
    """What a command does to an operand."""

    READ = 0
    WRITE = 1
    READ_WRITE = 2


@dataclass(frozen=True, slots=True)
class Buffer:
    """`bytes` of memory; `offset` is its place in the arena or section its kind implies."""

    kind: BufferKind
    bytes: int
    offset: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class Operand:
    """Part of a buffer a command touches, from byte `offset` on."""

    buffer: int
    offset: int
    access: Access


class PatchKind(enum.IntEnum):
    """What a patch of a command replaces: a field of its parameters, or an operand's offset."""

    I32 = 0
    I64 = 1
    F32 = 2
    F64 = 3
    OPERAND = 4


@dataclass(frozen=True, slots=True)
class Patch:
    """A number in a command that depends on the sizes of the call.

    Attributes:
        at: the byte in `Command.params`, or the index of an operand.
        size: the number, a symbolic size. What stands in the command is its greatest value.
    """

    kind: PatchKind
    at: int
    size: int


@dataclass(frozen=True, slots=True)
class Command:
    """One kernel call: `kernel` indexes `CompiledProgram.kernels`, `node` its `nodes`."""

    kernel: int
    node: int
    params: bytes
    operands: tuple[Operand, ...]
    patches: tuple[Patch, ...] = ()


@dataclass(frozen=True, slots=True)
class Specialized:
    """Device code of a kernel that has `params` as constants."""

    params: bytes
    image: bytes


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel by name, the parameter schema it was packed for, and device code if any.

    Attributes:
        image: device code, the same for all commands that name the kernel.
        specialized: instead of it, device code by parameters: of a kernel whose commands have
            patches. The parameters of a call may be others; then the code is made when it comes.
    """

    name: str
    schema: str
    image: bytes = b""
    specialized: tuple[Specialized, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """How a caller's tensor maps to a device buffer.

    Attributes:
        name: the argument or result name.
        buffer: index of the buffer.
        dtype: a key of `npusim.ir.types.DTYPES`.
        shape: what the caller passes and receives, dense row-major; ints, or symbolic sizes
            (ir/symbolic.py) that the shapes of a call settle.
        alloc_shape: what the device buffer holds: `shape`, padded where the target asks for it; of
            symbolic sizes the greatest values.
    """

    name: str
    buffer: int
    dtype: str
    shape: tuple[int, ...]
    alloc_shape: tuple[int, ...]

    @property
    def greatest_shape(self) -> tuple[int, ...]:
        """The shape, with symbolic sizes at their greatest values."""
        return tuple(map(upper, self.shape))

    def shape_at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape at sizes given for all its symbols, by name."""
        return tuple(evaluate(size, sizes) for size in self.shape)


@dataclass(frozen=True, slots=True)
class Method:
    """An entry point: an ordered command list with its inputs and outputs."""

    name: str
    commands: tuple[Command, ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    arena_bytes: int

    @property
    def symbols(self) -> tuple[Symbol, ...]:
        """The sizes that a caller chooses with the shapes of the inputs, sorted by name."""
        found = symbols_of(tuple(spec.shape for spec in self.inputs))
        return tuple(sorted(found, key=lambda s: s.name))


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Part `rank * parts // ranks` of `parts` equal ones along `axis`, of a program of ranks."""

    axis: int
    parts: int


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A checkpoint tensor the program needs, under any one of `keys`, shown by `buffer`.

    Attributes:
        shape: what the buffer holds: the tensor's, or a part's.
        part: which part of the tensor each rank needs; None: all of it.
    """

    keys: tuple[str, ...]
    buffer: int
    dtype: str
    shape: tuple[int, ...]
    part: WeightPart | None = None


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """The graph node a command came from, for messages and reports."""

    name: str
    op: str
    source: str


@dataclass(frozen=True, repr=False)
class CompiledProgram:
    """A compiled model: methods over shared weights. Save it with `save`, run it with Executor.

    Attributes:
        metadata: JSON-able facts for people and tools (model name, producer, the lowered graph).
        simulation: JSON-able facts for the timing model: the target it was compiled for, as a file
            of it says, and the schedules of its commands (`npusim.schedule.of_program`).
        ranks: how many run it together, each over its parts of the weights.
    """

    target: str
    kernels: tuple[Kernel, ...]
    buffers: tuple[Buffer, ...]
    methods: tuple[Method, ...]
    init: Method
    weights: tuple[WeightSpec, ...]
    nodes: tuple[NodeInfo, ...]
    constants: bytes
    persistent_bytes: int
    state_bytes: int
    metadata: Mapping[str, object] = field(default_factory=dict)
    simulation: Mapping[str, object] = field(default_factory=dict)
    ranks: int = 1

    def method(self, name: str | None = None) -> Method:
        """Returns a method by name; without a name, the first one. KeyError when absent."""
        if name is None:
            return self.methods[0]
        for method in self.methods:
            if method.name == name:
                return method
        raise KeyError(name)

    @property
    def input_specs(self) -> tuple[TensorSpec, ...]:
        """Inputs of the first method, in order."""
        return self.methods[0].inputs

    @property
    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Outputs of the first method, in order."""
        return self.methods[0].outputs

    @property
    def graph(self) -> Graph | None:
        """The lowered graph the program was made from, if the file still carries it."""
        from npusim.ir.json import graph_from_json

        stored = self.metadata.get("graph")
        return graph_from_json(stored) if stored is not None else None

    @property
    def graphs(self) -> dict[str, Graph]:
        """The lowered graphs of all methods by name, as far as the file still carries them."""
        from npusim.ir.json import graph_from_json

        stored: dict[str, Any] = {self.methods[0].name: self.metadata.get("graph")}
        others: Any = self.metadata.get("graphs") or {}
        stored.update(others)
        return {name: graph_from_json(tree) for name, tree in stored.items() if tree is not None}

    def to_bytes(self) -> bytes:
        """Returns the `.npubin` image."""
        from npusim.program.format import write_program

        return write_program(self)

    @classmethod
    def from_bytes(cls, image: bytes) -> CompiledProgram:
        """Reads a `.npubin` image; errors are those of `load`."""
        from npusim.program.format import read_program

        return read_program(image)

    def __reduce__(self) -> tuple[Any, ...]:
        # By its bytes, which are validated where they arrive; not by what others keep beside them.
        return CompiledProgram.from_bytes, (self.to_bytes(),)

    def __copy__(self) -> CompiledProgram:
        return self

    def __repr__(self) -> str:
        methods = ", ".join(method.name for method in self.methods[:_SHOWN])
        more = ", …" if len(self.methods) > _SHOWN else ""
        commands = sum(len(method.commands) for method in self.methods)
        return (
            f"CompiledProgram({methods}{more} for {self.target}: {commands} commands, "
            f"{len(self.weights)} weights)"
        )

    def _repr_html_(self) -> str:
        from npusim.program.shown import program_html

        return program_html(self)

    def save(self, path: str | Path) -> None:
        """Writes a `.npubin` file; whole or not at all."""
        from npusim.program.format import save_program

        save_program(self, path)

    @classmethod
    def load(cls, path: str | Path) -> CompiledProgram:
        """Reads a `.npubin` file.

        Raises:
            ProgramFormatError: truncated, corrupt, of another version, or not a program.
        """
        from npusim.program.format import load_program

        return load_program(path)


def method_named(program: CompiledProgram, name: str | None) -> Method:
    """Returns a method by name, as a caller gave it; without a name, the first one.

    Raises:
        Error: there is none of that name; says which there are.
    """
    try:
        return program.method(name)
    except KeyError:
        known = ", ".join(method.name for method in program.methods)
        raise Error(f"The program has no method '{name}'.", hint=f"It has: {known}.") from None
