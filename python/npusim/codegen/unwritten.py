"""Which operands of a command nothing before it in its method writes.

Launches overlap: a kernel may start while those before it still run, and waits for them before it
reads what they write (kernels/cuda/common/dependent_launch.h). Other operands it may read earlier.
The first launch of a run does not overlap, so what came before the run has ended for all of them.

Of an attention over pages, pools count that only appends at its own places write: which rows of
pages these are, the kernel can tell from its own operands.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from npusim.abi.kernels import KERNELS
from npusim.program.program import (
    Access,
    Buffer,
    BufferKind,
    Command,
    CompiledProgram,
    Method,
    PatchKind,
)

# Memory of the program's own, which no caller hands in and no other method's run changes meanwhile.
_OWN = frozenset((BufferKind.WEIGHT, BufferKind.CONSTANT, BufferKind.PERSISTENT, BufferKind.STATE))


# By stem: the first operand of positions, requests and tables, and the pools beside the parameters
# that hold their strides; from the last operand on, since products have any number of weights.
_PLACES = {
    "paged_append": -4,
    "paged_rope_append": -6,
    "linear_rope_append": -6,
    "paged_attention": -4,
}
_ROPE_POOLS = {-2: "k_pool_strides", -1: "v_pool_strides"}
_POOLS: Mapping[str, Mapping[int, str]] = {
    "paged_append": {-1: "y_strides"},
    "paged_rope_append": _ROPE_POOLS,
    "linear_rope_append": _ROPE_POOLS,
    "paged_attention": {-6: "k_strides", -5: "v_strides"},
}
_SIZES = ("length", "pages", "page_tokens", "requests", "table_length")

_Written = dict[int, set[Hashable]]  # by buffer: the places of appends, None of what is none


def unwritten_operands(program: CompiledProgram, method: Method) -> list[int]:
    """Returns for each command a mask of its operands: bit i tells that operand i is unwritten."""
    written: _Written = {}
    masks = []
    for command in method.commands:
        masks.append(_mask(program, command, written))
        for index, operand in enumerate(command.operands):
            if operand.access is not Access.READ:
                places = _places(program, command, index)
                written.setdefault(operand.buffer, set()).add(places)
    return masks


def _mask(program: CompiledProgram, command: Command, written: _Written) -> int:
    # A caller may hand in, as an input, the memory that it wants an output in.
    hands_out = any(program.buffers[other].kind is BufferKind.OUTPUT for other in written)
    reads_pages = program.kernels[command.kernel].name == "paged_attention"
    mask = 0
    for index, operand in enumerate(command.operands):
        buffer = program.buffers[operand.buffer]
        changed = any(
            _overlap(buffer, program.buffers[other]) for other in written if other != operand.buffer
        )
        kept = buffer.kind in _OWN or (buffer.kind is BufferKind.INPUT and not hands_out)
        writes = written.get(operand.buffer, set())
        if writes and reads_pages and buffer.kind in _OWN and None not in writes:
            kept = writes == {_places(program, command, index)}
        elif writes:
            kept = False
        if kept and not changed:
            mask |= 1 << index
    return mask


def _places(program: CompiledProgram, command: Command, index: int) -> Hashable:
    """Returns which rows of a pool a command over pages touches; None: operand `index` is none."""
    stem = program.kernels[command.kernel].name
    strides = _POOLS.get(stem, {}).get(index - len(command.operands))
    if strides is None or any(p.kind is PatchKind.OPERAND for p in command.patches):
        return None
    kernel = KERNELS[stem]
    symbolic = {kernel.field_at(patch.at): patch.size for patch in command.patches}
    if strides in symbolic:
        return None
    fields = kernel.unpack(command.params) | symbolic
    first = _PLACES[stem]
    named = tuple((o.buffer, o.offset) for o in command.operands[first : first + 3])
    sizes = tuple(fields[name] for name in _SIZES)
    return command.operands[index].offset, named, sizes, fields[strides]


def _overlap(a: Buffer, b: Buffer) -> bool:
    """Tells whether two buffers of the program's arenas share bytes."""
    planned = (BufferKind.PERSISTENT, BufferKind.STATE)
    if a.kind is not b.kind or a.kind not in planned:
        return False
    return a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes
