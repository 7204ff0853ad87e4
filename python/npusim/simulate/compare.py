"""Predicted and measured times side by side: which commands a model has right, and by how much not.

Commands meet by their node, those of one node in their order. What is measured is a profile
(`npusim profile --json`) or another report, of another mode or machine, say.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from npusim.errors import Error
from npusim.files import printable_path, read_whole
from npusim.profile.profile import Profile
from npusim.profile.saved import read_profile
from npusim.simulate.saved import check_report, read_report
from npusim.targets import TargetConfig

_CLASSES = "cpu"  # the target whose roofline says which kernels are of one class


@dataclass(frozen=True, slots=True)
class Pair:
    """A command in both.

    Attributes:
        index: in what was predicted.
        node, kernel: as predicted.
        kind: class of its kernel, such as "conv".
        predicted, measured: seconds.
    """

    index: int
    node: str
    kernel: str
    kind: str
    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        """What is predicted too much, as share of what was measured; None of no time."""
        return self.predicted / self.measured - 1 if self.measured > 0 else None


@dataclass(frozen=True, slots=True)
class Group:
    """Commands of a class, or all of them.

    Attributes:
        name: of the class.
        count: of commands.
        predicted, measured: seconds of all together.
        mean, median, worst: of the commands' errors without their signs, as shares; worst is the
            95th percentile. None where nothing was measured to take time.
    """

    name: str
    count: int
    predicted: float
    measured: float
    mean: float | None
    median: float | None
    worst: float | None

    @property
    def error(self) -> float | None:
        """Of the sum, with its sign, as share of what was measured."""
        return self.predicted / self.measured - 1 if self.measured > 0 else None


@dataclass(frozen=True)
class Comparison:
    """Predicted beside measured.

    Attributes:
        predicted_name, measured_name: method and machine of each.
        predicted, measured: seconds of whole runs.
        pairs: commands in both, in order.
        groups: by class, those that were measured to take longest first.
        all: of all pairs.
        only_predicted, only_measured: node and seconds of commands that the other has not.
    """

    predicted_name: str
    measured_name: str
    predicted: float
    measured: float
    pairs: tuple[Pair, ...]
    groups: tuple[Group, ...]
    all: Group
    only_predicted: tuple[tuple[str, float], ...]
    only_measured: tuple[tuple[str, float], ...]

    @property
    def error(self) -> float | None:
        """Of whole runs, with its sign, as share of what was measured."""
        return self.predicted / self.measured - 1 if self.measured > 0 else None


@dataclass(frozen=True, slots=True)
class Timings:
    """Times of commands, of a report or of a profile: (index, node, kernel, seconds) of each."""

    name: str
    seconds: float
    commands: tuple[tuple[int, str, str, float], ...]


def compare(
    predicted: Mapping[str, Any] | str | os.PathLike[str],
    measured: Profile | Mapping[str, Any] | str | os.PathLike[str],
) -> Comparison:
    """Returns how far predicted times are off.

    Args:
        predicted: a report, or the path of one.
        measured: a profile or a report, or the path of one.

    Raises:
        Error: a file cannot be read or is neither, or no node is in both.
    """
    if not isinstance(predicted, Mapping):
        predicted = read_report(predicted)
    ours, theirs = _of_report(check_report(dict(predicted))), _timings(measured)
    waiting: dict[str, list[tuple[int, str, str, float]]] = {}
    for row in theirs.commands:
        waiting.setdefault(row[1], []).append(row)
    pairs, alone = [], []
    for index, node, kernel, seconds in ours.commands:
        if waiting.get(node):
            other = waiting[node].pop(0)
            pairs.append(Pair(index, node, kernel, _class_of(kernel), seconds, other[3]))
        else:
            alone.append((node, seconds))
    if not pairs:
        raise Error(
            f"No command of {ours.name} has a node of {theirs.name}.",
            hint="Compare the simulation and the profile of one graph and method.",
        )
    kinds: dict[str, list[Pair]] = {}
    for pair in pairs:
        kinds.setdefault(pair.kind, []).append(pair)
    groups = sorted((_group(k, v) for k, v in kinds.items()), key=lambda one: -one.measured)
    left = sorted((row for rows in waiting.values() for row in rows), key=lambda row: row[0])
    return Comparison(
        predicted_name=ours.name,
        measured_name=theirs.name,
        predicted=ours.seconds,
        measured=theirs.seconds,
        pairs=tuple(pairs),
        groups=tuple(groups),
        all=_group("all", pairs),
        only_predicted=tuple(alone),
        only_measured=tuple((row[1], row[3]) for row in left),
    )


def _timings(measured: Profile | Mapping[str, Any] | str | os.PathLike[str]) -> Timings:
    if isinstance(measured, Profile):
        return _of_profile(measured)
    if isinstance(measured, Mapping):
        return _of_report(check_report(dict(measured)))
    if _is_report(measured):
        return _of_report(read_report(measured))
    return _of_profile(read_profile(measured))


def _is_report(path: str | os.PathLike[str]) -> bool:
    """Returns whether a file means to be a report; reading it says what is wrong with it."""
    try:
        data = json.loads(read_whole(Path(path)))
    except OSError as error:
        raise Error(f"Cannot read {printable_path(path)}: {error.strerror}.") from error
    except (ValueError, RecursionError):
        return False
    return isinstance(data, dict) and "schema" in data


def _of_report(report: Mapping[str, Any]) -> Timings:
    rows = (
        (layer["index"], layer["node"], layer["kernel"], layer["seconds"])
        for layer in report["layers"]
    )
    name = f"{report['method']} on {report['target']}"
    return Timings(name, report["seconds"], tuple(rows))


def _of_profile(profile: Profile) -> Timings:
    rows = ((c.index, c.node, c.kernel, c.seconds) for c in profile.commands)
    name = f"{profile.method} on {profile.device}"
    return Timings(name, profile.run_seconds, tuple(rows))


@cache
def _class_of(kernel: str) -> str:
    hardware = TargetConfig.named(_CLASSES).hardware
    assert hardware is not None and hardware.roofline is not None
    return hardware.roofline.class_of(kernel).name


def _group(name: str, pairs: Sequence[Pair]) -> Group:
    errors = sorted(abs(p.error) for p in pairs if p.error is not None)
    return Group(
        name,
        len(pairs),
        sum(pair.predicted for pair in pairs),
        sum(pair.measured for pair in pairs),
        statistics.fmean(errors) if errors else None,
        statistics.median(errors) if errors else None,
        _percentile(errors),
    )


def _percentile(errors: Iterable[float]) -> float | None:
    """Returns the least error that 95 of a hundred do not exceed."""
    held = list(errors)
    return held[-(-95 * len(held) // 100) - 1] if held else None
