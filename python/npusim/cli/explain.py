"""`npusim explain`: one command of a simulated run, to check by hand."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from npusim.cli.answer import Answer, Verb, amount, duration, table
from npusim.cli.artifact import open_runnable
from npusim.cli.simulated import Simulated, simulated_options
from npusim.schedule import Schedule
from npusim.schedule.schedule import AXES
from npusim.simulate.explain import Explanation
from npusim.simulate.explain import explain as explained
from npusim.targets.records import to_data


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@click.option("--command", metavar="N|NODE", required=True, help="Its number, or its node's name.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="Change a number.")
@simulated_options
def explain(program: Path, command: str, settings: tuple[str, ...], simulated: Simulated) -> Answer:
    """Say why a command takes as long as it does on a machine.

    The formula with its operands, the schedule, what the time is due to, and what would help.
    """
    opened = open_runnable(program)
    number = command.isascii() and command.isdigit() and len(command) < 10
    found = explained(
        opened,
        int(command) if number else command,
        overrides=settings,
        **simulated.arguments(opened),
    )
    return Answer(_facts(found), _lines(found))


def _facts(found: Explanation) -> dict[str, Any]:
    return {
        "target": found.target,
        "mode": found.mode,
        "run_seconds": found.seconds,
        **found.layer,
        "params": {k: list(v) if isinstance(v, tuple) else v for k, v in found.params.items()},
        "operands": [dataclasses.asdict(operand) for operand in found.operands],
        "schedules": [to_data(schedule) for schedule in found.schedules],
        "busy": dict(found.busy),
    }


def _lines(found: Explanation) -> list[str]:
    layer = found.layer
    share = 100 * layer["seconds"] / found.seconds if found.seconds else 0.0
    cycles = f", {layer['cycles']:,.0f} cycles" if layer["cycles"] is not None else ""
    place = ", ".join(filter(None, (layer["module"], layer["source"]))) or "no place in the model"
    params = ", ".join(f"{name} {_shown(value)}" for name, value in found.params.items())
    operands = [
        (at, one.name or "-", one.kind, one.access, amount(one.nbytes))
        for at, one in enumerate(found.operands)
    ]
    stalls = [
        (cause, duration(seconds), f"{100 * seconds / (layer['seconds'] or 1):.1f} %")
        for cause, seconds in layer["stalls"].items()
        if seconds
    ]
    lines = [
        f"command {layer['index']}, {layer['node']} ({layer['op']}), kernel {layer['kernel']}, "
        f"on {found.target}, {found.mode}",
        f"from: {place}",
        f"takes: {duration(layer['seconds'])}{cycles}, {share:.1f} % of the run; "
        f"{100 * layer['utilization']:.1f} % of the peak",
        *([f"kernel: {params}"] if params else []),
        *([table(operands, "#", "operand", "buffer", "access", "bytes")] if operands else []),
        "formula:",
        *(f"  {part.strip()}" for part in layer["formula"].split(";")),
    ]
    for schedule in found.schedules:
        lines += _schedule(schedule)
    return [
        *lines,
        table(stalls, "due to", "time", "share"),
        f"bound: {layer['bound']}",
        f"what would help: {layer['advice']}",
    ]


def _schedule(schedule: Schedule) -> list[str]:
    tile, sizes = ("x".join(str(s.of(a)) for a in AXES) for s in (schedule.tile, schedule.sizes))
    loops = " ".join(f"{axis}:{schedule.trips(axis)}" for axis in schedule.loops) or "none"
    buffers = ", two of each" if schedule.double_buffer else ""
    held = f"{amount(schedule.bytes)} of {schedule.memory} in use" if schedule.memory else ""
    rows = [
        (
            plan.role,
            plan.axes,
            "write" if plan.write else "read",
            plan.source,
            "stays" if plan.resident else "",
            plan.transfers,
            amount(plan.tile_bytes),
            amount(plan.total_bytes),
        )
        for plan in schedule.operands
    ]
    head = ("operand", "axes", "", "lies in", "", "copies", "a tile", "moved")
    return [
        f"schedule: {schedule.form} on {schedule.unit}, b x m x n x k = {sizes}, tiles of {tile}"
        f"{buffers}, loops (outermost first) {loops}",
        *([held] if held else []),
        table(rows, *head),
    ]


def _shown(value: object) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
