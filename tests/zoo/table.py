"""docs/models.md: what became of each entry, written from a full run and read back by the tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

from tests.zoo.measure import TOLERANCE, Row

PATH = Path(__file__).parents[2] / "docs" / "models.md"

_HEAD = """# Models

Architectures taken the whole way on the CPU in float32: extracted, checked, compiled, run, and
compared with PyTorch. Each is small and has seeded weights; `tests/zoo/` says how it is made.
`python -m tests.zoo` writes this page.

{summary}

*Native* counts the graph's nodes that npusim runs; PyTorch runs the others. *Error* is the largest
difference from PyTorch over all outputs, relative to the largest value of the output; up to
{tolerance:g} agrees. Models that cannot be extracted stand with the reason; those that torch.export
refuses as well are marked so.
"""

AGREES, DIFFERS, REFUSED, UNEXPORTABLE = "agrees", "differs", "refused", "torch.export refuses"

_ROW = re.compile(r"^\| ([\w.-]+) \| ([\w. ]+) \|", re.MULTILINE)


def outcome(row: Row) -> str:
    """Returns the word for what became of an entry."""
    if row.error is not None:
        return AGREES if row.agrees else DIFFERS
    return REFUSED if row.exportable else UNEXPORTABLE


def render(rows: Sequence[Row]) -> str:
    """Returns the page; rows of one family stand together."""
    head = _HEAD.format(summary=_summary(rows), tolerance=TOLERANCE)
    return head + sections(rows, "Native | In PyTorch, or the reason", _line)


def sections(rows: Sequence[Any], between: str, line: Callable[[Any], str]) -> str:
    """Returns a section with a table for each family.

    Args:
        between: the titles of the columns between a model's outcome and its error, two.
        line: writes a row of the table.
    """
    return "".join(
        f"\n## {family}\n\n| Model | Result | {between} | Error |\n|---|---|---|---|---|\n"
        + "".join(f"{line(row)}\n" for row in members)
        for family, members in groupby(rows, key=attrgetter("family"))
    )


def listed(text: str) -> Mapping[str, str]:
    """Returns the outcome of each entry that a page lists."""
    architectures = text.partition("\n## Generating\n")[0]
    return {name: word for name, word in _ROW.findall(architectures) if word != "Result"}


def _summary(rows: Sequence[Row]) -> str:
    exportable = [row for row in rows if row.exportable]
    agreeing = [row for row in exportable if row.agrees]
    native = [row for row in exportable if row.is_native]
    share = 100 / max(len(exportable), 1)
    return (
        f"Of {len(rows)} models, torch.export accepts {len(exportable)}. Of these, "
        f"{len(agreeing)} ({share * len(agreeing):.1f} %) run and agree, and "
        f"{len(native)} ({share * len(native):.1f} %) run without PyTorch."
    )


def _line(row: Row) -> str:
    share = f"{row.native} of {row.nodes}" if row.nodes else ""
    others = ", ".join(f"{count} × {op.removesuffix('.default')}" for op, count in row.fallback)
    text = "; ".join(part for part in (others, readable(row.problem)) if part)
    error = "" if row.error is None else f"{row.error:.1e}"
    return f"| {row.name} | {outcome(row)} | {share} | {text} | {error} |"


def readable(problem: str) -> str:
    """Returns a reason without this machine's paths, fit for a cell."""
    return re.sub(r"[^\s(]*/site-packages/", "", problem).replace("|", "\\|")
