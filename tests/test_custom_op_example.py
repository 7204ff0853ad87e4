"""examples/custom_op: from the command line to a native command that agrees with PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "custom_op"


def npusim(*arguments: object) -> str:
    """Runs the command in a process of its own: PyTorch keeps operators for good."""
    command = [sys.executable, "-m", "npusim.cli", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_example(tmp_path: Path) -> None:
    own, factory = ("--import", EXAMPLE / "operators.py"), f"{EXAMPLE}/model.py:net"
    graph, program = tmp_path / "net.json", tmp_path / "net.npubin"
    npusim(*own, "extract", factory, "-o", graph)
    assert "example.swiglu.default" in npusim("info", graph)
    npusim(*own, "compile", graph, "-o", program)
    assert "agrees" in npusim(*own, "verify", factory)
    assert "pointwise" in npusim("info", program), "a program needs no import"
