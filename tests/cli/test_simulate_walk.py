"""docs/simulate.md from its first block to its last: files, Python and commands, as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from npusim.targets import target_names
from tests.simulate.test_language_model import decoder

from .conftest import Cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "simulate.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"# (\w+\.\w+)\n")


@pytest.fixture
def walked(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Returns what each command printed, after all of them in the page's order."""
    monkeypatch.chdir(tmp_path)
    decoder().save("decoder.npubin")  # the page leaves it to the reader
    printed: dict[str, str] = {}
    names: dict[str, Any] = {"__name__": "page"}
    for language, text in _BLOCK.findall(PAGE.read_text("utf-8")):
        named = _NAMED.match(text)
        if named:
            Path(named[1]).write_text(text)
        elif language == "python":
            exec(compile(text, str(PAGE), "exec"), names)
        for command in re.findall(r"^\$ npusim (.+)$", text, re.MULTILINE):
            words, _, file = command.partition(" > ")
            outcome = cli(*shlex.split(words))
            assert outcome.code == 0, f"npusim {command}: {outcome.err}"
            printed[command] = outcome.out
            if file:
                Path(file).write_text(outcome.out)
    return printed


def test_the_walk_runs_as_written(walked: dict[str, str]) -> None:
    assert len(walked) >= 25
    verbs = {command.split()[0] for command in walked}
    assert verbs >= {
        *("targets", "compile", "run", "info", "simulate", "simulate-llm", "explain"),
        *("sweep", "compare", "profile"),
    }
    shown = walked["simulate net.npubin -o report"]
    for part in ("due to |", "mxu", "what would help", "report/timeline.json"):
        assert part in shown
    told = {"report.html", "report.json", "timeline.json", "layers.csv", "timeline.svg"}
    assert {path.name for path in Path("report").iterdir()} == told | {"roofline.svg"}
    assert all(name in walked["targets"] for name in target_names())
    assert "all" in walked["compare cpu-report/report.json measured.json"]
    assert "9 machines" in next(
        out for c, out in walked.items() if c.startswith("sweep net.npubin")
    )
    described = walked["targets mynpu.toml"]
    assert "rows = 16" in described and 'dataflow = "os"' in described and "kib = 512" in described
    assert Path("llm.svg").read_text().startswith("<svg")
    assert {path.name for path in Path("mine-out").iterdir()} == {
        path.name for path in Path("out").iterdir()
    }


def test_the_page_tells_every_column() -> None:
    from npusim.simulate.csv_table import COLUMNS

    text = PAGE.read_text("utf-8")
    own = list(COLUMNS).index("Command")
    assert all(f"`{name}`" in text for name in list(COLUMNS)[:own])
