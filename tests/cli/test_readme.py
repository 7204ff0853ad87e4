"""The README's tour runs as it stands: its commands in order, then its Python."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from .conftest import Cli

README = Path(__file__).resolve().parents[2] / "README.md"


def _section(title: str) -> str:
    text = README.read_text("utf-8")
    return text.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_the_tour_runs_as_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    demo = re.findall(r"^\$ npusim (demo.*)$", _section("Two commands"), re.MULTILINE)
    tour = re.findall(r"^\$ npusim (.+)$", _section("Five minutes, from the command line"), re.M)
    assert len(tour) >= 6
    for command in (*demo, *tour):
        outcome = cli(*shlex.split(command))
        assert outcome.code == 0, f"npusim {command}: {outcome.err}"
    blocks = re.findall(r"```python\n(.*?)```", _section("Five minutes, from Python"), re.DOTALL)
    assert blocks
    exec(compile("\n".join(blocks), str(README), "exec"), {"__name__": "readme"})
