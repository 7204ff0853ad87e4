"""Fitting the roofline of a device to measured times of its commands, half of them kept out.

What is fitted to a class of commands: fixed times, shares of the peaks, how far compute and memory
hide each other, and the tile that products are rounded up to. The least squares of the logarithms
of predicted over measured times, with outliers weighing less (SciPy's `least_squares`,
`loss="soft_l1"`), over every second distinct command in the order of a hash; the error of the
others is what a prediction of an unseen shape may be off by.
"""

from __future__ import annotations

import hashlib
import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npusim.errors import Error
from npusim.profile.profile import CommandProfile, Profile
from npusim.simulate.roofline import RooflineTime, Work, command_time, run_time, work_of
from npusim.targets.records import to_data
from npusim.targets.roofline import Roofline, RooflineClass

FEWEST = 8  # commands that a class is fitted to; with fewer it keeps its numbers
# What products are rounded up to, and rows of everything else.
_TILES = (
    *((1, 1), (1, 16), (1, 64), (4, 32), (8, 16), (8, 32), (16, 16), (16, 64), (64, 64)),
    *((64, 128), (128, 64), (128, 128)),
)
_ROW_TILES = ((1, 1), (1, 16), (1, 64), (1, 256))
# Least and greatest start_us, item_us, compute_share, memory_share, and overlap above 1.
_LOW = (1e-4, 1e-7, 1e-4, 1e-3, 1e-3)
_HIGH = (1e4, 1e4, 2.0, 4.0, 31.0)
_SCALE = 0.1  # of an error from which on a command is an outlier


@dataclass(frozen=True, slots=True)
class ClassError:
    """How far predictions of a class are off, relative to the measured times.

    Attributes:
        name: of the class.
        fitted: commands that it was fitted to; 0: it keeps the numbers it had.
        held_out: commands that were kept out, which the errors are of.
        mean, median, worst: mean absolute error, its median and 95th percentile; 0.1 is 10 %.
    """

    name: str
    fitted: int
    held_out: int
    mean: float
    median: float
    worst: float


@dataclass(frozen=True, slots=True)
class RunError:
    """The time of a whole run: predicted, and measured."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative to what was measured; above 0: predicted to be slower than it is."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True)
class Calibration:
    """A fitted roofline with its errors.

    Attributes:
        roofline: fitted.
        classes: errors over commands that were kept out.
        runs: of the profiles that were fitted to and then of those that were only checked.
        devices: what was measured.
    """

    roofline: Roofline
    classes: tuple[ClassError, ...]
    runs: tuple[RunError, ...]
    devices: tuple[str, ...]


Sample = tuple[str, Work, float]  # stem, work, seconds


def calibrate(
    profiles: Sequence[Profile], start: Roofline, checked: Sequence[Profile] = ()
) -> Calibration:
    """Fits a roofline.

    Args:
        profiles: of one device; each command counts once, however often it appears.
        start: peaks and memories, and the classes whose numbers are fitted.
        checked: profiles whose whole runs are predicted only.

    Raises:
        Error: SciPy is not installed, the profiles are of several devices or too small.
    """
    devices = tuple(dict.fromkeys(p.device for p in (*profiles, *checked)))
    if len(devices) > 1:
        raise Error(f"The profiles are of several devices: {'; '.join(devices)}.")
    samples = _samples(profiles)
    if len(samples) < FEWEST:
        raise Error(
            f"There are {len(samples)} distinct commands in the profiles; {FEWEST} are the fewest.",
            hint="Profile more shapes.",
        )
    classes, errors = [], []
    for kind in start.classes:
        mine = [s for s in samples if start.class_of(s[0], s[1].rows) is kind]
        learnt, kept = mine[::2], mine[1::2]
        fitted = _fit(kind, start, learnt) if len(learnt) >= FEWEST else kind
        classes.append(fitted)
        if kept:
            fits = len(learnt) if fitted is not kind else 0
            errors.append(_error(fitted, start, kept, fits))
    found = replace(start, classes=tuple(classes))
    found = replace(found, overlap_us=_overlap_us(profiles, found))
    runs = (_run_error(p, found) for p in (*profiles, *checked))
    return Calibration(found, tuple(errors), tuple(runs), devices)


def held_out(
    profiles: Sequence[Profile], device: Roofline, checked: Sequence[Profile]
) -> tuple[tuple[ClassError, ...], tuple[RunError, ...]]:
    """Returns the errors of a roofline as it is, by what `calibrate` would keep out.

    Args:
        profiles: of which every second distinct command is looked at.
        device: what predicts.
        checked: profiles whose whole runs are predicted.
    """
    samples, errors = _samples(profiles), []
    for kind in device.classes:
        mine = [s for s in samples if device.class_of(s[0], s[1].rows) is kind]
        if kept := mine[1::2]:
            errors.append(_error(kind, device, kept, len(mine[::2])))
    return tuple(errors), tuple(_run_error(p, device) for p in checked)


def _samples(profiles: Iterable[Profile]) -> list[Sample]:
    """Returns distinct commands with the median of their times, in the order of a hash."""
    times: dict[tuple[str, str, int], list[float]] = {}
    works: dict[tuple[str, str, int], Work] = {}
    for command in (c for p in profiles for c in p.commands if c.seconds > 0):
        # Bytes, too: what a step reads of a cache is not among its parameters.
        key = command.kernel, repr(sorted(command.params.items())), command.bytes_read
        times.setdefault(key, []).append(command.seconds)
        works[key] = _work(command)
    order = sorted(times, key=lambda key: hashlib.sha256(repr(key).encode()).digest())
    return [(key[0], works[key], statistics.median(times[key])) for key in order]


def _work(command: CommandProfile) -> Work:
    moved = command.bytes_read + command.bytes_written
    return work_of(command.kernel, command.params, command.operations, moved)


# ---- one class ----


def _fit(kind: RooflineClass, device: Roofline, samples: Sequence[Sample]) -> RooflineClass:
    """Returns a class with the numbers that fit best."""
    tiles = _TILES if kind.products else _ROW_TILES
    shapes = (
        replace(kind, tile_rows=rows, tile_columns=columns, units=units)
        for units in sorted({1, kind.units})
        for rows, columns in tiles
        if rows <= (kind.most_rows or rows)
    )
    return min((_fit_numbers(s, device, samples) for s in shapes), key=lambda row: row[0])[1]


def _fit_numbers(
    shaped: RooflineClass, device: Roofline, samples: Sequence[Sample]
) -> tuple[float, RooflineClass]:
    """Returns the cost of the best numbers for a class of given tiles, and that class."""
    least_squares = _scipy()

    def made(x: np.ndarray) -> RooflineClass:
        start, item, compute, memory, overlap = np.exp(x)
        return replace(
            shaped,
            start_us=float(start),
            item_us=float(item),
            compute_share=float(compute),
            memory_share=float(memory),
            overlap=1 + float(overlap),
        )

    def off(x: np.ndarray) -> np.ndarray:
        one = _alone(made(x), device)
        return np.log([command_time(w, s, one).total / t for s, w, t in samples])

    low, high = np.log(_LOW), np.log(_HIGH)
    fastest = 1e6 * min(t for _, _, t in samples)
    fits = []
    for item, compute in itertools.product((1e-5, 1e-2), (0.05, 0.5)):
        first = np.log([fastest / 2, item, compute, 0.7, 1.0])
        fits.append(
            least_squares(
                off,
                np.clip(first, low + 1e-6, high - 1e-6),
                bounds=(low, high),
                loss="soft_l1",
                f_scale=_SCALE,
                max_nfev=100,
            )
        )
    best = min(fits, key=lambda fit: fit.cost)
    return float(best.cost), made(best.x)


def _alone(kind: RooflineClass, device: Roofline) -> Roofline:
    """Returns a device whose commands are all of one class."""
    return replace(device, classes=(replace(kind, stems=(), most_rows=0),))


def _error(
    kind: RooflineClass, device: Roofline, kept: Sequence[Sample], fitted: int
) -> ClassError:
    one = _alone(kind, device)
    off = sorted(abs(command_time(w, s, one).total / t - 1) for s, w, t in kept)
    worst = off[min(len(off) - 1, round(0.95 * (len(off) - 1)))]
    mean, median = statistics.fmean(off), statistics.median(off)
    return ClassError(kind.name, fitted, len(kept), mean, median, worst)


def _scipy() -> Callable[..., Any]:
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise Error(
            "Calibrating needs SciPy.", hint="Install it: pip install 'npusim[simulate]'."
        ) from None
    return least_squares  # type: ignore[no-any-return]


# ---- whole runs ----


def _times(profile: Profile, device: Roofline) -> list[RooflineTime]:
    return [command_time(_work(c), c.kernel, device) for c in profile.commands]


def _overlap_us(profiles: Sequence[Profile], device: Roofline) -> float:
    """Returns the time a command saves by those beside it: what runs are shorter than their sum."""
    saved = sum(p.commands_seconds - p.run_seconds for p in profiles)
    count = sum(len(p.commands) for p in profiles)
    return max(0.0, 1e6 * saved / count - device.call_us / max(1, count))


def _run_error(profile: Profile, device: Roofline) -> RunError:
    name = " ".join(filter(None, (profile.model, profile.method)))
    return RunError(name, run_time(_times(profile, device), device), profile.run_seconds)


# ---- the target ----


def target_file(found: Calibration, base: str, name: str) -> str:
    """Returns the text of a target's file: another target with a fitted roofline.

    Args:
        base: the installed target that it is like.
        name: of the new one.

    Raises:
        Error: tomli-w is not installed.
    """
    try:
        import tomli_w
    except ImportError:
        raise Error(
            "Writing targets needs tomli-w.", hint="Install it: pip install 'npusim[simulate]'."
        ) from None
    held_out = (f"{e.name} {100 * e.mean:.1f} % of {e.held_out}" for e in found.classes if e.fitted)
    said = {"source": "; ".join(found.devices), "held_out": ", ".join(held_out)}
    roofline = to_data(found.roofline)
    return tomli_w.dumps({"like": base, "name": name, "calibration": said, "roofline": roofline})
