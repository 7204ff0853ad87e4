"""Estimates by which schedules are chosen: cycles of the array, of the vector unit, of DRAM.

What a tile keeps the units busy for are the timing model's own formulas, in the native module:
exact by SCALE-Sim (A. Samajdar et al., ISPASS 2020) and, with weights loaded while one fold
computes, by Gemmini. What overlaps with what is an estimate, for which that model has events.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from npusim.schedule.schedule import AXES, Sizes
from npusim.schedule.work import Part, Work
from npusim.targets.hardware import Mxu, Npu, Vpu

Loops = tuple[str, ...]


def array_facts(mxu: Mxu, dtype: str) -> dict[str, Any]:
    """Returns what the native formulas ask of a core's arrays."""
    return {
        "rows": mxu.rows,
        "cols": mxu.cols,
        "per_core": mxu.per_core,
        "min_stream_rows": mxu.min_stream_rows,
        "overlaps": mxu.fold_overlap == "weights",
        "macs_per_pe_cycle": mxu.macs_per_pe_cycle.get(dtype, 1.0),
        "dataflow": mxu.dataflow,
    }


def fold_cycles(mxu: Mxu, m: int, n: int, k: int, dtype: str) -> int:
    """Returns the cycles in which a core multiplies [m, k] by [k, n].

    With R rows and C columns, F folds of T steps: stationary weights take F = ⌈k/R⌉⌈n/C⌉ and
    T = m, sums ⌈m/R⌉⌈n/C⌉ and k, inputs ⌈k/R⌉⌈m/C⌉ and n. Without overlap a fold takes
    T + R + C - 2, and R more to load what is stationary; with overlap folds take
    max(T, R, min_stream_rows) each, and all of them 2R + C - 2 once.
    """
    from npusim import _runtime

    return _runtime.array_cycles(array_facts(mxu, dtype), m, n, k)


def array_cycles(npu: Npu, work: Work, tile: Sizes) -> float:
    """Returns the cycles of all tiles, shared evenly by as many cores as there are results for.

    Each tile takes what the walk says; no walk is shorter than this.
    """
    from npusim import _runtime

    array, depthwise = array_facts(npu.mxu, work.dtype), work.form == "depthwise"
    total = sum(
        count * _runtime.tile_cycles(array, [part.of(a) for a in AXES], work.taps, depthwise)
        for count, part in _tiles(work.sizes, tile)
    )
    return total / _cores(npu, work.sizes, tile)


def vector_passes(
    vpu: Vpu, dtype: str, vector: Mapping[str, float], sums: int, addends: int
) -> tuple[float, list[tuple[float, float]]]:
    """Returns how many elements pass a vector unit at once, and of each pass elements and cycles.

    Args:
        vector: by scalar opcode, elements that pass.
        sums, addends: sums over lanes, the last pass where there are any, of so many elements each.
    """
    rate = vpu.lanes * vpu.dtype_rate.get(dtype, 1.0)
    passes = [(count, vpu.cycles(op)) for op, count in sorted(vector.items())]
    if sums:
        beside, each = vpu.sum_cycles(addends)
        passes.append((sums * rate / beside, each))
    return rate, passes


def vector_cycles(npu: Npu, work: Work, tile: Sizes) -> float:
    """Returns the cycles in which the vector units pass what a command computes of elements.

    Shared by cores like `array_cycles`, and no walk is shorter than this, either.
    """
    from npusim import _runtime

    rate, passes = vector_passes(npu.vpu, work.dtype, work.vector, work.sums, work.addends)
    whole = _volume(work.sizes)
    total = sum(
        count * _runtime.vector_cycles(passes, rate, _volume(part), whole)
        for count, part in _tiles(work.sizes, tile)
    )
    return total / _cores(npu, work.sizes, tile)


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


def _cores(npu: Npu, sizes: Sizes, tile: Sizes) -> int:
    trips = _trips(sizes, tile)
    return min(npu.cores.count, trips["b"] * trips["m"] * trips["n"])


def _volume(sizes: Sizes) -> int:
    return sizes.b * sizes.m * sizes.n * sizes.k


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
