"""`npusim calibrate`: a target whose times are fitted to measured ones, and how far it is off."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

import npusim
from npusim.cli.answer import Answer, Verb, duration, table
from npusim.cli.artifact import readable
from npusim.errors import TargetConstraintError
from npusim.files import write_atomic

if TYPE_CHECKING:
    from npusim.simulate.machine import Machine

_PROFILE = click.Path(path_type=Path)


@click.command(cls=Verb)
@click.argument("profiles", nargs=-1, type=_PROFILE)
@click.option("--target", default="cpu", show_default=True, help="Whose roofline is fitted.")
@click.option(
    "--check",
    "checked",
    multiple=True,
    type=_PROFILE,
    metavar="PROFILE",
    help="A profile to predict the whole run of, and not to fit to; repeatable.",
)
@click.option(
    "--here",
    is_flag=True,
    help="Begin with this machine's cores, vectors, caches and rates, which are measured; without "
    "profiles that is all.",
)
@click.option(
    "--threads", type=click.IntRange(min=1), help="With --here. Default: one a physical core."
)
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path))
def calibrate(
    profiles: tuple[Path, ...],
    target: str,
    checked: tuple[Path, ...],
    here: bool,
    threads: int | None,
    output: Path,
) -> Answer:
    """Fit the roofline of a target to profiles, and write the fitted target.

    PROFILES are written by `npusim profile PROGRAM --json`, all on one device. Every second
    distinct command is kept out of the fit; the errors shown are of those.
    """
    from npusim.profile.saved import read_profile
    from npusim.simulate.calibrate import Calibration, target_file
    from npusim.simulate.calibrate import calibrate as fit
    from npusim.simulate.machine import described

    if not profiles and not here:
        raise click.UsageError("Give profiles, or --here for a target of this machine without any.")
    if threads is not None and not here:
        raise click.UsageError("--threads goes with --here.")
    if checked and not profiles:
        raise click.UsageError("--check goes with profiles that something is fitted to.")

    base = npusim.TargetConfig.named(target)
    if base.hardware is None or base.hardware.roofline is None:
        raise TargetConstraintError(
            f"Target '{target}' has no roofline to fit.",
            hint="Its file needs a table [roofline] with peaks, memories and classes.",
        )
    read = [read_profile(readable(path)) for path in (*profiles, *checked)]
    for path, profile in zip((*profiles, *checked), read, strict=True):
        if profile.target.partition(":")[0] != base.device:
            raise TargetConstraintError(
                f"{path} is of a program compiled for '{profile.target}'; target '{target}' is one "
                f"of device '{base.device}'.",
                hint="Name a target of the device that was measured.",
            )
    roofline, device = base.hardware.roofline, ""
    if here:
        if base.device != "cpu":
            raise TargetConstraintError(
                f"--here describes a CPU; target '{target}' is of device '{base.device}'.",
                hint="Profiles of the device are what its target is fitted to.",
            )
        machine = this_machine(threads)
        roofline, device = described(roofline, machine), machine.description
        others = {profile.device for profile in read} - {device}
        if others:
            raise TargetConstraintError(
                f"The profiles are of '{min(others)}'; this machine is '{device}'.",
                hint="Use --here on the machine that was profiled, with as many threads.",
            )
    if profiles:
        found = fit(read[: len(profiles)], roofline, read[len(profiles) :], known=here)
    else:
        found = Calibration(roofline, (), (), (device,))
    write_atomic(output, target_file(found, target, output.stem).encode())
    classes = [
        (e.name, e.fitted or "kept", e.held_out, *map(_percent, (e.mean, e.median, e.worst)))
        for e in found.classes
    ]
    runs = [
        (path.name, r.name, duration(r.predicted), duration(r.measured), f"{100 * r.error:+.1f} %")
        for path, r in zip((*profiles, *checked), found.runs, strict=True)
    ]
    facts = {
        "output": str(output),
        "device": found.devices[0],
        "classes": [dataclasses.asdict(e) for e in found.classes],
        "runs": [{**dataclasses.asdict(r), "error": r.error} for r in found.runs],
    }
    heads = ("fitted to", "held out", "mean error", "median", "95th percentile")
    tables = [
        table(classes, "class", *heads),
        table(runs, "profile", "run", "predicted", "measured", "error"),
    ]
    lines = [
        *(tables if profiles else ()),
        f"{output}: {target} as measured on {found.devices[0]}",
    ]
    return Answer(facts, lines)


def this_machine(threads: int | None) -> Machine:
    """Measures this machine's CPU, in some seconds; by default with a thread a physical core."""
    from npusim.runtime import Device
    from npusim.simulate.machine import CPUS, caches_of, machine_of

    device = Device("cpu", threads=threads)
    return machine_of(device.description, device.measure_rates(), caches_of(CPUS))


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
