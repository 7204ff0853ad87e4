"""A run on a device that is known by what it reaches: the formula of `roofline.py`, in parts.

Ticks are femtoseconds. A command's fixed time, with that of its items, is dispatch, but for what
packs operands, which is computing, and for what is copied before; of the rest what is the longer of
computing and copying alone is due to that, and what is left to the other.
"""

from __future__ import annotations

from collections.abc import Iterable

from npusim.profile.commands import CommandFacts
from npusim.simulate.roofline import RooflineTime, Work, call_time, command_time, work_of
from npusim.simulate.timed import Event, Timed, Walked
from npusim.targets.roofline import Roofline

RATE = 1e15  # ticks a second


def walk_device(device: Roofline, commands: Iterable[CommandFacts]) -> Walked:
    """Returns the times of a run: their sum is that of `roofline.run_time`."""
    timed = [(facts, roofline_time(device, facts)) for facts in commands]
    call = _ticks(call_time([time for _, time in timed], device))
    found, now = [], call
    for facts, time in timed:
        one = _command(device, facts, time, now)
        found.append(one)
        now += one.ticks
    return Walked(RATE, call, tuple(found))


def roofline_time(device: Roofline, facts: CommandFacts) -> RooflineTime:
    """Returns the parts of a command's time."""
    return command_time(work_of_command(facts), facts.kernel, device)


def work_of_command(facts: CommandFacts) -> Work:
    """Returns what the formula asks of a command."""
    nbytes = facts.bytes_read + facts.bytes_written
    return work_of(facts.kernel, facts.params, facts.operations, nbytes, facts.reuse)


def _command(device: Roofline, facts: CommandFacts, time: RooflineTime, now: int) -> Timed:
    kind = work_of_command(facts).kind(facts.kernel, device)
    computes = "compute" if kind.products else "vector"
    dispatch = _ticks(time.begins)
    busy = _ticks(time.total - time.start)
    most = min(busy, _ticks(max(time.compute, time.memory)))
    longer, other = (computes, "dram") if time.compute >= time.memory else ("dram", computes)
    packs, brings = _before(time, dispatch)
    causes = {"dispatch": dispatch - packs - brings, longer: most, other: busy - most}
    causes[computes] += packs
    causes["dram"] += brings
    lane = "mxu" if computes == "compute" else "vpu"
    alone = ((lane, time.compute), ("dram", time.memory))
    ends = ((name, dispatch + min(busy, _ticks(seconds))) for name, seconds in alone)
    return Timed(
        start=now,
        ticks=dispatch + busy,
        causes=causes,
        dram_bytes=facts.bytes_read + facts.bytes_written,
        sram_bytes=0,
        events=tuple(
            Event(name, dispatch, end, end - dispatch) for name, end in ends if end > dispatch
        ),
        units=2,
    )


def _before(time: RooflineTime, most: int) -> tuple[int, int]:
    """Returns the ticks of packing and of copies before a command computes, of so many at most."""
    packs, brings = (
        _ticks(sum(part.seconds for part in time.parts if part.due == due))
        for due in ("compute", "dram")
    )
    packs = min(packs, most)
    return packs, min(brings, most - packs)


def _ticks(seconds: float) -> int:
    return round(seconds * RATE)
