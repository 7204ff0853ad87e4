"""`--sizes SYMBOL=SIZE,…`: symbolic sizes, those that a program brings device code for, or those of
the inputs that a verb makes up; chosen and told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import click

from npusim.errors import ShapeError
from npusim.ir.symbolic import Symbol, describe

call_sizes_option = click.option(
    "--sizes",
    multiple=True,
    metavar="SYMBOL=SIZE",
    help="What a symbolic size is in the inputs that are made up; default: the greatest.",
)
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


def call_sizes(
    options: Sequence[str], symbols: Iterable[Symbol], given: bool
) -> tuple[dict[str, int], list[str]]:
    """Returns the sizes of a call's made-up inputs, and the lines that tell them.

    Args:
        options: of `--sizes`.
        symbols: what a caller may choose.
        given: whether the inputs come from files, whose shapes say it.

    Raises:
        ShapeError: a symbol that is not there, or a size that calls cannot have.
    """
    rows = combinations(options)
    if len(rows) > 1 or (rows and given):
        why = "the shapes of --input say it" if given else "a call has one of each symbol"
        raise click.UsageError(f"--sizes {' '.join(options)}: {why}.")
    chosen, known = (rows[0] if rows else {}), {s.name: s for s in symbols}
    for name, size in chosen.items():
        if name not in known or not known[name].low <= size <= known[name].high:
            there = describe(known.values()) or "none"
            raise ShapeError(f"--sizes {name}={size}: the program's sizes are {there}.")
    sizes = {name: chosen.get(name, symbol.high) for name, symbol in known.items()}
    if given or not sizes:
        return sizes, []
    told = ", ".join(
        f"{name} = {size}{'' if name in chosen else ' (the greatest)'}"
        for name, size in sizes.items()
    )
    hint = "" if len(chosen) == len(sizes) else "; choose with --sizes"
    return sizes, [f"sizes: {told}{hint}"]


def prepared_line(facts: Mapping[str, Any]) -> list[str]:
    """Returns the line that tells what the program of these facts was prepared for, or none."""
    if "prepared_sizes" not in facts:
        return []
    rows = (", ".join(f"{k} = {v}" for k, v in row.items()) for row in facts["prepared_sizes"])
    return [f"device code for {'; '.join(rows)}"]
