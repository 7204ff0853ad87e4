"""The table of docs/platforms.md: what was built, and what ran here."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.wheels.commands import ROOT, Failed
from tests.wheels.targets import Target

_KEPT = "result.json"
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
        failed = [f"FAILED {failure.split(':')[0]}" for failure in self.failures]
        not_run = "; ".join(self.left_out + failed)
        cells = [self.name, size, self.floor, "; ".join(self.checked), not_run]
        return "| " + " | ".join(cell or "–" for cell in cells) + " |"


def keep(result: Result, work: Path) -> None:
    """Keeps what is known of a platform for the runs that build others."""
    facts = asdict(result) | {"wheel": result.wheel and result.wheel.name}
    work.mkdir(parents=True, exist_ok=True)
    (work / _KEPT).write_text(json.dumps(facts, indent=2) + "\n")


def kept(target: Target, work: Path) -> Result:
    """Returns what the last run of a platform kept."""
    path = work / _KEPT
    if not path.exists():
        return Result(target.name, target.floor, left_out=["it was never built here"])
    facts = json.loads(path.read_text())
    return Result(**facts | {"wheel": facts["wheel"] and Path(facts["wheel"])})


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
