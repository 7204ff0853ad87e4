"""docs/dynamic-models.md: what became of models whose sizes are open, read back by the tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.zoo.dynamic import BOUNDS, SIZES, Row
from tests.zoo.measure import TOLERANCE
from tests.zoo.table import AGREES, DIFFERS, REFUSED, readable, sections

PATH = Path(__file__).parents[2] / "docs" / "dynamic-models.md"

_HEAD = """# Models with open sizes

Models of the zoo ([models.md](models.md)), extracted once with batch and lengths open
([dynamic-shapes.md](dynamic-shapes.md)) up to {bounds}, and compared with PyTorch on the CPU in
float32 at {sizes}. `python -m tests.zoo --dynamic` writes this page.

{summary}

*Open* are the sizes that calls choose; where the model's code fixes its lengths, the batch alone,
with the reason. *Error* is the largest difference from PyTorch over all outputs and sizes,
relative to the largest value of the output; up to {tolerance:g} agrees. Sizes that PyTorch itself
refuses are left out, and named.
"""


def outcome(row: Row) -> str:
    """Returns the word for what became of an entry."""
    if row.error is None:
        return REFUSED
    return AGREES if row.agrees else DIFFERS


def render(rows: Sequence[Row]) -> str:
    """Returns the page; rows of one family stand together."""
    head = _HEAD.format(
        bounds=_written(BOUNDS),
        sizes="; ".join(map(_written, SIZES)),
        summary=_summary(rows),
        tolerance=TOLERANCE,
    )
    return head + sections(rows, "Open | Remarks", _line)


def _written(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def _summary(rows: Sequence[Row]) -> str:
    agreeing = [row for row in rows if row.agrees]
    whole = [row for row in agreeing if not row.problem]
    return (
        f"Of {len(rows)} models, {len(agreeing)} run and agree, {len(whole)} of these with batch "
        "and lengths open."
    )


def _line(row: Row) -> str:
    left_out = [f"PyTorch refuses {sizes}" for sizes in row.skipped]
    text = "; ".join([*left_out, *([readable(row.problem)] if row.problem else [])])
    error = "" if row.error is None else f"{row.error:.1e}"
    return f"| {row.name} | {outcome(row)} | {', '.join(row.sizes)} | {text} | {error} |"
