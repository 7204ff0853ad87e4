"""Estimates by which schedules are chosen: cycles of the array, of the vector unit, of DRAM.

The array's are exact by the formulas of SCALE-Sim (A. Samajdar et al., ISPASS 2020) and, with
weights loaded while one fold computes, of Gemmini's; what overlaps with what is an estimate, for
which the timing model has events.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import ceil

from npusim.schedule.schedule import AXES, Sizes
from npusim.schedule.work import Part, Work
from npusim.targets.hardware import Mxu, Npu

Loops = tuple[str, ...]


def fold_cycles(mxu: Mxu, m: int, n: int, k: int, dtype: str) -> float:
    """Returns the cycles in which one array multiplies [m, k] by [k, n].

    With R rows and C columns, F folds of T steps: stationary weights take F = ⌈k/R⌉⌈n/C⌉ and
    T = m, sums ⌈m/R⌉⌈n/C⌉ and k, inputs ⌈k/R⌉⌈m/C⌉ and n. Without overlap a fold takes
    T + R + C - 2, and R more to load what is stationary; with overlap folds take
    max(T, R, min_stream_rows) each, and all of them 2R + C - 2 once.
    """
    rows, cols = mxu.rows, mxu.cols
    down, across, steps = {"ws": (k, n, m), "os": (m, n, k), "is": (k, m, n)}[mxu.dataflow]
    folds = ceil(down / rows) * ceil(across / cols)
    steps = ceil(steps / mxu.macs_per_pe_cycle[dtype])
    if mxu.fold_overlap == "weights":
        return folds * max(steps, rows, mxu.min_stream_rows) + 2 * rows + cols - 2
    return folds * (steps + rows + cols - 2 + (0 if mxu.dataflow == "os" else rows))


def array_cycles(npu: Npu, work: Work, tile: Sizes) -> float:
    """Returns the cycles of all tiles, on as many arrays as there are tiles for."""
    total = 0.0
    for counts, part in _tiles(work.sizes, tile):
        total += counts * _tile_cycles(npu, work, part)
    return total / _parallel(npu, work.sizes, tile)


def vector_cycles(npu: Npu, work: Work, tile: Sizes) -> float:
    """Returns the cycles in which the vector units pass what a command computes of elements."""
    rate = npu.vpu.lanes * npu.vpu.dtype_rate.get(work.dtype, 1.0)
    cycles = sum(npu.vpu.cycles(op) * ceil(count / rate) for op, count in work.vector.items())
    beside, each = npu.vpu.sum_cycles(work.addends)
    cycles += ceil(work.sums / beside) * each
    trips = _trips(work.sizes, tile)
    return cycles / min(npu.cores.count, trips["b"] * trips["m"] * trips["n"])


def transfers(part: Part, sizes: Sizes, tile: Sizes, loops: Loops, resident: bool) -> int:
    """Returns how many tiles of an operand are moved.

    A loop that the operand has moves another tile at each turn; one that it has not, outside of one
    that it has, moves them all again.
    """
    trips = _trips(sizes, tile)
    moved, inside = 1, False
    for axis in reversed(loops):
        if axis in part.axes:
            moved *= trips[axis]
            inside = inside or trips[axis] > 1
        elif inside and not resident:
            moved *= trips[axis]
    return moved


def moved_bytes(part: Part, sizes: Sizes, tile: Sizes, count: int) -> int:
    """Returns the bytes of so many tiles, those at the ends being smaller."""
    once = 1
    for axis in part.axes:
        once *= -(-sizes.of(axis) // tile.of(axis))
    halo = part.halo_bytes * (count - count // once) if "m" in part.axes and once > 1 else 0
    return part.nbytes * count // once + halo


def row_bytes(part: Part, sizes: Sizes, tile: Sizes) -> int:
    """Returns the bytes of a tile that lie side by side: a part of a row, or all of the tile."""
    whole = part.tile_bytes(sizes, tile)
    if part.inner not in part.axes or tile.of(part.inner) == sizes.of(part.inner):
        return max(1, whole)
    rows = 1
    for axis in part.axes:
        rows *= tile.of(axis) if axis != part.inner else 1
    return max(1, whole // rows)


def dram_cycles(npu: Npu, nbytes: float, count: int, row: int) -> float:
    """Returns the cycles of copies of so many bytes in all, in rows of some bytes."""
    bursts = -(-row // npu.dma.burst_bytes) * npu.dma.burst_bytes
    rate = min(npu.dma.channels * npu.dma.bytes_per_cycle, npu.dram_bytes_per_cycle)
    return nbytes * bursts / row / rate + count * npu.dma.setup_cycles / npu.dma.channels


def _tile_cycles(npu: Npu, work: Work, tile: Sizes) -> float:
    if work.form == "depthwise":  # columns share inputs, so that a channel uses one in a fold
        mxu = npu.mxu
        if mxu.dataflow == "is":
            return tile.n * fold_cycles(mxu, tile.m, 1, work.taps, work.dtype)
        return fold_cycles(mxu, tile.m, tile.n * mxu.cols, work.taps, work.dtype)
    return work.taps * tile.b * fold_cycles(npu.mxu, tile.m, tile.n, tile.k, work.dtype)


def _parallel(npu: Npu, sizes: Sizes, tile: Sizes) -> int:
    trips = _trips(sizes, tile)
    return min(npu.cores.count * npu.mxu.per_core, trips["b"] * trips["m"] * trips["n"])


def _trips(sizes: Sizes, tile: Sizes) -> dict[str, int]:
    return {axis: -(-sizes.of(axis) // tile.of(axis)) for axis in AXES}


def _tiles(sizes: Sizes, tile: Sizes) -> Iterator[tuple[int, Sizes]]:
    """Yields the different tiles, and how many there are of each: whole ones, and what is left."""
    choices = []
    for axis in AXES:
        whole, left = divmod(sizes.of(axis), tile.of(axis))
        rows = [(whole, tile.of(axis))] if whole else []
        choices.append(rows + ([(1, left)] if left else []))
    for parts in product(*choices):
        count = 1
        for number, _ in parts:
            count *= number
        yield count, Sizes(*(extent for _, extent in parts))
