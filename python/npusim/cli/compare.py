"""`npusim compare`: predicted times beside measured ones."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from npusim.cli.answer import Answer, Verb, duration, table
from npusim.cli.artifact import readable
from npusim.cli.finite import Finite
from npusim.simulate.compare import Comparison
from npusim.simulate.compare import compare as compared

_SHOWN = 15  # commands that are off by most seconds


@click.command(cls=Verb)
@click.argument("predicted", type=click.Path(path_type=Path))
@click.argument("measured", type=click.Path(path_type=Path))
@click.option(
    "--within",
    type=Finite(min=0),
    metavar="PERCENT",
    help="The answer is no when the whole run is off by more.",
)
def compare(predicted: Path, measured: Path, within: float | None) -> Answer:
    """Say how far predicted times are off, by command, by class of kernel, and in all.

    PREDICTED is a report.json of 'npusim simulate -o', MEASURED what 'npusim profile --json'
    printed, or another report.json. Commands meet by their node.
    """
    found = compared(readable(predicted), readable(measured))
    error = found.error
    ok = within is None or (error is not None and 100 * abs(error) <= within)
    return Answer(_facts(found), _lines(found), ok=ok)


def _facts(found: Comparison) -> dict[str, Any]:
    facts = dataclasses.asdict(found)
    facts["pairs"] = [{**dataclasses.asdict(p), "error": p.error} for p in found.pairs]
    facts["groups"] = [{**dataclasses.asdict(g), "error": g.error} for g in found.groups]
    facts["all"] = {**facts["all"], "error": found.all.error}
    return {**facts, "error": found.error}


def _lines(found: Comparison) -> list[str]:
    classes = [
        (
            group.name,
            group.count,
            *map(duration, (group.predicted, group.measured)),
            *map(_percent, (group.error, group.mean, group.median, group.worst)),
        )
        for group in (*found.groups, found.all)
    ]
    worst = sorted(found.pairs, key=lambda pair: -abs(pair.predicted - pair.measured))[:_SHOWN]
    commands = [
        (
            f"{pair.index} {pair.node}",
            pair.kernel,
            *map(duration, (pair.predicted, pair.measured)),
            f"{1e6 * (pair.predicted - pair.measured):+,.3g} µs",
            _percent(pair.error),
        )
        for pair in worst
    ]
    both = ("predicted", "measured")
    lines = [
        f"predicted: {found.predicted_name}, {duration(found.predicted)}; "
        f"measured: {found.measured_name}, {duration(found.measured)}; "
        f"whole run: {_percent(found.error)}",
        table(classes, "class", "commands", *both, "sum", "mean error", "median", "95th"),
        table(commands, "command", "kernel", *both, "difference", "error"),
    ]
    for name, rows in (("predicted", found.only_predicted), ("measured", found.only_measured)):
        if rows:
            shown = ", ".join(node for node, _ in rows[:5]) + (", …" if len(rows) > 5 else "")
            total = duration(sum(seconds for _, seconds in rows))
            lines.append(f"only {name}: {len(rows)} commands, {total} together ({shown})")
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:+.1f} %"
