"""How far predictions are off on a CPU that the preset `cpu` was not fitted to.

    PYTHONPATH=python:. python -m benchmarks.device_profiles FOLDER --what models,unseen
    PYTHONPATH=python:. python -m benchmarks.other_cpu FOLDER

Whole runs by three targets: the preset as it is, what this machine tells of itself
(`npusim calibrate --here`), and that fitted to every second model; and the classes' errors of the
last one at the commands of the other models.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.calibration import roofline
from npusim.cli.calibrate import this_machine
from npusim.profile.profile import Profile
from npusim.profile.saved import read_profile
from npusim.simulate.calibrate import calibrate, held_out
from npusim.simulate.machine import Machine, described
from npusim.targets.roofline import Roofline

GOAL = 0.15


def tables(profiles: dict[str, Profile], machine: Machine) -> str:
    """Returns the errors as Markdown.

    Args:
        profiles: by name, of one device.
        machine: that they were measured on.
    """
    names = sorted(profiles)
    learnt, kept = names[::2], names[1::2]
    told = described(roofline("cpu"), machine)
    fitted = calibrate([profiles[name] for name in learnt], told, known=True).roofline
    targets = {"preset": roofline("cpu"), "described": told, "fitted": fitted}
    whole = list(profiles.values())
    runs = {said: held_out([], target, whole)[1] for said, target in targets.items()}
    lines = [f"{machine.description}; rates: {dict(machine.rates)}; caches: {machine.caches} KiB"]
    lines += [
        "",
        f"| model | measured | {' | '.join(targets)} | |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for at, name in enumerate(profiles):
        errors = " | ".join(f"{100 * runs[said][at].error:+.1f} %" for said in targets)
        used = "fitted to" if name in learnt else "kept out"
        lines.append(f"| {name} | {1e3 * profiles[name].run_seconds:.3g} ms | {errors} | {used} |")
    lines += ["", *(_told(said, found, list(profiles), kept) for said, found in runs.items())]
    return "\n".join([*lines, "", *_classes(fitted, [profiles[name] for name in kept])])


def _told(said: str, runs: Sequence[object], names: list[str], kept: list[str]) -> str:
    off = [abs(run.error) for name, run in zip(names, runs, strict=True) if name in kept]  # type: ignore[attr-defined]
    within = sum(one <= GOAL for one in off)
    mean = 100 * statistics.fmean(off)
    return f"{said}: models kept out {mean:.1f} % in the mean, {within} of {len(off)} within 15 %"


def _classes(target: Roofline, kept: list[Profile]) -> list[str]:
    classes, _ = held_out(kept, target, [], unseen=True)
    rows = (f"| {c.name} | {c.held_out} | {100 * c.mean:.1f} % |" for c in classes)
    return ["| class, of models kept out | commands | mean |", "|---|---:|---:|", *rows]


def main() -> None:
    """Reads the command line, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    found = {path.stem: read_profile(path) for path in sorted(args.folder.glob("*.json"))}
    print(tables(found, this_machine(args.threads)))


if __name__ == "__main__":
    main()
