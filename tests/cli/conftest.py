"""What the tests of the command line share: running it, and one small compiled model."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npusim.cli import main

FACTORIES = Path(__file__).with_name("factories.py")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """stdout as the one JSON object it must be."""
        value = json.loads(self.out)
        assert isinstance(value, dict)
        return value

    def refused(self, *words: str) -> None:
        """Bad input: exit code 2, one sentence that contains `words`, no trace, no output."""
        assert self.code == 2, self.err
        assert self.err.startswith("error: ")
        assert "Traceback" not in self.err
        for word in words:
            assert word in self.err
        assert self.out == ""


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    """Runs the command line in this process: `cli("info", path)`."""

    def run(*arguments: object) -> Outcome:
        capfd.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@dataclass(frozen=True)
class Compiled:
    graph: Path
    weights: Path
    program: Path
    x: Path


def _build(folder: Path, factory: str) -> Compiled:
    graph, weights = folder / "model.json", folder / "model.safetensors"
    program, x = folder / "model.npubin", folder / "x.npy"
    source = f"{FACTORIES}:{factory}"
    assert main(["extract", source, "-o", str(graph), "--weights", str(weights)]) == 0
    assert main(["compile", str(graph), "-o", str(program)]) == 0
    np.save(x, np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8))
    return Compiled(graph, weights, program, x)


@pytest.fixture(scope="session")
def mlp(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """A two-layer network, extracted and compiled through the command line."""
    return _build(tmp_path_factory.mktemp("mlp"), "mlp")


@pytest.fixture(scope="session")
def two_inputs(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    """A module with two inputs and two outputs."""
    return _build(tmp_path_factory.mktemp("two_inputs"), "two_inputs")


@pytest.fixture
def nowhere(tmp_path: Path) -> Path:
    """A path that cannot be written, even by root: its folder does not exist."""
    return tmp_path / "missing" / "file"
