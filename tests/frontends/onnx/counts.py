"""How many of ONNX's backend tests pass: kept in counts.json, shown in the documentation.

`python -m tests.frontends.onnx.suite` runs them and writes the file and the pages; tests hold the
file to what runs, and the pages to the file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.frontends.onnx.suite import Outcome

ROOT = Path(__file__).resolve().parents[3]
FILE = Path(__file__).with_name("counts.json")
RAN = ("native", "pytorch", "imported", "excluded", "failed")
_BEGIN, _END = "<!-- counts -->", "<!-- end of counts -->"

Counts = dict[str, dict[str, int]]


def counts_of(found: Sequence[Outcome], kinds: Sequence[str]) -> Counts:
    """Returns, by suite, how many tests came out how."""
    parts = {
        "node, direct": [o for o in found if o.is_direct],
        "node, expanded": [o for o in found if o.kind == "node" and not o.is_direct],
        **{kind: [o for o in found if o.kind == kind] for kind in kinds if kind != "node"},
        "all": list(found),
    }
    return {
        title: {ran: Counter(o.ran for o in part)[ran] for ran in RAN}
        for title, part in parts.items()
    }


def read() -> tuple[str, Counts]:
    """Returns the version of onnx that was counted with, and the counts."""
    kept = json.loads(FILE.read_text("utf-8"))
    return kept["onnx"], kept["suites"]


def write(counts: Counts) -> None:
    """Keeps counts, and shows them on every page that names them."""
    import onnx

    kept = {"onnx": onnx.__version__, "opset": onnx.defs.onnx_opset_version(), "suites": counts}
    FILE.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")
    for page, text in pages().items():
        page.write_text(text, "utf-8")


def pages() -> dict[Path, str]:
    """Returns what the pages with counts should hold."""
    found = {ROOT / "docs" / "importing.md": table(), ROOT / "README.md": sentence()}
    return {page: _between(page.read_text("utf-8"), text) for page, text in found.items()}


def _between(page: str, text: str) -> str:
    head, rest = page.split(_BEGIN)
    return f"{head}{_BEGIN}\n{text}\n{_END}{rest.split(_END)[1]}"


def _passed(part: dict[str, int]) -> int:
    return sum(part[ran] for ran in ("native", "pytorch", "imported"))


def sentence() -> str:
    """Returns the counts in short."""
    _, suites = read()
    every, direct = suites["all"], suites["node, direct"]
    return (
        f"Of the {sum(every.values()):,} tests of ONNX's own backend suite {_passed(every):,} pass "
        f"through `npusim.onnx_backend`,\n{every['native']:,} of them by native programs alone; of "
        f"the {sum(direct.values()):,} that test one operator directly, {_passed(direct):,} pass."
    )


def table() -> str:
    """Returns the counts as a Markdown table."""
    kept = json.loads(FILE.read_text("utf-8"))
    lines = [
        "",
        f"onnx {kept['onnx']}, opset {kept['opset']}, on the CPU:",
        "",
        "| Suite | Tests | Passed | native | with PyTorch | while importing | excluded | failed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for title, part in kept["suites"].items():
        total = sum(part.values())
        share = f"{_passed(part)} ({100 * _passed(part) / max(total, 1):.1f} %)"
        cells = (title, total, share, *(part[ran] for ran in RAN))
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, ""])
