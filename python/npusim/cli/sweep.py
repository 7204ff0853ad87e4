"""`npusim sweep`: a program on every combination of settings of a machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from npusim.cli.answer import Answer, Verb, duration, table
from npusim.cli.artifact import open_runnable
from npusim.cli.progress import progress
from npusim.cli.simulated import Simulated, simulated_options
from npusim.files import write_atomic
from npusim.simulate.sweep import OBJECTIVES, Row, Sweep
from npusim.simulate.sweep import sweep as swept

_SHOWN = 40  # rows of the front


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE,…",
    multiple=True,
    required=True,
    help="Values of a number of the target; all combinations are simulated.",
)
@simulated_options
@click.option(
    "--pareto",
    metavar="OBJECTIVE,…",
    default=",".join(OBJECTIVES),
    help=f"What the front is of, some of: {', '.join(OBJECTIVES)}. Default: all.",
)
@click.option("--jobs", type=click.IntRange(1, 256), default=1, show_default=True)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The table as CSV.")
@click.option("--plot", "out", type=click.Path(path_type=Path), help="A chart as SVG.")
def sweep(
    program: Path,
    settings: tuple[str, ...],
    simulated: Simulated,
    pareto: str,
    jobs: int,
    output: Path | None,
    out: Path | None,
) -> Answer:
    """Simulate a program on every combination of settings, and mark those on the Pareto front.

    A machine that the program does not fit into is a row that says so. Files are written whole,
    when all is done. Until then rows are kept in OUTPUT.part, and the same command goes on from
    there if it was stopped.
    """
    opened = open_runnable(program)
    with progress("Sweeping") as report:
        found = swept(
            opened,
            _values(settings),
            **simulated.arguments(opened),
            pareto=tuple(filter(None, pareto.split(","))),
            jobs=jobs,
            progress=report,
            journal=output.with_name(f"{output.name}.part") if output is not None else None,
        )
    if output is not None:
        write_atomic(output, found.to_csv().encode())
    if out is not None:
        write_atomic(out, found.to_svg().encode())
    written = [str(path) for path in (output, out) if path is not None]
    return Answer(_facts(found, written), _lines(found, written))


def _values(settings: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for setting in settings:
        key, sign, values = setting.partition("=")
        if not key.strip() or not sign or not values.strip():
            raise click.UsageError(f"--set {setting}: expected KEY=VALUE,VALUE,….")
        found.setdefault(key.strip(), []).extend(v.strip() for v in _split(values))
    return found


def _split(values: str) -> list[str]:
    """Splits at commas outside of brackets, braces and quotes: values are TOML."""
    found, depth, quoted, start = [], 0, "", 0
    for at, letter in enumerate(values):
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "\"'":
            quoted = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and not depth:
            found.append(values[start:at])
            start = at + 1
    return [*found, values[start:]]


def _facts(found: Sweep, written: list[str]) -> dict[str, Any]:
    rows = [{**dataclasses.asdict(row), "bound": row.bound} for row in found.rows]
    names = {"model": found.model, "method": found.method, "target": found.target}
    return {**names, "pareto": list(found.over), "rows": rows, "files": written}


def _lines(found: Sweep, written: list[str]) -> list[str]:
    front = [row for row in found.rows if row.pareto]
    refused = [row for row in found.rows if row.why]
    front.sort(key=lambda row: row.objectives["seconds"] or 0.0)
    head = (*found.rows[0].settings, "time", "energy", "bound")
    more = f"; {len(front) - _SHOWN} more are on the front" if len(front) > _SHOWN else ""
    lines = [
        f"{found.model or 'program'}, method {found.method}, on {found.target}: "
        f"{len(found.rows)} machines, {len(front)} on the front, {len(refused)} cannot run it",
        table([_cells(row) for row in front[:_SHOWN]], *head) + more,
    ]
    if refused:
        settings = ", ".join(f"{k}={v}" for k, v in refused[0].settings.items())
        lines.append(f"cannot run it, for one, {settings}: {refused[0].why}")
    return [*lines, *(f"written: {path}" for path in written)]


def _cells(row: Row) -> tuple[str, ...]:
    energy = row.objectives["energy_j"]
    joules = "-" if energy is None else f"{energy:.3g} J"
    return (*row.settings.values(), duration(row.objectives["seconds"] or 0.0), joules, row.bound)
