"""The formula of a command's time as text, with its operands: what a person checks by hand."""

from __future__ import annotations

from collections.abc import Iterable

from npusim.profile.commands import CommandFacts
from npusim.schedule import Schedule
from npusim.schedule.schedule import AXES
from npusim.simulate.device import roofline_time, work_of_command
from npusim.simulate.roofline import StartPart
from npusim.simulate.tiles import array_cycles
from npusim.targets import Npu
from npusim.targets.roofline import Roofline

_STEPS = {"ws": ("k", "n", "m"), "os": ("m", "n", "k"), "is": ("k", "m", "n")}


def npu_formula(npu: Npu, schedules: Iterable[Schedule]) -> str:
    """Returns the formulas of a command's schedules, one after another."""
    return "; then ".join(_schedule(npu, schedule) for schedule in schedules) or "nothing to do"


def device_formula(device: Roofline, facts: CommandFacts) -> str:
    """Returns the roofline's formula with a command's numbers."""
    time = roofline_time(device, facts)
    work = work_of_command(facts)
    kind = work.kind(facts.kernel, device)
    moved = sum(nbytes for nbytes, _ in work.on(device).moves(kind, device.cores)[0])
    hidden = f" - {kind.hidden_us:g} us hidden" if kind.hidden_us else ""
    start = " + ".join(map(_part, time.parts))
    compute, memory = 1e6 * time.compute, 1e6 * time.memory
    return (
        f"{kind.name}: start {1e6 * time.start:.4g} us ({start}){hidden} + (({compute:.4g} us of "
        f"{work.operations:,} operations)^p + ({memory:.4g} us of "
        f"{moved:,} bytes in {time.level})^p)^(1/p), "
        f"p = {kind.overlap:g}"
    )


def _part(part: StartPart) -> str:
    each = f"{1e-3 * part.each_ns:.4g} us" if part.each_ns >= 100 else f"{part.each_ns:.4g} ns"
    if part.count == 1:
        return f"{part.what} {each}"
    return f"{part.count:,.10g} {part.what} of {each}"


def _schedule(npu: Npu, schedule: Schedule) -> str:
    sizes, tile = ("x".join(str(s.of(a)) for a in AXES) for s in (schedule.sizes, schedule.tile))
    what = f"{schedule.form} {schedule.dtype}, b x m x n x k = {sizes}"
    if schedule.unit == "host":
        return f"{what}: no unit takes {schedule.dtype}, so the host computes it"
    parts = [f"{what}, {schedule.steps} tiles of {tile}"]
    if schedule.unit == "mxu":
        parts.append(f"a tile on the array: {_folds(npu, schedule)}")
    if schedule.vector:
        parts.append(_vector(npu, schedule))
    rate = npu.dram_bytes_per_cycle
    parts.append(
        f"DRAM: {schedule.dram_bytes:,} bytes / {rate:.4g} a cycle = "
        f"{schedule.dram_bytes / rate:,.0f} cycles"
    )
    return "; ".join(parts)


def _folds(npu: Npu, schedule: Schedule) -> str:
    """Returns F folds of T steps, and their cycles, of a whole tile."""
    mxu, tile = npu.mxu, schedule.tile
    extents = {"m": tile.m, "n": tile.n, "k": tile.k}
    repeats = schedule.taps * tile.b
    if schedule.form == "depthwise" and mxu.dataflow == "is":  # one channel at a time
        extents, repeats = {"m": tile.m, "n": 1, "k": schedule.taps}, tile.n
    elif schedule.form == "depthwise":  # a channel uses a column of a fold
        extents, repeats = {"m": tile.m, "n": tile.n * mxu.cols, "k": schedule.taps}, 1
    down, across, steps = (extents[axis] for axis in _STEPS[mxu.dataflow])
    rate = mxu.macs_per_pe_cycle[schedule.dtype]
    streamed = f"{steps}" if rate == 1 else f"ceil({steps} / {rate:g})"
    shared = f" / {mxu.per_core} arrays" if mxu.per_core > 1 else ""
    count = f"F = {repeats} ceil({down} / {mxu.rows}) ceil({across} / {mxu.cols}){shared}"
    if mxu.fold_overlap == "weights":
        each = f"F max({streamed}, {mxu.rows}, {mxu.min_stream_rows})"
        each += f" + 2 {mxu.rows} + {mxu.cols} - 2"
    else:
        loads = "" if mxu.dataflow == "os" else f" + {mxu.rows}"
        each = f"F ({streamed} + {mxu.rows} + {mxu.cols} - 2{loads})"
    m, n, k = extents["m"], extents["n"], extents["k"]
    cycles = array_cycles(npu, m, k, n, schedule.dtype, repeats)
    return f"{count}, {each} = {cycles:,} cycles"


def _vector(npu: Npu, schedule: Schedule) -> str:
    rate = npu.vpu.lanes * npu.vpu.dtype_rate.get(schedule.dtype, 1.0)
    terms = (
        f"{op} {count:,.0f} / {rate:g} x {npu.vpu.cycles(op):g}"
        for op, count in sorted(schedule.vector.items())
    )
    text = f"vector unit: {' + '.join(terms)} cycles"
    if not schedule.sums:
        return text
    beside, each = npu.vpu.sum_cycles(schedule.addends)
    return f"{text} + ceil({schedule.sums:,} sums over lanes / {beside}) x {each:g}"
