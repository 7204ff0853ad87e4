"""`--sizes SYMBOL=SIZE,…`: the sizes that a program brings device code for, chosen and told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import click

sizes_option = click.option(
    "--sizes",
    multiple=True,
    metavar="SYMBOL=SIZE,…",
    help="Bring device code for these values of a symbolic size, beside its greatest; of several "
    "symbols, for all combinations.",
)


def combinations(options: Sequence[str]) -> list[dict[str, int]]:
    """Returns every combination of what `--sizes` lists, one dict of values by symbol for each."""
    chosen: dict[str, list[int]] = {}
    for option in options:
        name, equals, values = option.partition("=")
        numbers = values.split(",")
        if not name or not equals or not all(n.isascii() and n.isdigit() for n in numbers):
            raise click.UsageError(
                f"--sizes {option}: expected SYMBOL=SIZE,SIZE,…, such as batch=1,8."
            )
        chosen.setdefault(name, []).extend(map(int, numbers))
    rows = product(*chosen.values()) if chosen else ()
    return [dict(zip(chosen, row, strict=True)) for row in rows]


def prepared_line(facts: Mapping[str, Any]) -> list[str]:
    """Returns the line that tells what the program of these facts was prepared for, or none."""
    if "prepared_sizes" not in facts:
        return []
    rows = (", ".join(f"{k} = {v}" for k, v in row.items()) for row in facts["prepared_sizes"])
    return [f"device code for {'; '.join(rows)}"]
