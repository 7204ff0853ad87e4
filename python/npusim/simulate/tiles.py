"""The time of one scheduled command on a described machine, by the native walk over its tiles.

`cpp/simulate` has the model and its invariants. Time is whole ticks of 1/1024 cycle, so that the
parts of a time sum to it exactly; each part is the time that one cause is to blame for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from npusim.errors import Error
from npusim.ir.types import dtype_size
from npusim.schedule import Schedule, best_schedule, product_work
from npusim.schedule.cost import TICKS, UNCALIBRATED, array_facts, machine_facts, vector_passes
from npusim.schedule.schedule import AXES, DRAM
from npusim.simulate.timed import CAUSES, Event
from npusim.targets import Npu
from npusim.targets.hardware import Calibration

_KEPT = 2**14  # walks that are remembered
_LANES = ("mxu", "vpu")  # and DMA channels behind them
_COUNTS = (
    *("dram_read", "dram_written", "sram_bytes", "tiles", "copies"),
    *("array_ticks", "vector_ticks", "hop_bytes", "walked"),
)


@dataclass(frozen=True, slots=True)
class TileTime:
    """How long a command takes from its first copy to its last, without its dispatch.

    Attributes:
        ticks: of 1/1024 cycle.
        causes: ticks by cause (`CAUSES`); they sum to `ticks`.
        dram_read, dram_written: bytes.
        sram_bytes: that the array and copies read and write in the memory on the chip.
        tiles, copies: of the command; `walked` tiles were walked, whose periods all others repeat.
        array_ticks, vector_ticks: in which the arrays and vector units of all cores are busy.
        hop_bytes: bytes of copies, each times the hops between DRAM and the core.
        events: what units do, several in a row as one where more were than asked for, all
            `units` of them together.
    """

    ticks: int
    causes: Mapping[str, int]
    dram_read: int
    dram_written: int
    sram_bytes: int
    tiles: int
    copies: int
    array_ticks: int
    vector_ticks: int
    hop_bytes: int
    walked: int
    events: tuple[Event, ...] = ()
    units: int = 0

    @property
    def cycles(self) -> float:
        """Cycles of the core's clock."""
        return self.ticks / TICKS


def array_cycles(npu: Npu, m: int, k: int, n: int, dtype: str, repeats: int = 1) -> int:
    """Returns the cycles of [m, k] times [k, n] on one core whose operands are there.

    Args:
        repeats: products of that shape one after the other, such as the taps of a convolution.

    Raises:
        Error: the array does not multiply that dtype, or a size is below 1.
    """
    from npusim import _runtime

    if dtype not in npu.mxu.macs_per_pe_cycle:
        unit = "array" if npu.has_array else "vector unit"
        known = ", ".join(npu.multiplied)
        raise Error(f"The {unit} does not multiply {dtype}.", hint=f"It multiplies: {known}.")
    if min(m, k, n, repeats) < 1:
        raise Error(f"A product of {m}x{k}x{n}, {repeats} times, has a size below 1.")
    return _runtime.array_cycles(array_facts(npu.mxu, dtype), m, n, k, repeats)


def walk(
    npu: Npu, schedule: Schedule, events: int = 0, calibration: Calibration = UNCALIBRATED
) -> TileTime:
    """Returns how long a machine takes for a schedule; the same question is answered at once.

    Args:
        npu: the machine.
        schedule: of a command, or of a part of one.
        events: how many of them are listed at most.
        calibration: shares of the peaks that are reached, and how far copies hide.

    Raises:
        Error: the schedule is one of the host's, or has more than 2^24 tiles.
    """
    if schedule.unit == "host":
        raise Error("The host computes this, whose time the machine's description does not say.")
    machine, work = native_facts(npu, schedule, calibration)
    return _walked(_Facts(machine), _Facts(work), events)


def native_facts(
    npu: Npu, schedule: Schedule, calibration: Calibration
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the machine and the work as the native walk takes them, and remembers them by."""
    return machine_facts(npu, schedule.dtype, calibration), _work(npu, schedule)


class _Facts:
    """What the native walk is given, as a key of the cache."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.facts, self._text = facts, repr(facts)

    def __hash__(self) -> int:
        return hash(self._text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Facts) and self._text == other._text


@lru_cache(maxsize=_KEPT)
def _walked(machine: _Facts, work: _Facts, events: int) -> TileTime:
    from npusim import _runtime

    found = _runtime.walk_tiles(machine.facts, work.facts, events)
    cores = machine.facts["cores"]
    shown = tuple(
        Event(_lane(lane, core if cores > 1 else None), *rest)
        for lane, core, *rest in found["timeline"]
    )
    return TileTime(
        ticks=found["ticks"],
        causes=dict(zip(CAUSES, found["causes"], strict=True)),
        **{key: found[key] for key in _COUNTS},
        events=shown,
        units=found["events"],
    )


def _lane(lane: int, core: int | None) -> str:
    name = _LANES[lane] if lane < len(_LANES) else f"dma{lane - len(_LANES)}"
    return name if core is None else f"core{core} {name}"


def walk_product(npu: Npu, m: int, k: int, n: int, dtype: str) -> TileTime:
    """Returns how long a machine takes for one product, scheduled by `best_schedule`.

    Raises:
        TargetConstraintError: no tile fits.
    """
    return walk(npu, best_schedule(npu, product_work(m, n, k, dtype)))


def _work(npu: Npu, schedule: Schedule) -> dict[str, Any]:
    vector = dict(schedule.vector)
    products = schedule.form in ("product", "conv", "depthwise")
    if products and schedule.unit == "vpu":
        vector["fma"] = vector.get("fma", 0.0) + schedule.multiply_adds
    rate, passes = vector_passes(npu.vpu, schedule.dtype, vector, schedule.sums, schedule.addends)
    return {
        "on_array": schedule.unit == "mxu",
        "sizes": [schedule.sizes.of(axis) for axis in AXES],
        "tile": [schedule.tile.of(axis) for axis in AXES],
        "loops": [AXES.index(axis) for axis in schedule.loops],
        "taps": schedule.taps,
        "depthwise": schedule.form == "depthwise",
        "double_buffer": schedule.double_buffer,
        "element_bytes": dtype_size(schedule.dtype),
        "vector_rate": rate,
        "vector": passes,
        "operands": [
            (
                sum(1 << AXES.index(axis) for axis in plan.axes),
                plan.write,
                plan.source == DRAM,
                plan.resident,
                plan.total_bytes,
                plan.row_bytes,
            )
            for plan in schedule.operands
        ],
    }
