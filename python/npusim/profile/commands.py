"""What a command of a program is, for whoever asks where time goes: its origin and its cost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS, Params
from npusim.profile.reuse import Reuse, method_reuse
from npusim.program.program import Access, Command, CompiledProgram, Method
from npusim.program.sized_command import Sizes, params_at


@dataclass(frozen=True, slots=True)
class CommandFacts:
    """A command at given sizes.

    Attributes:
        kernel: stem of its kernel (`npusim.abi.KERNELS`), whose fields `params` are.
        node, op: the graph node that it came from, and its operator.
        module, source: path of the model's module, file and line; either may be empty.
        bytes_read, bytes_written: of its operands, at least; `npusim.abi.kernel_cost` says how it
            counts.
        operations: of arithmetic, by the kernel's definition.
        reuse: what it finds in caches; None: unknown.
    """

    kernel: str
    params: Params
    node: str
    op: str
    module: str
    source: str
    bytes_read: int
    bytes_written: int
    operations: int
    reuse: Reuse | None = None


def method_facts(
    program: CompiledProgram, method: Method, sizes: Sizes, position: int | None
) -> tuple[CommandFacts, ...]:
    """Returns what the commands of a method are, in runs that follow one another.

    Args:
        sizes, position: as `command_facts` takes them.

    Raises:
        ShapeError: sizes that a kernel cannot count.
    """
    touched = [_cost(program, command, sizes, position)[1] for command in method.commands]
    found = method_reuse(program, method, touched)
    return tuple(
        replace(command_facts(program, command, sizes, position), reuse=reuse)
        for command, reuse in zip(method.commands, found, strict=True)
    )


def command_facts(
    program: CompiledProgram, command: Command, sizes: Sizes, position: int | None
) -> CommandFacts:
    """Returns what a command is.

    Args:
        sizes: of all symbols of its method.
        position: what a kernel that reads a position in a cache finds there; None: the end of it.

    Raises:
        ShapeError: sizes that a kernel cannot count.
    """
    kernel, node = program.kernels[command.kernel].name, program.nodes[command.node]
    params, touched, operations = _cost(program, command, sizes, position)
    accesses = list(zip((o.access for o in command.operands), touched, strict=True))
    read = sum(held for access, held in accesses if access != Access.WRITE)
    written = sum(held for access, held in accesses if access != Access.READ)
    module, source = _place(node.source)
    return CommandFacts(
        *(kernel, params, node.name, node.op, module, source, read, written, operations)
    )


def _cost(
    program: CompiledProgram, command: Command, sizes: Sizes, position: int | None
) -> tuple[Params, list[int], int]:
    """Returns parameters, bytes touched of each operand, and operations.

    What a library wants besides (a bias in the dtype of the result) follows the kernel's operands,
    holds what one of them does, and touches nothing more.
    """
    kernel = program.kernels[command.kernel].name
    params = KERNELS[kernel].unpack(params_at(command, sizes))
    cost = kernel_cost(kernel, params, position)
    besides = len(command.operands) - len(cost.operand_bytes)
    operands = zip(command.operands, (*cost.operand_bytes, *(0,) * besides), strict=True)
    held = [min(touched, program.buffers[o.buffer].bytes) for o, touched in operands]
    return params, held, cost.operations


def _place(source: str) -> tuple[str, str]:
    """Splits what a program says of a node's origin into the module, and file and line."""
    module, _, line = source.rpartition(", ")
    return (module, line) if module or ":" in line else (line, "")
