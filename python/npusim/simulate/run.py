"""One simulated run, from a plan to a `Simulation`: which walk, its peaks, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from npusim.errors import Error
from npusim.schedule import Schedule
from npusim.schedule.cost import TICKS
from npusim.simulate.changes import npu_changes, roofline_changes
from npusim.simulate.device import walk_device
from npusim.simulate.formula import device_formula, npu_formula
from npusim.simulate.npu import walk_npu
from npusim.simulate.occupancy import memories
from npusim.simulate.plan import Plan
from npusim.simulate.simulation import Explained, Layer, Simulation
from npusim.simulate.timed import Walked
from npusim.targets import Npu
from npusim.targets.roofline import Roofline

SHOWN = 20_000  # events of a timeline
_WORTH = 0.005  # of a time that a change saves, to be told


def run(plan: Plan, mode: str | None, shown: int = SHOWN) -> Simulation:
    """Returns a simulated run, whose timeline has about as many events as are to be shown.

    Errors are those of `npusim.simulate`.
    """
    if plan.hardware.npu is not None:
        return _on_npu(plan, plan.hardware.npu, mode, shown)
    assert plan.hardware.roofline is not None
    return _on_device(plan, plan.hardware.roofline, mode)


def _on_npu(plan: Plan, npu: Npu, mode: str | None, shown: int) -> Simulation:
    calibration, chosen = plan.hardware.calibration, mode or npu.dispatch.mode
    work = tuple(zip(plan.commands, plan.schedules, strict=True))
    walks = max(1, sum(map(len, plan.schedules)))
    events = max(1, shown // walks) if shown else 0
    walked = walk_npu(npu, calibration, work, chosen, events)

    def explained() -> Explained:
        runs = [
            (change.cause, change.setting, walk_npu(change.machine, calibration, work, chosen))
            for change in npu_changes(npu)
        ]
        formulas = [npu_formula(npu, schedules) for schedules in plan.schedules]
        return _explained(walked, runs, formulas)

    peaks = [_peak(npu, schedules) for schedules in plan.schedules]
    whole = {
        "ops_per_second": max(peaks, default=0.0) or _greatest(npu),
        "bytes_per_second": npu.dram_bytes_per_cycle
        * calibration.dram_eff
        * npu.clock.core_mhz
        * 1e6,
    }
    layers = _layers(plan, walked, [p or whole["ops_per_second"] for p in peaks], TICKS, npu)
    starts = [layer.start for layer in layers]
    return Simulation(
        *_names(plan, chosen),
        walked,
        layers,
        whole,
        npu.energy.static_w,
        explained,
        memories(plan.program, plan.method, npu, plan.schedules, starts),
    )


def _on_device(plan: Plan, device: Roofline, mode: str | None) -> Simulation:
    if mode not in (None, "tight"):
        raise Error(
            f"'{plan.target.name}' has no mode '{mode}': it is described by a roofline, whose "
            "fixed times of commands hold how they start.",
            hint="Leave the mode out, or fit 'start_us' of its classes.",
        )
    walked = walk_device(device, plan.commands)

    def explained() -> Explained:
        runs = [
            (change.cause, change.setting, walk_device(change.machine, plan.commands))
            for change in roofline_changes(device)
        ]
        return _explained(walked, runs, [device_formula(device, c) for c in plan.commands])

    best = max(p.product_tera_ops_per_second for p in device.peaks)
    rate = device.memory[-1].giga_bytes_per_second
    peaks = {"ops_per_second": 1e12 * best, "bytes_per_second": 1e9 * rate}
    layers = _layers(plan, walked, [1e12 * best] * len(plan.commands), 0, None)
    starts = [layer.start for layer in layers]
    return Simulation(
        *_names(plan, "tight"),
        walked,
        layers,
        peaks,
        None,
        explained,
        memories(plan.program, plan.method, None, (), starts),
    )


def _names(plan: Plan, mode: str) -> tuple[str, str, str, str]:
    return str(plan.program.metadata.get("model", "")), plan.method.name, plan.target.name, mode


def _layers(
    plan: Plan, walked: Walked, peaks: Iterable[float], cycle: int, npu: Npu | None
) -> tuple[Layer, ...]:
    watts = npu.energy.static_w if npu is not None else 0.0
    rows = zip(plan.commands, walked.commands, peaks, strict=True)
    return tuple(
        Layer(index, facts, timed, walked.rate, cycle, peak, watts)
        for index, (facts, timed, peak) in enumerate(rows)
    )


def _peak(npu: Npu, schedules: Iterable[Schedule]) -> float:
    """Returns the operations a second of the array of what a command multiplies; 0 of nothing."""
    unit = "mxu" if npu.has_array else "vpu"
    products = [s for s in schedules if s.unit == unit]
    most = max(products, key=lambda s: s.multiply_adds, default=None)
    return npu.peak_ops_per_second(most.dtype) if most is not None else 0.0


def _greatest(npu: Npu) -> float:
    return max(npu.peak_ops_per_second(dtype) for dtype in npu.multiplied)


def _explained(
    walked: Walked, runs: list[tuple[str, str, Walked]], formulas: Iterable[str]
) -> Explained:
    """Compares a run with those of changed machines."""
    advice = [_advice(walked, index, runs) for index in range(len(walked.commands))]
    return Explained(list(formulas), advice, list(_changes(walked, runs)))


def _advice(walked: Walked, index: int, runs: list[tuple[str, str, Walked]]) -> str:
    timed = walked.commands[index]
    if not timed.ticks:
        return "takes no time"
    bound = max(timed.causes, key=lambda cause: timed.causes[cause])
    share = timed.causes[bound] / timed.ticks
    text = f"{share:.0%} of its time is {bound}"
    best = min(runs, key=lambda one: one[2].commands[index].ticks, default=None)
    if best is None:
        return text
    saved = 1 - best[2].commands[index].ticks / timed.ticks
    if saved < _WORTH:
        return f"{text}; no single resource doubled saves {_WORTH:.1%} of it"
    return f"{text}; {best[1]} would take {saved:.1%} less"


def _changes(walked: Walked, runs: Iterable[tuple[str, str, Walked]]) -> Iterator[dict[str, Any]]:
    for cause, setting, other in sorted(runs, key=lambda one: one[2].ticks):
        yield {
            "setting": setting,
            "cause": cause,
            "seconds": other.ticks / other.rate,
            "saved": 1 - other.ticks / walked.ticks if walked.ticks else 0.0,
        }
