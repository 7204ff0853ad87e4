"""The choice of a schedule: the fastest by the timing model of those that fit into the memories.

The native module tries tiles and orders of loops (`cpp/simulate/tile_choice.h` says which); here is
what it is told of a machine and a work, and what is made of its choice. An estimate of what is
chosen stands beside what no schedule can be below.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal

from npusim.errors import TargetConstraintError
from npusim.ir.types import dtype_size
from npusim.schedule import cost
from npusim.schedule.machine import searched
from npusim.schedule.schedule import AXES, DRAM, OperandPlan, Schedule, Sizes
from npusim.schedule.work import Part, Work
from npusim.targets.hardware import Calibration, Npu

_SUM_BYTES = 4  # of a sum while it is added up
_ORDERS = (("b", "m", "n", "k"), ("b", "n", "m", "k"))
_Facts = dict[str, Any]
Loops = tuple[str, ...]

Kept = tuple[int, ...]  # operands that lie on the chip all the time


def best_schedule(
    npu: Npu,
    work: Work,
    kept: Kept = (),
    taken: int = 0,
    calibration: Calibration = cost.UNCALIBRATED,
) -> Schedule:
    """Returns the schedule of a work that is chosen for a machine; its `command` is 0.

    Args:
        npu: the machine.
        work: what is computed.
        kept: operands that lie in the nearest memory all the time.
        taken: bytes of that memory that other operands take meanwhile.
        calibration: shares of the peaks that the machine reaches.

    Raises:
        TargetConstraintError: not even the smallest tile fits; the message says by how much.
    """
    reached = cost.reached(calibration)
    return _search(_Machine(npu), work, kept, taken, reached)


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
def _search(
    machine: _Machine, work: Work, kept: Kept, taken: int, calibration: Calibration
) -> Schedule:
    from npusim import _runtime

    npu = machine.npu
    described, asked = _machine_facts(npu, work, taken, calibration), _work_facts(npu, work, kept)
    if _copied_whole(npu, work, kept):
        once = _runtime.assess_tiling({**described, "double_buffer": False}, asked, asked["sizes"])
        if _fits(npu, work, once, taken):
            return _schedule(npu, work, once, kept, taken, double_buffer=False)
    found = _runtime.best_tiling(described, asked)
    if found is None:
        raise _does_not_fit(npu, work, kept, taken)
    return _schedule(npu, work, found, kept, taken)


def _copied_whole(npu: Npu, work: Work, kept: Kept) -> bool:
    """Tells whether a work begins once all operands are there that are not (`Sram.whole_kib`)."""
    most = npu.level.whole_kib * 1024
    return all(p.nbytes <= most for p in work.parts if p.operand >= 0 and p.operand not in kept)


def _fits(npu: Npu, work: Work, found: Mapping[str, Any], taken: int) -> bool:
    """Tells whether a tile that is all of a work has room, its sums included."""
    sums = work.sizes.m * work.sizes.n * _SUM_BYTES if unit_of(npu, work) == "mxu" else 0
    return bool(found["bytes"] <= npu.level.bytes - taken and sums <= npu.acc.bytes)


def assess(
    npu: Npu,
    work: Work,
    tile: Sizes,
    kept: Iterable[int] = (),
    loops: Loops = _ORDERS[0],
    resident: int | None = None,
) -> dict[str, Any]:
    """Returns what a tile takes on a machine, of which nothing else is in use.

    By name: "array_cycles" and "vector_cycles" of a core, whose sum over all tiles is shared evenly
    by as many cores as there are results for; "cycles" of everything, about, and "least_cycles"
    that no walk is below; "moved_bytes", "tiles", the "bytes" of the memory; and of each of
    "operands" the bytes of a tile and those of them that lie side by side, how many tiles are
    moved, and their bytes.

    Args:
        npu, work, tile: what is asked about.
        kept: operands that lie in the nearest memory all the time.
        loops: the order of the loops.
        resident: the operand that is kept whole.
    """
    from npusim import _runtime

    machine = _machine_facts(npu, work, 0, cost.UNCALIBRATED)
    whole = next((at for at, part in enumerate(work.parts) if part.operand == resident), -1)
    return _runtime.assess_tiling(
        *(machine, _work_facts(npu, work, tuple(kept)), [tile.of(axis) for axis in AXES]),
        n_before_m=_ORDERS.index(tuple(loops)) == 1,
        resident=whole if resident is not None else -1,
    )


def scheduled(
    npu: Npu, work: Work, tile: Sizes, loops: Loops, resident: int | None, kept: Kept = ()
) -> Schedule:
    """Returns the schedule of a tile, chosen by whoever asks; arguments are those of `assess`."""
    return _schedule(npu, work, assess(npu, work, tile, kept, loops, resident), kept, 0)


def unit_of(npu: Npu, work: Work) -> Literal["mxu", "vpu", "dma", "host"]:
    """Returns what computes a work: where neither unit has its dtype, the host.

    Products of few rows are the vector unit's where it has their dtype (`Mxu.min_rows`).
    """
    if work.form == "move":
        return "dma"
    products = work.form in ("product", "conv", "depthwise")
    few = work.form == "product" and work.sizes.m < npu.mxu.min_rows
    if few and work.dtype in npu.vpu.dtype_rate:
        return "vpu"
    if products and work.dtype in npu.mxu.macs_per_pe_cycle:
        return "mxu"
    return "vpu" if work.dtype in npu.vpu.dtype_rate else "host"


def _machine_facts(npu: Npu, work: Work, taken: int, calibration: Calibration) -> _Facts:
    granule = npu.constraints.tile_multiple
    return {
        "machine": cost.machine_facts(npu, work.dtype, calibration),
        "room": npu.level.bytes - taken,
        "double_buffer": npu.level.double_buffer,
        "sums_room": npu.acc.bytes,
        "granule": [1, granule.m, granule.n, granule.k],
    }


def _work_facts(npu: Npu, work: Work, kept: Kept) -> _Facts:
    unit, vector = unit_of(npu, work), work.vector
    if unit == "vpu" and work.form in ("product", "conv", "depthwise"):
        count = float(work.sizes.b * work.sizes.m * work.sizes.n * work.sizes.k * work.taps)
        vector = {**vector, "fma": vector.get("fma", 0.0) + count}
    rate, passes = cost.vector_passes(npu.vpu, work.dtype, vector, work.sums, work.addends)
    return {
        "products": work.form in ("product", "conv"),
        "on_array": unit == "mxu",
        "walked": unit != "host",
        "whole_rows": work.whole_rows,
        "sizes": [work.sizes.of(axis) for axis in AXES],
        "taps": work.taps,
        "depthwise": work.form == "depthwise",
        "element_bytes": dtype_size(work.dtype),
        "vector_rate": rate,
        "vector": passes,
        "operands": [
            (
                sum(1 << AXES.index(axis) for axis in part.axes),
                AXES.index(part.inner),
                part.nbytes,
                part.halo_bytes,
                part.write,
                part.operand in kept,
                part.operand < 0,
            )
            for part in work.parts
        ],
    }


def _schedule(
    npu: Npu,
    work: Work,
    found: Mapping[str, Any],
    kept: Kept,
    taken: int,
    *,
    double_buffer: bool | None = None,
) -> Schedule:
    plans = tuple(
        _plan(npu, part, row, part.operand in kept or part.operand < 0, at == found["resident"])
        for at, (part, row) in enumerate(zip(work.parts, found["operands"], strict=True))
    )
    loops = _ORDERS[found["n_before_m"]]
    return Schedule(
        command=0,
        form=work.form,
        unit=unit_of(npu, work),
        dtype=work.dtype,
        sizes=work.sizes,
        tile=Sizes(*found["tile"]),
        loops=loops,
        operands=plans,
        vector=dict(work.vector),
        taps=work.taps,
        sums=work.sums,
        addends=work.addends,
        memory=npu.level.name,
        bytes=taken + found["bytes"],
        double_buffer=npu.level.double_buffer if double_buffer is None else double_buffer,
        cycles=found["cycles"],
        least_cycles=_least(npu, work, kept),
    )


def _plan(
    npu: Npu, part: Part, traffic: tuple[int, int, int, int], here: bool, resident: bool
) -> OperandPlan:
    tile, row, count, moved = traffic
    source = npu.level.name if here else DRAM
    return OperandPlan(
        *(part.operand, part.role, part.axes, part.write, source, tile, row, count, moved, resident)
    )


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
    found = assess(npu, work, least, kept)
    needed, room = found["bytes"], npu.level.bytes - taken
    tile = f"its smallest tile ({least.m}x{least.n}x{least.k})"
    sums = least.m * least.n * _SUM_BYTES
    if unit_of(npu, work) == "mxu" and sums > npu.acc.bytes:
        over = sums - npu.acc.bytes
        return TargetConstraintError(
            f"the sums of {tile} take {sums} bytes of 'acc', which has {npu.acc.bytes}: {over} "
            "too many."
        )
    rows = zip(work.parts, found["operands"], strict=True)
    sizes_of = [(bytes_of[0], part) for part, bytes_of in rows if part.operand not in kept]
    nbytes, largest = max(sizes_of, key=lambda one: one[0])
    return TargetConstraintError(
        f"{tile} takes {needed} bytes of memory '{npu.level.name}', which has {room}: "
        f"{needed - room} too many. Most is '{largest.role}', {nbytes} bytes of operand "
        f"{largest.operand}, in {2 if npu.level.double_buffer else 1} buffers."
    )


def ideal_cycles(npu: Npu, m: int, n: int, k: int, dtype: str) -> float:
    """Returns the cycles of one product on one core whose operands are there."""
    return cost.fold_cycles(npu.mxu, m, n, k, dtype)
