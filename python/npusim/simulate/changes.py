"""What would help: machines with one resource doubled, or one delay halved, to walk again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from npusim.targets import Npu
from npusim.targets.roofline import Roofline

Machine = TypeVar("Machine", Npu, Roofline)


@dataclass(frozen=True, slots=True)
class Change(Generic[Machine]):
    """A machine that differs in one number.

    Attributes:
        cause: of the time that it is to shorten (`timed.CAUSES`).
        setting: what `--set` takes for it; of a roofline, whose lists have several, a sentence.
        machine: with it.
    """

    cause: str
    setting: str
    machine: Machine


def npu_changes(npu: Npu) -> Iterator[Change[Npu]]:
    """Yields machines that differ in one number which is not 0."""
    if npu.has_array:
        yield from _fields(npu, "compute", "mxu", per_core=2)
    yield from _fields(npu, "vector", "vpu", lanes=2)
    yield from _fields(npu, "dram", "dram", gb_per_s=2, read_latency_ns=0.5)
    yield from _fields(npu, "dma", "dma", bytes_per_cycle=2, channels=2, setup_cycles=0.5)
    yield from _fields(npu, "bank", "acc", bytes_per_cycle=2)
    yield from _fields(npu, "dispatch", "dispatch", overhead_ns=0.5, doorbell_cycles=0.5)
    yield from _fields(npu, "dispatch", "dispatch", poll_cycles=0.5, issue_cycles=0.5, call_us=0.5)
    level = npu.level
    for key in ("bytes_per_cycle", "banks"):
        value = 2 * getattr(level, key)
        near = replace(level, **{key: value})
        changed = replace(npu, sram=(near, *npu.sram[1:]))
        yield Change("bank", f"sram.{level.name}.{key}={value:g}", changed)
    if npu.cores.count > 1:
        yield from _fields(npu, "noc", "noc", gb_per_s=2, hop_cycles=0.5)
        yield from _fields(npu, "dependency", "cores", sync_cycles=0.5)


def roofline_changes(device: Roofline) -> Iterator[Change[Roofline]]:
    """Yields devices whose peaks, memories or starts are twice as fast."""
    for cause, key in (("compute", "product"), ("vector", "vector")):
        name = f"{key}_tera_ops_per_second"
        peaks = tuple(replace(p, **{name: 2 * getattr(p, name)}) for p in device.peaks)
        yield Change(cause, f"twice the {key} peaks", replace(device, peaks=peaks))
    memory = tuple(
        replace(m, giga_bytes_per_second=2 * m.giga_bytes_per_second) for m in device.memory
    )
    yield Change("dram", "memories of twice the rate", replace(device, memory=memory))
    classes = tuple(replace(c, start_us=c.start_us / 2) for c in device.classes)
    yield Change("dispatch", "half the start of commands", replace(device, classes=classes))


def _fields(npu: Npu, cause: str, table: str, **factors: float) -> Iterator[Change[Npu]]:
    record: Any = getattr(npu, table)
    for key, factor in factors.items():
        before = getattr(record, key)
        value = type(before)(before * factor)
        if value != before:
            changed = replace(npu, **{table: replace(record, **{key: value})})
            yield Change(cause, f"{table}.{key}={value:g}", changed)
