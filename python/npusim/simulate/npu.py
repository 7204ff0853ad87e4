"""A run on a described NPU: dispatch, the tiles of each command's schedules, and what it takes.

Commands follow one another: one begins when the one before has written its results. What neither
unit can compute is the host's: its time is that of the roofline of this package's own CPU target,
and what it reads and writes crosses DRAM before and after.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cache

from npusim.errors import Error, TargetConstraintError
from npusim.profile.commands import CommandFacts
from npusim.schedule import Schedule
from npusim.schedule.cost import TICKS
from npusim.simulate.dispatch import Commands, commands_of
from npusim.simulate.roofline import command_time, work_of
from npusim.simulate.tiles import TileTime, walk
from npusim.simulate.timed import Event, Timed, Walked, add
from npusim.targets import Npu, TargetConfig
from npusim.targets.hardware import Calibration
from npusim.targets.roofline import Roofline

_PJ = 1e-12
HOST = "cpu"  # the target whose roofline the host is taken to have


def walk_npu(
    npu: Npu,
    calibration: Calibration,
    commands: Iterable[tuple[CommandFacts, tuple[Schedule, ...]]],
    mode: str,
    events: int = 0,
) -> Walked:
    """Returns the times of a run.

    Args:
        npu, calibration: the machine.
        commands: of the run, with the schedules of each.
        mode: "loose" or "tight".
        events: how many are listed at most of each schedule.

    Raises:
        Error: no such mode.
        TargetConstraintError: a schedule of too many tiles, or numbers beyond what is counted.
    """
    per_ns = npu.clock.core_mhz * TICKS / 1000
    call = math.ceil(npu.dispatch.call_us * 1000 * per_ns)
    starts = commands_of(mode, npu.dispatch, TICKS, per_ns, call)
    found, now = [], call
    for facts, schedules in commands:
        one = _command(npu, calibration, facts, schedules, events, starts, now)
        found.append(one)
        now += one.ticks
    return Walked(per_ns * 1e9, call, tuple(found))


def _command(
    npu: Npu,
    calibration: Calibration,
    facts: CommandFacts,
    schedules: tuple[Schedule, ...],
    events: int,
    starts: Commands,
    now: int,
) -> Timed:
    begun = starts.begin(now)
    if any(schedule.unit == "host" for schedule in schedules):
        parts = [_on_host(npu, calibration, facts)]
    else:
        parts = _walks(npu, calibration, facts, schedules, events)
    ended, shown = begun, list[Event]()
    for part in parts:
        at = ended - now
        shown += (e.later(at) for e in part.events)
        ended += part.ticks
    free = starts.end(begun, ended)
    waited = {"dispatch": begun - now + free - ended}
    moved = sum(p.dram_read + p.dram_written for p in parts)
    passed = sum(p.sram_bytes for p in parts)
    if all(schedule.unit == "vpu" for schedule in schedules):  # operands to the unit and back
        passed += facts.bytes_read + facts.bytes_written
    return Timed(
        start=now,
        ticks=free - now,
        causes=add(waited, *(p.causes for p in parts)),
        dram_bytes=moved,
        sram_bytes=passed,
        energy=_energy(npu, schedules, parts, passed),
        events=tuple(shown),
        units=sum(p.units for p in parts),
    )


def _walks(
    npu: Npu,
    calibration: Calibration,
    facts: CommandFacts,
    schedules: tuple[Schedule, ...],
    events: int,
) -> list[TileTime]:
    try:
        return [walk(npu, schedule, events, calibration) for schedule in schedules]
    except Error as error:
        place = f" ({facts.source})" if facts.source else ""
        raise TargetConstraintError(
            f"Node '{facts.node}' ({facts.op}){place} cannot be walked: {error}",
            hint="Describe a machine with larger tiles, or with numbers nearer to those of others.",
        ) from error


def _on_host(npu: Npu, calibration: Calibration, facts: CommandFacts) -> TileTime:
    """Returns what the machine waits for: the operands' way to the host and back, and its work."""
    nbytes = facts.bytes_read + facts.bytes_written
    rate = npu.dram_bytes_per_cycle * calibration.dram_eff
    latency = npu.dram.read_latency_ns + npu.dram.write_latency_ns
    per_ns = npu.clock.core_mhz * TICKS / 1000
    crossing = math.ceil(nbytes / rate * TICKS + latency * per_ns)
    seconds = command_time(
        work_of(facts.kernel, facts.params, facts.operations, nbytes), facts.kernel, host()
    ).total
    computing = math.ceil(seconds * 1e9 * per_ns)
    read = math.ceil(facts.bytes_read / rate * TICKS + npu.dram.read_latency_ns * per_ns)
    return TileTime(
        ticks=crossing + computing,
        causes={"dram": crossing, "dependency": computing},
        dram_read=facts.bytes_read,
        dram_written=facts.bytes_written,
        sram_bytes=0,
        tiles=0,
        copies=2,
        array_ticks=0,
        vector_ticks=0,
        hop_bytes=0,
        walked=0,
        events=(Event("host", min(read, crossing), min(read, crossing) + computing, computing),),
        units=1,
    )


@cache
def host() -> Roofline:
    """Returns the roofline of the host."""
    hardware = TargetConfig.named(HOST).hardware
    assert hardware is not None and hardware.roofline is not None
    return hardware.roofline


def _energy(
    npu: Npu, schedules: tuple[Schedule, ...], parts: Iterable[TileTime], sram_bytes: int
) -> dict[str, float]:
    """Returns joules by part; what the host takes is not the machine's."""
    cost = npu.energy
    found = dict.fromkeys(("mac", "vector", "sram", "dram", "noc"), 0.0)
    for schedule in schedules:
        if schedule.unit == "mxu":
            found["mac"] += schedule.multiply_adds * cost.mac_pj.get(schedule.dtype, 0.0) * _PJ
        elif schedule.unit == "vpu":
            found["vector"] += schedule.multiply_adds * cost.vec_op_pj * _PJ
        if schedule.unit != "host":
            found["vector"] += sum(schedule.vector.values()) * cost.vec_op_pj * _PJ
    found["sram"] = sram_bytes * cost.sram_pj_per_byte * _PJ
    for part in parts:
        moved = part.dram_read + part.dram_written
        rows = -(-moved // cost.dram_row_bytes)
        found["dram"] += (8 * moved * cost.dram_pj_per_bit + rows * cost.dram_row_act_pj) * _PJ
        if npu.cores.count > 1:
            found["noc"] += part.hop_bytes * cost.noc_pj_per_byte_hop * _PJ
    return found
