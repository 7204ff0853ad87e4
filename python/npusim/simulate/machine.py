"""A CPU that nobody measured a target of: what it tells of itself, and the roofline that follows.

A processor tells its cores, its instruction set and its caches, and the loops of the runtime
(`cpp/cpu/rates.h`) the rates that it reaches. What classes of commands reach of these is their
kernels', which are the same on every processor of a family: shares and fixed times stay those of
the target that it is derived from, until profiles say more (`calibrate.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from npusim.errors import Error
from npusim.profile.roofline import READ
from npusim.simulate.shares import BLOCKS, sizes_for
from npusim.targets.roofline import MemoryLevel, Peak, Roofline, RooflineClass

CPUS = Path("/sys/devices/system/cpu")  # where Linux tells their caches
_FLOAT32 = "float32"
_LANES = {"avx512": 16, "avx2": 8}  # float32 of a vector, by what an instruction set begins with
_OTHERS = 4
_UNITS = {"K": 1, "M": 1 << 10, "G": 1 << 20}


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine tells of its processor.

    Attributes:
        description: as profiles of its device have it: the name, the instruction set, threads.
        threads: that work.
        lanes: float32 of a vector.
        rates: what all threads reach at best: bytes a second under "read", operations a second
            under each dtype, as `Profile.limits` has them.
        caches: KiB of the second and of later levels, together of all threads; empty: not told.
    """

    description: str
    threads: int
    lanes: int
    rates: Mapping[str, float]
    caches: tuple[int, ...]


def machine_of(
    description: str, rates: Mapping[str, float], caches: Iterable[tuple[int, int, int]]
) -> Machine:
    """Returns a machine by what is told of it.

    Args:
        description: of its device, such as "AMD EPYC, avx2, 2 threads".
        rates: as `Machine` has them.
        caches: level, KiB, and how many processors share it, each.

    Raises:
        Error: the description says no threads, or rates lack "read" or "float32".
    """
    told = re.fullmatch(r".*, (?P<isa>\w+), (?P<threads>\d+) threads?", description)
    if told is None or int(told["threads"]) < 1:
        raise Error(
            f"'{description}' tells no instruction set and threads.",
            hint="Profile with this version of npusim, on a CPU.",
        )
    missing = [name for name in (READ, _FLOAT32) if not rates.get(name, 0.0) > 0.0]
    if missing:
        raise Error(f"The machine's rates lack {' and '.join(missing)}.")
    threads = int(told["threads"])
    lanes = next((n for name, n in _LANES.items() if told["isa"].startswith(name)), _OTHERS)
    return Machine(description, threads, lanes, dict(rates), _together(caches, threads))


def described(base: Roofline, machine: Machine) -> Roofline:
    """Returns the roofline of another machine that has the same kernels.

    Peaks are the rates of the machine, in proportion where it tells none of a dtype. Caches have
    the machine's sizes and, by core, the rates of those of `base`; where it tells no sizes, those
    stay too.

    Args:
        base: of a CPU that was measured.
    """
    rates, first = machine.rates, base.peak(_FLOAT32)
    faster = rates[_FLOAT32] / (1e12 * first.product_tera_ops_per_second)
    peaks = tuple(
        Peak(
            peak.dtype,
            rates[peak.dtype] / 1e12
            if rates.get(peak.dtype)
            else faster * peak.product_tera_ops_per_second,
            faster * peak.vector_tera_ops_per_second,
        )
        for peak in base.peaks
    )
    more, far = machine.threads / base.cores, rates[READ] / 1e9
    near = [
        MemoryLevel(one.name, one.kib, max(far, more * one.giga_bytes_per_second))
        for one in _sized(base.memory[:-1], machine.caches)
    ]
    memory = (*near, replace(base.memory[-1], giga_bytes_per_second=far))
    classes = tuple(_cut(kind, base.lanes, machine.lanes) for kind in base.classes)
    return replace(
        base,
        peaks=peaks,
        memory=memory,
        classes=classes,
        cores=machine.threads,
        threads=0,
        lanes=machine.lanes,
    )


def caches_of(cpus: Path) -> list[tuple[int, int, int]]:
    """Returns level, KiB and sharing processors of each cache that Linux tells, each once.

    Args:
        cpus: the folder with a folder for each processor.
    """
    found = dict[tuple[int, str], tuple[int, int, int]]()
    for index in sorted(cpus.glob("cpu[0-9]*/cache/index[0-9]*")):
        try:
            level, size, kind, shared = (
                (index / name).read_text().strip()
                for name in ("level", "size", "type", "shared_cpu_list")
            )
            one = int(level), int(size[:-1]) * _UNITS[size[-1]], _listed(shared)
        except (OSError, ValueError, KeyError, IndexError):
            continue  # a virtual machine may tell a part of it
        if kind != "Instruction":
            found[one[0], shared] = one
    return list(found.values())


def _listed(processors: str) -> int:
    """Returns how many there are in a list such as "0-3,8"."""
    ends = [part.partition("-") for part in processors.split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)


def _together(caches: Iterable[tuple[int, int, int]], threads: int) -> tuple[int, ...]:
    """Returns KiB by level, from the second on, of as many caches as so many threads have."""
    found = dict[int, int]()
    for level, kib, sharing in caches:
        if level >= 2:
            here = max(1, round(threads / sharing)) * kib
            found[level] = max(found.get(level, 0), here)
    return tuple(accumulate((found[level] for level in sorted(found)), max))


def _sized(levels: Iterable[MemoryLevel], caches: tuple[int, ...]) -> list[MemoryLevel]:
    """Returns a target's caches with other sizes: the first is the second cache, and the others
    are parts of the last one."""
    own = list(levels)
    if not own or not caches:
        return own
    first, last = replace(own[0], kib=caches[0]), own[-1].kib
    later = [replace(one, kib=one.kib * caches[-1] // last) for one in own[1:]]
    return [first, *(one for one in later if one.kib > caches[0])]


def _cut(kind: RooflineClass, lanes: int, other: int) -> RooflineClass:
    """Returns a class whose kernels multiply as many columns at once as other vectors allow."""
    if not kind.grid or not kind.item_columns or lanes == other:
        return kind
    old, new = (
        sizes_for(n).block_panel if kind.grid == BLOCKS else sizes_for(n).columns
        for n in (lanes, other)
    )
    if kind.item_columns != old:  # of single vectors
        old, new = lanes, other
    columns = max(1, kind.item_columns * new // old)
    return replace(kind, item_columns=columns, item_us=kind.item_us * columns / kind.item_columns)
