"""Memory planning: every buffer gets a place; buffers that never live together share one.

Invariants
1. A temporary is live from the first command that touches it to the last, ends included.
2. Two temporaries of one method overlap in memory only if their lives do not, or if the planner
   laid one over the other for an in-place command (the read one dies there).
3. Offsets are multiples of ALIGNMENT; arenas end on one.
4. What init writes and a run reads is PERSISTENT; what only init touches is a temporary of init.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from npusim.lowering.context import PendingBuffer, PendingMethod
from npusim.program.program import ALIGNMENT, Buffer, BufferKind


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Final buffers, the bytes of each arena (a method, one), and the constant section."""

    buffers: tuple[Buffer, ...]
    init_arena: int
    run_arenas: tuple[int, ...]
    persistent: int
    state: int
    constants: bytes


@dataclass(slots=True)
class _Block:
    members: list[int]
    size: int
    first: int
    last: int
    offset: int = 0


def plan_memory(
    buffers: list[PendingBuffer], init: PendingMethod, runs: Sequence[PendingMethod]
) -> MemoryPlan:
    """Assigns kinds and offsets to all buffers."""
    in_init, in_runs = _lifetimes(init), [_lifetimes(run) for run in runs]
    for index, buffer in enumerate(buffers):
        read = index in in_init and any(index in spans for spans in in_runs)
        if buffer.kind is BufferKind.TEMP and read:
            buffer.kind = BufferKind.PERSISTENT
    offsets: dict[int, int] = {}
    init_arena = _place(_blocks(buffers, init, in_init), offsets)
    run_arenas = tuple(
        _place(_blocks(buffers, run, spans), offsets)
        for run, spans in zip(runs, in_runs, strict=True)
    )
    state = _stack(buffers, BufferKind.STATE, offsets)
    persistent = _stack(buffers, BufferKind.PERSISTENT, offsets)
    constants = bytearray(_stack(buffers, BufferKind.CONSTANT, offsets))
    for index, buffer in enumerate(buffers):
        if buffer.kind is BufferKind.CONSTANT:
            constants[offsets[index] : offsets[index] + buffer.bytes] = buffer.data
    for index, buffer in enumerate(buffers):
        if buffer.kind is BufferKind.TEMP and index not in offsets:
            buffer.bytes = 0  # nobody touches it
    placed = tuple(
        Buffer(b.kind, b.bytes, offsets.get(i, 0), b.name) for i, b in enumerate(buffers)
    )
    return MemoryPlan(placed, init_arena, run_arenas, persistent, state, bytes(constants))


def _align(size: int) -> int:
    return (size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT


def _lifetimes(method: PendingMethod) -> dict[int, tuple[int, int]]:
    spans: dict[int, tuple[int, int]] = {}
    for index, command in enumerate(method.commands):
        for operand in command.operands:
            first, _ = spans.get(operand.buffer, (index, index))
            spans[operand.buffer] = (first, index)
    return spans


def _blocks(
    buffers: list[PendingBuffer], method: PendingMethod, spans: dict[int, tuple[int, int]]
) -> list[_Block]:
    """Returns the units to place: temporaries, joined where a command can work in place."""
    block_of: dict[int, _Block] = {}
    for index in sorted(spans):
        if buffers[index].kind is BufferKind.TEMP:
            block_of[index] = _Block([index], buffers[index].bytes, *spans[index])
    for position, pairs in enumerate(method.in_place):
        for read, written in pairs:
            a, b = block_of.get(read), block_of.get(written)
            if a is None or b is None or a is b or a.size != b.size:
                continue
            if a.last == position == b.first:
                a.members += b.members
                a.last = b.last
                block_of.update((m, a) for m in b.members)
    return list({id(b): b for b in block_of.values()}.values())


def _place(blocks: list[_Block], offsets: dict[int, int]) -> int:
    """Places the largest blocks first, each at the lowest offset free during its life.

    The greedy-by-size strategy of Pisarchyk & Lee, arXiv:2001.03288.
    """
    placed: list[_Block] = []
    arena = 0
    for block in sorted(blocks, key=lambda b: (-b.size, b.first)):
        at = 0
        for other in placed:  # sorted by offset
            if other.first > block.last or other.last < block.first:
                continue
            if other.offset >= at + _align(block.size):
                break
            at = max(at, other.offset + _align(other.size))
        block.offset = at
        placed.append(block)
        placed.sort(key=lambda b: b.offset)
        arena = max(arena, at + _align(block.size))
        offsets.update((m, at) for m in block.members)
    return arena


def _stack(buffers: list[PendingBuffer], kind: BufferKind, offsets: dict[int, int]) -> int:
    end = 0
    for index, buffer in enumerate(buffers):
        if buffer.kind is kind:
            offsets[index] = end
            end += _align(buffer.bytes)
    return end
