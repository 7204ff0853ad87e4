"""Which operands of a command nothing before it in its method writes.

Launches overlap: a kernel may start while those before it still run, and waits for them before it
reads what they write (kernels/cuda/common/dependent_launch.h). Other operands it may read earlier.
The first launch of a run does not overlap, so what came before the run has ended for all of them.
"""

from __future__ import annotations

from npusim.program.program import (
    Access,
    Buffer,
    BufferKind,
    Command,
    CompiledProgram,
    Method,
)

# Memory of the program's own, which no caller hands in and no other method's run changes meanwhile.
_OWN = frozenset((BufferKind.WEIGHT, BufferKind.CONSTANT, BufferKind.PERSISTENT, BufferKind.STATE))


def unwritten_operands(program: CompiledProgram, method: Method) -> list[int]:
    """Returns for each command a mask of its operands: bit i tells that operand i is unwritten."""
    written: set[int] = set()
    masks = []
    for command in method.commands:
        masks.append(_mask(program, command, written))
        written |= {o.buffer for o in command.operands if o.access is not Access.READ}
    return masks


def _mask(program: CompiledProgram, command: Command, written: set[int]) -> int:
    # A caller may hand in, as an input, the memory that it wants an output in.
    hands_out = any(program.buffers[other].kind is BufferKind.OUTPUT for other in written)
    mask = 0
    for index, operand in enumerate(command.operands):
        buffer = program.buffers[operand.buffer]
        changed = any(_overlap(buffer, program.buffers[other]) for other in written)
        kept = buffer.kind in _OWN or (buffer.kind is BufferKind.INPUT and not hands_out)
        if kept and operand.buffer not in written and not changed:
            mask |= 1 << index
    return mask


def _overlap(a: Buffer, b: Buffer) -> bool:
    """Tells whether two buffers of the program's arenas share bytes."""
    planned = (BufferKind.PERSISTENT, BufferKind.STATE)
    if a.kind is not b.kind or a.kind not in planned:
        return False
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes
