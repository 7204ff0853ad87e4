"""The choice of a schedule: the fastest by `cost.py` of those that fit into the memories.

Tried are both orders of the loops over m and n, either operand kept whole, and for m and n all
multiples of their granule, or, where those are more than `EVERY`, the granule times powers of two;
the depth of a tile is the greatest that fits, since k is the innermost loop and shorter tiles only
move more. The estimate of what is chosen stands beside what no schedule can be below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from npusim.errors import TargetConstraintError
from npusim.schedule import cost
from npusim.schedule.machine import searched
from npusim.schedule.schedule import DRAM, OperandPlan, Schedule, Sizes
from npusim.schedule.work import Part, Work
from npusim.targets.hardware import Npu

EVERY = 8  # multiples of a granule, up to which all are tried
_SUM_BYTES = 4
_ORDERS = (("b", "m", "n", "k"), ("b", "n", "m", "k"))

Kept = tuple[int, ...]  # operands that lie on the chip all the time


def best_schedule(npu: Npu, work: Work, kept: Kept = (), taken: int = 0) -> Schedule:
    """Returns the schedule of a work that is chosen for a machine; its `command` is 0.

    Args:
        npu: the machine.
        work: what is computed.
        kept: operands that lie in the nearest memory all the time.
        taken: bytes of that memory that other operands take meanwhile.

    Raises:
        TargetConstraintError: not even the smallest tile fits; the message says by how much.
    """
    return _search(_Machine(npu), work, kept, taken)


class _Machine:
    """A machine as a key of the cache: equal where is equal what a search reads."""

    def __init__(self, npu: Npu) -> None:
        self.npu = searched(npu)
        self._text = repr(self.npu)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Machine) and self._text == other._text


@lru_cache(maxsize=4096)
def _search(machine: _Machine, work: Work, kept: Kept, taken: int) -> Schedule:
    npu = machine.npu
    computed: dict[Sizes, float] = {}  # by tile
    best: tuple[tuple[float, int], _Candidate] | None = None
    for one in _candidates(npu, work, kept, taken):
        if one.tile not in computed:
            computed[one.tile] = _computed(npu, work, one.tile)
        found = _estimate(npu, work, one, computed[one.tile])
        if best is None or found < best[0]:
            best = found, one
    if best is None:
        raise _does_not_fit(npu, work, kept, taken)
    return _schedule(npu, work, best[1], best[0][0])


def unit_of(npu: Npu, work: Work) -> Literal["mxu", "vpu", "dma", "host"]:
    """Returns what computes a work: where neither unit has its dtype, the host."""
    if work.form == "move":
        return "dma"
    if work.form in ("product", "conv", "depthwise") and work.dtype in npu.mxu.macs_per_pe_cycle:
        return "mxu"
    return "vpu" if work.dtype in npu.vpu.dtype_rate else "host"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A schedule that fits: operands kept whole, those that are there anyway, bytes in use."""

    tile: Sizes
    loops: cost.Loops
    resident: Kept
    kept: Kept
    used: int


def _candidates(npu: Npu, work: Work, kept: Kept, taken: int) -> Iterator[_Candidate]:
    """Yields tile, loops, operands kept whole, those that are there anyway, and bytes in use."""
    room = npu.level.bytes - taken
    half = room // 2 if npu.level.double_buffer else room
    granule = npu.constraints.tile_multiple
    products = work.form in ("product", "conv")
    inputs = [p.operand for p in work.parts if not p.write and len(p.axes) > 1 and p.operand >= 0]
    for m in _extents(work.sizes.m, granule.m if products else 1):
        for n in [work.sizes.n] if work.whole_rows else _extents(work.sizes.n, granule.n):
            for resident in [(), *((operand,) for operand in inputs if products)]:
                tile = _deepest(npu, work, Sizes(1, m, n, 1), resident, kept, half)
                if tile is None:
                    continue
                used = taken + _footprint(npu, work, tile, resident, kept)
                for loops in _ORDERS if products else _ORDERS[:1]:
                    yield _Candidate(tile, loops, resident, kept, used)


def _extents(size: int, granule: int) -> list[int]:
    """Returns the extents of a tile that are tried along an axis."""
    if size <= granule:
        return [size]
    count = -(-size // granule)
    steps = range(1, count + 1) if count <= EVERY else (1 << i for i in range(count.bit_length()))
    return sorted({min(size, granule * step) for step in steps} | {size})


def _deepest(
    npu: Npu, work: Work, tile: Sizes, resident: Kept, kept: Kept, half: int
) -> Sizes | None:
    """Returns the tile with the greatest depth that fits, or None where none does."""
    unit = unit_of(npu, work)
    if unit == "mxu" and tile.m * tile.n * _SUM_BYTES > npu.acc.bytes:
        return None
    depths = _extents(work.sizes.k, npu.constraints.tile_multiple.k)
    for depth in reversed(depths):
        deep = replace(tile, k=depth)
        if _tiles_bytes(work, deep, resident, kept) <= half - _whole_bytes(work, resident) // (
            2 if npu.level.double_buffer else 1
        ):
            return deep
    return None


def _tiles_bytes(work: Work, tile: Sizes, resident: Kept, kept: Kept) -> int:
    rest = (p for p in work.parts if p.operand not in resident and p.operand not in kept)
    return sum(part.tile_bytes(work.sizes, tile) for part in rest)


def _whole_bytes(work: Work, resident: Kept) -> int:
    return sum(part.nbytes for part in work.parts if part.operand in resident)


def _footprint(npu: Npu, work: Work, tile: Sizes, resident: Kept, kept: Kept) -> int:
    buffers = 2 if npu.level.double_buffer else 1
    return _whole_bytes(work, resident) + buffers * _tiles_bytes(work, tile, resident, kept)


def _plan(
    npu: Npu,
    work: Work,
    part: Part,
    tile: Sizes,
    loops: tuple[str, ...],
    resident: bool,
    here: bool,
) -> OperandPlan:
    row = cost.row_bytes(part, work.sizes, tile)
    whole = part.tile_bytes(work.sizes, tile)
    if here:
        source = npu.level.name
        return OperandPlan(part.operand, part.role, part.axes, part.write, source, whole, row, 0, 0)
    count = cost.transfers(part, work.sizes, tile, loops, resident)
    moved = cost.moved_bytes(part, work.sizes, tile, count)
    return OperandPlan(
        *(part.operand, part.role, part.axes, part.write, DRAM, whole, row, count, moved, resident)
    )


def _estimate(npu: Npu, work: Work, one: _Candidate, computed: float) -> tuple[float, int]:
    """Returns the cycles of a candidate, and the bytes that it moves."""
    memory = first = 0.0
    moved = 0
    for part in work.parts:
        if part.operand < 0 or part.operand in one.kept:
            continue
        kept_whole = part.operand in one.resident
        count = cost.transfers(part, work.sizes, one.tile, one.loops, kept_whole)
        nbytes = cost.moved_bytes(part, work.sizes, one.tile, count)
        row = cost.row_bytes(part, work.sizes, one.tile)
        memory += cost.dram_cycles(npu, nbytes, count, row)
        first += cost.dram_cycles(npu, part.tile_bytes(work.sizes, one.tile), 1, row)
        moved += nbytes
    hidden = npu.level.double_buffer
    return (max(computed, memory) + first if hidden else computed + memory), moved


def _schedule(npu: Npu, work: Work, one: _Candidate, cycles: float) -> Schedule:
    plans = tuple(
        _plan(
            npu,
            work,
            part,
            one.tile,
            one.loops,
            part.operand in one.resident,
            part.operand in one.kept or part.operand < 0,
        )
        for part in work.parts
    )
    return Schedule(
        command=0,
        form=work.form,
        unit=unit_of(npu, work),
        dtype=work.dtype,
        sizes=work.sizes,
        tile=one.tile,
        loops=one.loops,
        operands=plans,
        vector=dict(work.vector),
        taps=work.taps,
        sums=work.sums,
        addends=work.addends,
        memory=npu.level.name,
        bytes=one.used,
        double_buffer=npu.level.double_buffer,
        cycles=cycles,
        least_cycles=_least(npu, work, one.kept),
    )


def _computed(npu: Npu, work: Work, tile: Sizes) -> float:
    """Returns the cycles of the units, which work side by side."""
    unit = unit_of(npu, work)
    if unit == "mxu":
        whole_sums = replace(tile, k=work.sizes.k)
        return max(cost.array_cycles(npu, work, tile), cost.vector_cycles(npu, work, whole_sums))
    vector = dict(work.vector)
    if unit == "vpu" and work.form in ("product", "conv", "depthwise"):
        count = float(work.sizes.b * work.sizes.m * work.sizes.n * work.sizes.k * work.taps)
        vector["fma"] = vector.get("fma", 0.0) + count
    return cost.vector_cycles(npu, replace(work, vector=vector), tile)


def _least(npu: Npu, work: Work, kept: Kept) -> float:
    """Returns what no schedule is below: operands moved once, every array always busy."""
    sizes = work.sizes
    nbytes = sum(p.nbytes for p in work.parts if p.operand >= 0 and p.operand not in kept)
    rate = min(npu.dma.channels * npu.dma.bytes_per_cycle, npu.dram_bytes_per_cycle)
    computed = 0.0
    if unit_of(npu, work) == "mxu":
        macs = sizes.b * sizes.m * sizes.n * sizes.k * work.taps
        arrays = npu.mxu.elements * npu.mxu.per_core * npu.cores.count
        computed = macs / (arrays * npu.mxu.macs_per_pe_cycle[work.dtype])
    lanes = npu.vpu.lanes * npu.vpu.dtype_rate.get(work.dtype, 1.0) * npu.cores.count
    vector = sum(npu.vpu.cycles(op) * count for op, count in work.vector.items()) / lanes
    return max(nbytes / rate, computed, vector)


def _does_not_fit(npu: Npu, work: Work, kept: Kept, taken: int) -> TargetConstraintError:
    granule = npu.constraints.tile_multiple
    sizes = work.sizes
    least = Sizes(
        1,
        min(sizes.m, granule.m),
        sizes.n if work.whole_rows else min(sizes.n, granule.n),
        min(sizes.k, granule.k),
    )
    needed, room = _footprint(npu, work, least, (), kept), npu.level.bytes - taken
    tile = f"its smallest tile ({least.m}x{least.n}x{least.k})"
    sums = least.m * least.n * _SUM_BYTES
    if unit_of(npu, work) == "mxu" and sums > npu.acc.bytes:
        over = sums - npu.acc.bytes
        return TargetConstraintError(
            f"the sums of {tile} take {sums} bytes of 'acc', which has {npu.acc.bytes}: {over} "
            "too many."
        )
    parts = [p for p in work.parts if p.operand not in kept]
    largest = max(parts, key=lambda part: part.tile_bytes(work.sizes, least))
    return TargetConstraintError(
        f"{tile} takes {needed} bytes of memory '{npu.level.name}', which has {room}: "
        f"{needed - room} too many. Most is '{largest.role}', "
        f"{largest.tile_bytes(work.sizes, least)} bytes of operand {largest.operand}, in "
        f"{2 if npu.level.double_buffer else 1} buffers."
    )


def ideal_cycles(npu: Npu, m: int, n: int, k: int, dtype: str) -> float:
    """Returns the cycles of one product on one core whose operands are there."""
    return cost.fold_cycles(npu.mxu, m, n, k, dtype)
