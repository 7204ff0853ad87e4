"""What a command of a program is, for whoever asks where time goes: its origin and its cost."""

from __future__ import annotations

from dataclasses import dataclass

from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS, Params
from npusim.program.program import Access, Command, CompiledProgram
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
    params = KERNELS[kernel].unpack(params_at(command, sizes))
    cost = kernel_cost(kernel, params, position)
    read = written = 0
    for operand, touched in zip(command.operands, cost.operand_bytes, strict=True):
        held = min(touched, program.buffers[operand.buffer].bytes)
        read += held if operand.access != Access.WRITE else 0
        written += held if operand.access != Access.READ else 0
    module, source = _place(node.source)
    return CommandFacts(
        *(kernel, params, node.name, node.op, module, source, read, written, cost.operations)
    )


def _place(source: str) -> tuple[str, str]:
    """Splits what a program says of a node's origin into the module, and file and line."""
    module, _, line = source.rpartition(", ")
    return (module, line) if module or ":" in line else (line, "")
