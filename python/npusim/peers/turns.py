"""Runtimes that take turns: a short burst of calls each, many rounds, and what came of it.

Turns spread the drift of a machine over all of them alike, and make pairs: each round has a median
of every runtime, whose ratio says more than that of two medians taken minutes apart.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npusim.errors import Error
from npusim.peers.process import Process

Report = Callable[[str], None]


@dataclass(frozen=True)
class Standing:
    """What one runtime took.

    Attributes:
        name: of the runtime.
        load_s: seconds until the first call could be made; compiling included.
        seconds: of every timed call, or of groups of short ones, by round.
        peak_bytes: the most memory its process had resident.
        difference: the largest difference of an output from npusim's, divided by the largest
            magnitude of that output; NaN where shapes differ or one of the two is not finite where
            the other is.
        error: why it did not run; then all else is empty.
    """

    name: str
    load_s: float = 0.0
    seconds: tuple[tuple[float, ...], ...] = ()
    peak_bytes: int = 0
    difference: float = 0.0
    error: str = ""

    @property
    def calls(self) -> list[float]:
        """Seconds of every call."""
        return [s for burst in self.seconds for s in burst]

    def ratios(self, other: Standing) -> list[float]:
        """Returns, for each round, its median over another's of the same round."""
        return [
            statistics.median(mine) / statistics.median(theirs)
            for mine, theirs in zip(self.seconds, other.seconds, strict=True)
        ]


def compare(
    jobs: Mapping[str, Mapping[str, Any]], rounds: int, report: Report = lambda text: None
) -> list[Standing]:
    """Runs runtimes in turns and returns what each took, in order.

    Args:
        jobs: what `npusim.peers.worker` is to do, by the runtime's name; the first is what the
            others' outputs are compared with.
        rounds: bursts of each that are timed; one before them is not.
        report: told what happens.

    Raises:
        Error: the first one does not run, or any ends in the middle. Others that cannot load are
            standings with an error.
    """
    first = next(iter(jobs))
    errors: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        running: dict[str, Process] = {}
        for name, job in jobs.items():
            report(f"loading {name}")
            command = [sys.executable, "-m", "npusim.peers.worker", json.dumps(job)]
            try:
                running[name] = stack.enter_context(Process(name, command))
            except Error as error:
                if name == first:
                    raise
                errors[name] = str(error)
        seconds = take_turns(list(running.values()), rounds, report)
        memory = {name: one.ask("memory")["peak_bytes"] for name, one in running.items()}
    found = []
    for name, job in jobs.items():
        if name in errors:
            found.append(Standing(name, error=errors[name]))
            continue
        difference = _difference(Path(job["outputs"]), Path(jobs[first]["outputs"]))
        load = running[name].facts["load_s"]
        found.append(Standing(name, load, seconds[name], memory[name], difference))
    return found


def take_turns(
    running: Sequence[Process], rounds: int, report: Report = lambda text: None
) -> dict[str, tuple[tuple[float, ...], ...]]:
    """Asks each for a burst, round after round; returns the seconds of calls by name and round.

    The round before those that are timed is left out: caches and clocks settle in it.
    """
    seconds: dict[str, list[tuple[float, ...]]] = {one.name: [] for one in running}
    for turn in range(rounds + 1):
        report(f"round {turn} of {rounds}" if turn else "warming up")
        for one in running:
            burst = one.ask("burst")["seconds"]
            if turn:
                seconds[one.name].append(tuple(burst))
    return {name: tuple(bursts) for name, bursts in seconds.items()}


def _difference(got: Path, wanted: Path) -> float:
    """Returns the largest relative difference of the arrays in two folders."""
    mine, theirs = (sorted(folder.glob("*.npy")) for folder in (got, wanted))
    if len(mine) != len(theirs):
        return float("nan")
    pairs = [(np.load(a), np.load(b)) for a, b in zip(mine, theirs, strict=True)]
    return max((relative_difference(a, b) for a, b in pairs), default=0.0)


def relative_difference(got: np.ndarray, wanted: np.ndarray) -> float:
    """Returns max |got - wanted| / max |wanted|, where both are finite; equal infinities are equal.

    NaN where shapes differ, or where only one is finite. 0 / 0 is 0.
    """
    if got.shape != wanted.shape:
        return float("nan")
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    equal = (a == b) | (np.isnan(a) & np.isnan(b))
    if not np.isfinite(a[~equal]).all() or not np.isfinite(b[~equal]).all():
        return float("nan")
    if equal.all():
        return 0.0
    scale = np.abs(b[np.isfinite(b)]).max()
    worst = np.abs(a[~equal] - b[~equal]).max()
    return float(worst / scale) if scale else float("inf")
