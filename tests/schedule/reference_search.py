"""The choice of tiles again, as plainly as it can be said: every tiling that fits is estimated.

Slow, and what `cpp/simulate/tile_choice.h` has to choose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import ceil, prod

from npusim.schedule import Part, Sizes, Work
from npusim.schedule.cost import vector_passes
from npusim.schedule.search import unit_of
from npusim.targets import Npu

AXES = "bmnk"
Loops = tuple[str, str, str, str]


@dataclass(frozen=True)
class Tiling:
    tile: Sizes
    loops: Loops
    resident: int | None  # the operand that is kept whole


def best(npu: Npu, work: Work, kept: tuple[int, ...] = (), taken: int = 0) -> Tiling | None:
    """Returns the fastest tiling; of equals that of the fewest bytes, and of the fewest tiles."""
    found = list(tilings(npu, work, kept, taken))
    return min(found, key=lambda one: estimate(npu, work, one, kept), default=None)


def tilings(npu: Npu, work: Work, kept: tuple[int, ...], taken: int) -> Iterator[Tiling]:
    granule, products = npu.constraints.tile_multiple, work.form in ("product", "conv")
    inputs = [
        p.operand
        for p in work.parts
        if len(p.axes) > 1 and not p.write and p.operand >= 0 and p.operand not in kept
    ]
    ms = extents(work.sizes.m, granule.m if products else 1)
    ns = [work.sizes.n] if work.whole_rows else extents(work.sizes.n, granule.n)
    for m, n, resident in product(ms, ns, [None, *inputs] if products else [None]):
        fitting = [
            tile
            for k in extents(work.sizes.k, granule.k)
            if fits(npu, work, tile := Sizes(1, m, n, k), resident, kept, taken)
        ]
        for loops in ("bmnk", "bnmk")[: 1 + products]:
            if fitting:
                yield Tiling(fitting[-1], tuple(loops), resident)  # type: ignore[arg-type]


def extents(size: int, granule: int) -> list[int]:
    count = ceil(size / granule)
    steps = range(1, count + 1) if count <= 8 else [2**i for i in range(count.bit_length())]
    return sorted({min(size, granule * step) for step in steps} | {size})


def fits(
    npu: Npu, work: Work, tile: Sizes, resident: int | None, kept: tuple[int, ...], taken: int
) -> bool:
    if unit_of(npu, work) == "mxu" and 4 * tile.m * tile.n > npu.acc.bytes:
        return False
    buffers = 2 if npu.level.double_buffer else 1
    whole = sum(p.nbytes for p in work.parts if p.operand == resident)
    tiles = sum(
        tile_bytes(p, work.sizes, tile)
        for p in work.parts
        if p.operand != resident and p.operand not in kept
    )
    return tiles <= (npu.level.bytes - taken) // buffers - whole // buffers


def tile_bytes(part: Part, sizes: Sizes, tile: Sizes) -> int:
    whole, some = (prod(s.of(axis) for axis in part.axes) for s in (sizes, tile))
    halo = part.halo_bytes if tile.m < sizes.m else 0
    return min(ceil(part.nbytes * some / whole) + halo, part.nbytes)


def estimate(
    npu: Npu, work: Work, one: Tiling, kept: tuple[int, ...] = ()
) -> tuple[float, int, int]:
    """Returns cycles, bytes that are moved, and tiles."""
    memory = first = 0.0
    moved = 0
    for part in work.parts:
        if part.operand < 0 or part.operand in kept:
            continue
        count = transfers(part, work.sizes, one)
        once = prod(ceil(work.sizes.of(a) / one.tile.of(a)) for a in part.axes)
        halo = part.halo_bytes * (count - count // once) if "m" in part.axes and once > 1 else 0
        nbytes = part.nbytes * count // once + halo
        row = row_bytes(part, work.sizes, one.tile)
        memory += copied(npu, nbytes, count, row)
        first += copied(npu, tile_bytes(part, work.sizes, one.tile), 1, row)
        moved += nbytes
    busy = computed(npu, work, one.tile)
    cycles = max(busy, memory) + first if npu.level.double_buffer else busy + memory
    return cycles, moved, prod(ceil(work.sizes.of(a) / one.tile.of(a)) for a in AXES)


def transfers(part: Part, sizes: Sizes, one: Tiling) -> int:
    """Counts, step by step, how often an operand's tile is another one than that before."""
    trips = [range(ceil(sizes.of(axis) / one.tile.of(axis))) for axis in one.loops]
    met = set()
    before, count = None, 0
    for at in product(*trips):
        here = tuple(i for axis, i in zip(one.loops, at, strict=True) if axis in part.axes)
        if here != before and not (part.operand == one.resident and here in met):
            count += 1
        before = here
        met.add(here)
    return count


def row_bytes(part: Part, sizes: Sizes, tile: Sizes) -> int:
    whole = tile_bytes(part, sizes, tile)
    if part.inner not in part.axes or tile.of(part.inner) == sizes.of(part.inner):
        return max(1, whole)
    return max(1, whole // prod(tile.of(axis) for axis in part.axes if axis != part.inner))


def copied(npu: Npu, nbytes: int, count: int, row: int) -> float:
    bursts = ceil(row / npu.dma.burst_bytes) * npu.dma.burst_bytes
    rate = min(npu.dma.channels * npu.dma.bytes_per_cycle, npu.dram_bytes_per_cycle)
    return nbytes * bursts / row / rate + count * npu.dma.setup_cycles / npu.dma.channels


def computed(npu: Npu, work: Work, tile: Sizes) -> float:
    """Returns the cycles of the units of one core, which work side by side."""
    results = prod(ceil(work.sizes.of(axis) / tile.of(axis)) for axis in "bmn")
    cores, unit = min(npu.cores.count, results), unit_of(npu, work)
    vector = dict(work.vector)
    if unit == "vpu" and work.form in ("product", "conv", "depthwise"):
        vector["fma"] = prod(work.sizes.of(axis) for axis in AXES) * float(work.taps)
    rate, passes = vector_passes(npu.vpu, work.dtype, vector, work.sums, work.addends)
    whole = prod(work.sizes.of(axis) for axis in AXES)
    passed = array = 0.0
    for part in tiles(work.sizes, tile):
        array += array_cycles(npu, work, part)
        if unit != "mxu":
            passed += sum(ceil(n * prod(part) / whole / rate) * cycles for n, cycles in passes)
    if unit != "mxu":
        return passed / cores
    for part in tiles(work.sizes, Sizes(tile.b, tile.m, tile.n, work.sizes.k)):
        passed += sum(ceil(n * prod(part) / whole / rate) * cycles for n, cycles in passes)
    return max(array, passed) / cores


def tiles(sizes: Sizes, tile: Sizes) -> Iterator[tuple[int, ...]]:
    """Yields the extents of every tile."""
    yield from product(
        *(
            [min(tile.of(a), sizes.of(a) - at) for at in range(0, sizes.of(a), tile.of(a))]
            for a in AXES
        )
    )


def array_cycles(npu: Npu, work: Work, part: tuple[int, ...]) -> int:
    mxu, (_, m, n, k), repeats = npu.mxu, part, work.taps * part[0]
    if work.form == "depthwise" and mxu.dataflow == "is":
        n, k, repeats = 1, work.taps, n
    elif work.form == "depthwise":
        n, k, repeats = n * mxu.cols, work.taps, 1
    down, across, steps, loads = {
        "ws": (k, n, m, mxu.rows),
        "os": (m, n, k, 0),
        "is": (k, m, n, mxu.rows),
    }[mxu.dataflow]
    folds = ceil(ceil(down / mxu.rows) * ceil(across / mxu.cols) * repeats / mxu.per_core)
    steps = ceil(steps / mxu.macs_per_pe_cycle.get(work.dtype, 1.0))
    if mxu.fold_overlap == "weights":
        return folds * max(steps, mxu.rows, mxu.min_stream_rows) + 2 * mxu.rows + mxu.cols - 2
    return folds * (steps + mxu.rows + mxu.cols - 2 + loads)
