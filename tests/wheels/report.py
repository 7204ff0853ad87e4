"""The table of docs/platforms.md: what was built, and what ran here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from tests.wheels.commands import ROOT, Failed

PAGE = ROOT / "docs" / "platforms.md"
_MARKS = re.compile(r"(<!-- wheels: begin -->\n).*(<!-- wheels: end -->)", re.DOTALL)


@dataclass
class Result:
    """What is known of one platform's wheel."""

    name: str
    floor: str
    wheel: Path | None = None
    bytes: int = 0
    checked: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # what did not run, and why
    failures: list[str] = field(default_factory=list)

    def row(self) -> str:
        """Returns the platform's line of the table."""
        size = f"{self.bytes / 1e6:.1f} MB" if self.wheel else "not built"
        cells = [self.name, size, self.floor, "; ".join(self.checked), "; ".join(self.left_out)]
        return "| " + " | ".join(cell or "–" for cell in cells) + " |"


def table(results: list[Result]) -> str:
    """Returns the table in Markdown."""
    head = "| wheel | size | needs | checked and run | not run, and why |\n|---|---|---|---|---|\n"
    return head + "".join(result.row() + "\n" for result in results)


def write(results: list[Result]) -> None:
    """Puts the table into the page."""
    text = PAGE.read_text(encoding="utf-8")
    if _MARKS.search(text) is None:
        raise Failed(f"{PAGE} has no place for the table")
    PAGE.write_text(_MARKS.sub(lambda m: m[1] + table(results) + m[2], text), encoding="utf-8")
