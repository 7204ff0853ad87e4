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
from npusim.simulate.roofline import (
    LAUNCHES,
    RooflineTime,
    Work,
    call_time,
    command_time,
    either,
    run_time,
    work_of,
)
from npusim.simulate.shares import PANELS
from npusim.targets.records import to_data
from npusim.targets.roofline import Roofline, RooflineClass

FEWEST = 6  # commands that a class is fitted to; with fewer it keeps its numbers
# What products are rounded up to, and rows of everything else.
_TILES = (
    *((1, 1), (1, 16), (1, 64), (4, 32), (8, 16), (8, 32), (16, 16), (16, 64), (64, 64)),
    *((64, 128), (128, 64), (128, 128), (16, 1), (64, 1), (128, 1)),
)
_ROW_TILES = (
    *((1, 1), (1, 16), (1, 64), (1, 256), (1, 1024), (1, 2048), (1, 4096)),
    *((4, 1), (16, 1), (64, 1), (128, 1)),
)
_TASKS = 0, *(1 << bits for bits in range(12, 24, 2))  # operations of a task, of cores that share
_CORE_SHARES = 0.5, 0.6, 0.7, 0.8  # of a memory's rate that one core reaches
# Least and greatest numbers that are fitted, in the order of `_NUMBERS`.
_NUMBERS = (
    *("start_us", "item_us", "step_ns", "cold_us", "far_us", "far_step_ns", "pack_ns"),
    *("shared_us", "gather_ns", "cool_us", "compute_share", "memory_share", "overlap"),
)
_FIXED = 10  # of them, which add up; the others say what is reached of the peaks
_LOW = (1e-4, 1e-7, 1e-4, 1e-4, 1e-4, 1e-4, 1e-7, 1e-4, 1e-4, 1e-4, 1e-4, 1e-3, 1e-3)
# Latencies are short, one of a step no longer than memory's; of overlap this is what is above 1.
_HIGH = (1e4, 1e4, 1e3, 20.0, 5.0, 100.0, 1e2, 1e3, 1e2, 5.0, 4.0, 4.0, 31.0)
_USUAL = 0.5, 0.7, 1.0  # shares of compute and memory, and overlap above 1, of most kernels
_PRIOR = 0.03  # an error, by which a number that is 2.7 times as large as usual counts
_SURE = 0.1  # likewise, of how long a launch rule's tiles take, beside 1: these were measured
_KNOWN = 0.05  # likewise, of a number that the class has: its kernels are the same elsewhere
_BEST = 3  # shapes of tiles that are fitted from several beginnings
_SCALE = 0.1  # of an error from which on a command is an outlier
_ABSURD = 100  # times faster than the peaks
_LONGEST = 1e5  # seconds of a command
_PULL = 0.05  # of a microsecond that is hidden in a class and not in all, as an error of a run


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
    """The time of a whole run.

    Attributes:
        name: of the model and its method.
        predicted, measured: seconds.
        commands: of its commands one by one, as measured.
    """

    name: str
    predicted: float
    measured: float
    commands: float

    @property
    def error(self) -> float:
        """Relative to what was measured; above 0: predicted to be slower than it is."""
        return self.predicted / self.measured - 1

    @property
    def beyond(self) -> float:
        """How far the prediction is off what an undisturbed run can have taken, relative to it.

        Other programs make runs longer, and the least time of each command less so: where a run
        took longer than its commands one by one, nothing between the two is an error.
        """
        nearest = min(max(self.predicted, min(self.commands, self.measured)), self.measured)
        return self.predicted / nearest - 1


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


@dataclass(frozen=True, slots=True)
class Sample:
    """A distinct command that was measured.

    Attributes:
        stem: of its kernel.
        seconds: the median of the profiles that have it.
        disturbed: of the profile that was least so: by how much its run took longer than its
            commands one by one. What runs beside a program does that; nothing that a program does.
        wakes: whether it is the first of a run that cores share. They may sleep until then or not,
            which is the run's time (`Roofline.wake_us`), and no class is held to it.
    """

    stem: str
    work: Work
    seconds: float
    disturbed: float = 0.0
    wakes: bool = False


def calibrate(
    profiles: Sequence[Profile],
    start: Roofline,
    checked: Sequence[Profile] = (),
    apart: Sequence[Profile] = (),
    known: bool = False,
) -> Calibration:
    """Fits a roofline.

    Args:
        profiles: of one device; each command counts once, however often it appears.
        start: peaks and memories, and the classes whose numbers are fitted.
        checked: profiles whose whole runs are predicted only.
        apart: profiles of layers that have nothing to do with each other, which classes are fitted
            to as well. Their runs say nothing of what runs of models hide.
        known: whether the classes have numbers of the same kernels on another machine. Then they
            are drawn to these, and a class keeps its tiles: a few commands leave most of it open.

    Raises:
        Error: SciPy is not installed, the profiles are of several devices or too small.
    """
    every = (*profiles, *apart)
    devices = tuple(dict.fromkeys(p.device for p in (*every, *checked)))
    if len(devices) > 1:
        raise Error(f"The profiles are of several devices: {'; '.join(devices)}.")
    for profile in (*every, *checked):
        _check_times(profile, start)
    samples = _samples(every, start)
    if len(samples) < FEWEST:
        raise Error(
            f"There are {len(samples)} distinct commands in the profiles; {FEWEST} are the fewest.",
            hint="Profile more shapes.",
        )
    classes, errors = [], []
    for kind in start.classes:
        learnt, kept = _halves(samples, start, kind)
        fitted = _fit(kind, start, learnt, known) if len(learnt) >= FEWEST else kind
        classes.append(fitted)
        if kept:
            fits = len(learnt) if fitted is not kind else 0
            errors.append(_error(fitted, start, kept, fits))
    found = replace(start, classes=tuple(classes))
    found = _with_hidden(profiles or every, found)
    runs = (_run_error(p, found) for p in (*every, *checked))
    return Calibration(found, tuple(errors), tuple(runs), devices)


def _check_times(profile: Profile, device: Roofline) -> None:
    """Refuses times in which no device of such peaks can have run; Error says which."""
    memory = max(level.giga_bytes_per_second for level in device.memory)
    for command in profile.commands:
        work, seconds = _work(command), command.seconds
        peak = device.peak(work.dtype)
        most = max(peak.product_tera_ops_per_second, peak.vector_tera_ops_per_second)
        least = max(work.operations / (1e12 * most), work.nbytes / (1e9 * memory)) / _ABSURD
        if 0 < seconds < least or seconds > _LONGEST:
            raise Error(
                f"Command {command.index} of '{profile.model}' ({command.kernel}) took "
                f"{seconds:g} s by its profile; with the target's peaks it takes "
                f"{_ABSURD * least:.3g} s.",
                hint="Times are in seconds, and the target has the peaks of the device measured.",
            )


def held_out(
    profiles: Sequence[Profile],
    device: Roofline,
    checked: Sequence[Profile],
    unseen: bool = False,
) -> tuple[tuple[ClassError, ...], tuple[RunError, ...]]:
    """Returns the errors of a roofline as it is, by what `calibrate` would keep out.

    Args:
        profiles: of which every second distinct command is looked at.
        device: what predicts.
        checked: profiles whose whole runs are predicted.
        unseen: the profiles were no part of a fit: all of their commands are looked at.
    """
    samples, errors = _samples(profiles, device), []
    for kind in device.classes:
        learnt, kept = _halves(samples, device, kind)
        if unseen:
            learnt, kept = [], learnt + kept
        if kept:
            errors.append(_error(kind, device, kept, len(learnt)))
    return tuple(errors), tuple(_run_error(p, device) for p in checked)


def _samples(profiles: Iterable[Profile], device: Roofline) -> list[list[Sample]]:
    """Returns distinct commands with the median of their times, in the order of a hash.

    A command that finds its operands in other caches is another sample of the same command, and so
    is one that is the first of a run which cores share.
    """
    times: dict[tuple[str, str, int], dict[tuple[Work, bool], list[tuple[float, float]]]] = {}
    for profile in profiles:
        disturbed, wakes = _disturbed(profile), device.wake_us > 0
        for command in (c for c in profile.commands if c.seconds > 0):
            # Bytes, too: what a step reads of a cache is not among its parameters.
            key = command.kernel, repr(sorted(command.params.items())), command.bytes_read
            work = _work(command)
            first = wakes and command_time(work, command.kernel, device).shared
            wakes = wakes and not first
            found = times.setdefault(key, {}).setdefault((work, first), [])
            found.append((command.seconds, disturbed))
    order = sorted(times, key=lambda key: hashlib.sha256(repr(key).encode()).digest())
    return [[_sample(key[0], *w, found) for w, found in times[key].items()] for key in order]


def _sample(stem: str, work: Work, wakes: bool, found: Sequence[tuple[float, float]]) -> Sample:
    seconds = statistics.median(seconds for seconds, _ in found)
    return Sample(stem, work, seconds, min(disturbed for _, disturbed in found), wakes)


def _disturbed(profile: Profile) -> float:
    """Returns by how much a run took longer than its commands one by one, relative to these."""
    commands = sum(command.seconds for command in profile.commands)
    return max(0.0, profile.run_seconds / commands - 1) if commands > 0 else 0.0


def _halves(
    samples: Iterable[list[Sample]], device: Roofline, kind: RooflineClass
) -> tuple[list[Sample], list[Sample]]:
    """Returns what a class is fitted to, and every second of its commands, which is kept out."""
    mine = [s for s in samples if s[0].work.kind(s[0].stem, device) is kind]
    parts = (itertools.chain.from_iterable(mine[at::2]) for at in (0, 1))
    learnt, kept = ([sample for sample in part if not sample.wakes] for part in parts)
    return learnt, kept


def _work(command: CommandProfile) -> Work:
    moved = command.bytes_read + command.bytes_written
    return work_of(command.kernel, command.params, command.operations, moved, command.reuse)


# ---- one class ----


def _fit(
    kind: RooflineClass, device: Roofline, samples: Sequence[Sample], known: bool = False
) -> RooflineClass:
    """Returns a class with the numbers that fit best.

    Args:
        known: whether it has numbers of the same kernels, to which they are drawn.
    """
    shapes = _shares(kind, device) if known else _shapes(kind, device)
    rough = [
        (_fit_numbers(shape, device, samples, known, rough=True)[0], shape) for shape in shapes
    ]
    best = sorted(rough, key=lambda row: row[0])[:_BEST]
    found = (_fit_numbers(shape, device, samples, known) for _, shape in best)
    return min(found, key=lambda row: row[0])[1]


def _shares(kind: RooflineClass, device: Roofline) -> list[RooflineClass]:
    """Returns a class whose tiles are known, by what one core may reach of a memory's rate."""
    if not kind.grid or kind.grid == LAUNCHES or device.cores == 1:
        return [kind]
    return [replace(kind, core_share=share) for share in _CORE_SHARES]


def _shapes(kind: RooflineClass, device: Roofline) -> list[RooflineClass]:
    """Returns a class of each tile, and of each way in which cores may share its commands."""
    return [
        replace(kind, tile_rows=rows, tile_columns=columns, units=units, **shared)  # type: ignore
        for units in sorted({1, *(one.units for one in device.classes)})
        for shared in _sharing(kind, device)
        for rows, columns in (_TILES if kind.products else _ROW_TILES)
        if rows <= (kind.most_rows or rows)
    ]


def _sharing(kind: RooflineClass, device: Roofline) -> list[dict[str, float]]:
    """Returns what may be said of how cores share its commands."""
    if device.cores == 1:
        return [{}]
    if kind.grid:  # the kernels' own rule says how many tasks there are
        return [{"core_share": share} for share in _CORE_SHARES]
    if kind.task_rows:
        return [{}]
    return [{"task_operations": least} for least in _TASKS]


def _fit_numbers(
    shaped: RooflineClass,
    device: Roofline,
    samples: Sequence[Sample],
    known: bool,
    rough: bool = False,
) -> tuple[float, RooflineClass]:
    """Returns the cost of the best numbers for a class of given tiles, and that class.

    Args:
        known: whether numbers are drawn to those that the class has.
        rough: from one beginning, in few steps.
    """
    least_squares = _scipy("least_squares")
    one = {**dict.fromkeys(_NUMBERS[:_FIXED], 0.0), **dict.fromkeys(_NUMBERS[_FIXED:], 1.0)}
    plain = replace(shaped, **one)  # type: ignore[arg-type]
    fixed, computes, memories = _columns(plain, device, samples)
    measured = np.array([sample.seconds for sample in samples])
    finish = np.array([_finish(sample, plain, device) for sample in samples])
    # What ran beside a profile is in its times by some such part: they say as much less.
    trust = 1 / (1 + np.array([sample.disturbed for sample in samples]) / _SCALE)

    low, high = np.log(_LOW), np.log(_HIGH)
    usual, prior = _usual(shaped, low, known)

    def off(x: np.ndarray) -> np.ndarray:
        numbers = np.exp(x)
        compute, memory, overlap = numbers[_FIXED:]
        busy = either(computes / compute, memories / memory, 1 + overlap)
        unusual = prior * (x - usual)  # decides what the commands leave open
        errors = np.log((fixed @ numbers[:_FIXED] + busy + finish) / measured)
        return np.concatenate([trust * errors, unusual])

    fastest = 1e6 * measured.min()
    begins = itertools.product((1e-5, 1e-2), (0.05, 0.5)) if not rough else [(1e-3, 0.3)]
    firsts = []
    for item, compute in begins:
        some = fastest / 20
        waits = some, some, 0.01, 1e-3, some, 0.1, some
        firsts.append(np.log([fastest / 2, item, 0.01, *waits, compute, 0.7, 1.0]))
    if known:
        firsts = [np.where(prior > 0, usual, first) for first in firsts[:1]]
    fits = [
        least_squares(
            off,
            np.clip(first, low + 1e-6, high - 1e-6),
            bounds=(low, high),
            loss="soft_l1",
            f_scale=_SCALE,
            max_nfev=20 if rough else 100,
        )
        for first in firsts
    ]
    best = min(fits, key=lambda fit: fit.cost)
    found = dict(zip(_NUMBERS, (float(x) for x in np.exp(best.x)), strict=True))
    found["overlap"] += 1
    for name, column in zip(_NUMBERS, fixed.T, strict=False):
        if not column.any():
            found[name] = 0.0
    return float(best.cost), replace(shaped, **found)  # type: ignore[arg-type]


def _usual(kind: RooflineClass, low: np.ndarray, known: bool) -> tuple[np.ndarray, np.ndarray]:
    """Returns what numbers are drawn to, as logarithms, and how much of an error it is to differ.

    Args:
        known: whether the class has numbers that were fitted to the same kernels.
    """
    usual, prior = low.copy(), np.zeros(len(low))
    usual[_FIXED:], prior[_FIXED:] = np.log(_USUAL), _PRIOR
    if kind.grid == LAUNCHES:
        usual[_FIXED], prior[_FIXED] = 0.0, _SURE
    if known:
        has = np.array([getattr(kind, name) for name in _NUMBERS])
        has[-1] -= 1
        told = np.log(np.maximum(has, np.exp(low)))
        usual, prior = told, np.where(told > low, _KNOWN, 0.0)  # what it lacks is open
    return usual, prior


def _finish(sample: Sample, kind: RooflineClass, device: Roofline) -> float:
    """Returns the seconds of a command's activations, which are those of another class."""
    bare = replace(sample.work, finish=0)
    whole, without = (
        command_time(work, sample.stem, _alone(kind, device)) for work in (sample.work, bare)
    )
    return whole.total - without.total


def _columns(
    plain: RooflineClass, device: Roofline, samples: Sequence[Sample]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns of each command what the fixed numbers multiply, and its seconds at the peaks."""
    one = _alone(replace(plain, gather_ns=1.0), device)
    times = [command_time(s.work, s.stem, one) for s in samples]
    works = [sample.work.on(device) for sample in samples]
    uneven = np.array([w.uneven(plain, device.cores) for w in works])
    items = np.array([w.items(plain) for w in works]) * (uneven if plain.grid else 1)
    steps = 1e-3 * np.array([w.steps(plain) for w in works])
    if max(w.depth for w in works) == 1:
        steps = 0 * steps  # one step of an item is its start
    far = np.array([w.is_far(device) for w in works], float)
    cold = np.array([w.code > device.caches for w in works], float)
    packed = 1e-3 * np.array([w.packed(plain) for w in works]) * uneven
    if plain.products:  # which fetch what they multiply ahead
        afar = 0 * steps
    else:
        afar, packed = far * steps, packed * np.array([w.pieces is not None for w in works])
    if plain.grid == PANELS:
        packed = 0 * packed  # weights, which were packed when they were loaded
    shared = np.array(uneven < device.cores, float)
    if shared.all():  # or else it is no other time than the start
        shared = 0 * shared
    ones = np.ones(len(samples))
    images = np.array([sum(1e6 * p.seconds for p in t.parts if p.due == "dram") for t in times])
    cool = np.array([w.is_cool(device) for w in works], float)
    every = ones, items, steps, cold, far, afar, packed, shared, images, cool
    fixed = 1e-6 * np.stack(every, 1)
    compute, memory = (np.array([getattr(t, of) for t in times]) for of in ("compute", "memory"))
    return fixed, compute, memory


def _alone(kind: RooflineClass, device: Roofline) -> Roofline:
    """Returns a device whose commands are all of one class."""
    anything = replace(kind, stems=(), most_rows=0, form="", least_rows=0, least_operations=0)
    return replace(device, classes=(anything,))


def _error(
    kind: RooflineClass, device: Roofline, kept: Sequence[Sample], fitted: int
) -> ClassError:
    one = _alone(kind, device)
    off = sorted(abs(command_time(s.work, s.stem, one).total / s.seconds - 1) for s in kept)
    worst = off[min(len(off) - 1, round(0.95 * (len(off) - 1)))]
    mean, median = statistics.fmean(off), statistics.median(off)
    return ClassError(kind.name, fitted, len(kept), mean, median, worst)


def _scipy(function: str) -> Callable[..., Any]:
    try:
        import scipy.optimize
    except ImportError:
        raise Error(
            "Calibrating needs SciPy.", hint="Install it: pip install 'npusim[simulate]'."
        ) from None
    return getattr(scipy.optimize, function)  # type: ignore[no-any-return]


# ---- whole runs ----


def _times(profile: Profile, device: Roofline) -> list[RooflineTime]:
    return [command_time(_work(c), c.kernel, device) for c in profile.commands]


def _with_hidden(profiles: Sequence[Profile], device: Roofline) -> Roofline:
    """Returns a device whose classes hide what runs are shorter than their commands one by one.

    Least squares of the relative errors of runs, by `hidden_us` of each class, none of which is
    more than the class's start; classes that runs say little of are drawn to what all have.
    """
    shorter = sum(
        sum(time.total for time in times) - p.run_seconds + call_time(times, device)
        for p in profiles
        for times in (_times(p, device),)
    )
    if shorter <= 0:  # nothing passes beside anything: runs are no shorter than their commands
        return replace(device, classes=tuple(replace(k, hidden_us=0.0) for k in device.classes))
    # As far as a class hides anything, it hides what comes from afar.
    least = replace(device, classes=tuple(replace(k, hidden_us=1e-9) for k in device.classes))
    names = [kind.name for kind in device.classes]
    counts, saved = np.zeros((len(profiles), len(names))), np.zeros(len(profiles))
    for row, profile in enumerate(profiles):
        for command in profile.commands:
            kind = _work(command).kind(command.kernel, device)
            counts[row, names.index(kind.name)] += 1
        saved[row] = 1e6 * (run_time(_times(profile, least), least) - profile.run_seconds)
    runs = np.array([1e6 * profile.run_seconds for profile in profiles])
    most = np.array([max(kind.start_us, 1e-6) for kind in device.classes])
    usual = max(0.0, float(saved.sum() / counts.sum()))
    pull = _PULL * np.eye(len(names))
    found = _scipy("lsq_linear")(
        np.vstack([counts / runs[:, None], pull]),
        np.concatenate([saved / runs, pull @ np.minimum(usual, most)]),
        bounds=(0.0, most),
    ).x
    hidden = zip(device.classes, found, strict=True)
    return replace(device, classes=tuple(replace(k, hidden_us=float(h)) for k, h in hidden))


def _run_error(profile: Profile, device: Roofline) -> RunError:
    name = " ".join(filter(None, (profile.model, profile.method)))
    commands = sum(command.seconds for command in profile.commands)
    predicted = run_time(_times(profile, device), device)
    return RunError(name, predicted, profile.run_seconds, commands)


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
