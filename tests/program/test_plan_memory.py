"""The memory plan keeps its invariants on random programs, and reuses what it can."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import npusim.ops  # noqa: F401  (imports what follows; the other way round is a circle)
from npusim.lowering.context import PendingBuffer, PendingMethod
from npusim.lowering.plan_memory import plan_memory
from npusim.program.program import ALIGNMENT, Access, BufferKind, Command, Operand


def command(reads: list[int], writes: list[int]) -> Command:
    operands = [Operand(b, 0, Access.READ) for b in reads]
    operands += [Operand(b, 0, Access.WRITE) for b in writes]
    return Command(0, 0, b"", tuple(operands))


def temp(size: int) -> PendingBuffer:
    return PendingBuffer(BufferKind.TEMP, size, "", False)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[PendingBuffer], PendingMethod]:
    """A method whose commands read earlier buffers and write a new one, some in place."""
    sizes = draw(st.lists(st.integers(0, 500), min_size=2, max_size=14))
    buffers = [temp(s) for s in sizes]
    method = PendingMethod()
    method.commands.append(command([], [0]))
    method.in_place.append(())
    for index in range(1, len(sizes)):
        reads = draw(st.lists(st.integers(0, index - 1), max_size=3, unique=True))
        method.commands.append(command(reads, [index]))
        pairs = [(r, index) for r in reads if sizes[r] == sizes[index]]
        method.in_place.append(tuple(pairs) if draw(st.booleans()) else ())
    return buffers, method


@given(chains())
def test_live_buffers_never_overlap(case: tuple[list[PendingBuffer], PendingMethod]) -> None:
    buffers, method = case
    plan = plan_memory(buffers, PendingMethod(), [method])
    life: dict[int, list[int]] = {}
    for position, entry in enumerate(method.commands):
        for operand in entry.operands:
            life.setdefault(operand.buffer, []).append(position)
    allowed = {pair for pairs in method.in_place for pair in pairs}
    for a in life:
        assert plan.buffers[a].offset % ALIGNMENT == 0
        assert plan.buffers[a].offset + plan.buffers[a].bytes <= plan.run_arenas[0]
        for b in life:
            if a >= b or not plan.buffers[a].bytes or not plan.buffers[b].bytes:
                continue
            first, second = plan.buffers[a], plan.buffers[b]
            apart = (
                first.offset + first.bytes <= second.offset
                or second.offset + second.bytes <= first.offset
            )
            together = max(life[a][0], life[b][0]) <= min(life[a][-1], life[b][-1])
            handover = (a, b) in allowed and life[a][-1] == life[b][0]
            assert apart or not together or handover, (a, b, life[a], life[b])


def test_a_chain_needs_two_buffers_and_in_place_one() -> None:
    def plan(in_place: bool) -> int:
        method = PendingMethod()
        for index in range(5):
            method.commands.append(command([index - 1] if index else [], [index]))
            method.in_place.append(((index - 1, index),) if in_place and index else ())
        return plan_memory([temp(64) for _ in range(5)], PendingMethod(), [method]).run_arenas[0]

    assert plan(in_place=False) == 128
    assert plan(in_place=True) == 64


def test_what_init_writes_and_a_run_reads_is_persistent() -> None:
    init, run = PendingMethod(), PendingMethod()
    init.commands = [command([], [0]), command([0], [1])]
    run.commands = [command([1], [2])]
    init.in_place, run.in_place = [(), ()], [()]
    plan = plan_memory([temp(10), temp(10), temp(10)], init, [run])
    kinds = [b.kind for b in plan.buffers]
    assert kinds == [BufferKind.TEMP, BufferKind.PERSISTENT, BufferKind.TEMP]
    assert plan.persistent == ALIGNMENT and plan.init_arena == ALIGNMENT
