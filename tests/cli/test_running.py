"""Options of verbs that run a program: copied weights, and limits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import npusim
from npusim.cli.app import npusim as group
from npusim.cli.running import ByteCount
from npusim.runtime import weights

from .conftest import Cli, Compiled

# Of these, the weights are a program's; others give a checkpoint to PyTorch, or write one.
RUNS = {"run", "profile", "bench", "generate"}
SERVES = {"pack-weights", "serve", "batch"}  # which take no inputs of a call


def test_every_verb_that_runs_a_program_has_them() -> None:
    own = {"--device", "--threads", "--max-work", "--max-memory", "--copy-weights"}
    for name, verb in group.commands.items():
        options = {option for p in verb.params for option in p.opts}
        if name in RUNS | SERVES:
            assert own <= options, name
        else:
            assert "--copy-weights" not in options, name


@pytest.mark.parametrize("verb", sorted(RUNS - {"generate"}))
@pytest.mark.parametrize("kind", ["program", "plan"])
@pytest.mark.parametrize("copies", [False, True])
def test_weights_are_copied_where_that_is_asked_for(
    cli: Cli,
    mlp: Compiled,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    verb: str,
    kind: str,
    copies: bool,
) -> None:
    path, x = mlp.program, tmp_path / "x.npy"
    if kind == "plan":
        path = tmp_path / "mlp.plan"
        npusim.partition(npusim.IR.load(mlp.graph), target="cpu").save(path)
    np.save(x, np.ones((2, 8), np.float32))
    asked: list[bool] = []
    native = weights.Weights

    class Watched:
        @staticmethod
        def from_file(*args: Any) -> Any:
            asked.append(args[4])
            return native.from_file(*args)

    monkeypatch.setattr(weights, "Weights", Watched)
    quick = () if verb == "run" else ("--seconds", "0")
    flag = ("--copy-weights",) if copies else ()
    outcome = cli(verb, path, "--weights", mlp.weights, "--input", x, *quick, *flag)
    assert outcome.code == 0
    assert asked and set(asked) == {copies}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("512M", 512 << 20),
        ("2GiB", 2 << 30),
        ("3kb", 3 << 10),
        ("8191P", None),
        ("0", None),
        ("-1", None),
        ("", None),
        ("1.5G", None),
        ("9223372036854775807", None),
        ("999999999999999999", 999999999999999999),
        ("8388608T", None),
        ("8388607T", 8388607 << 40),
        ("１", None),
    ],
)
def test_byte_counts(text: str, count: int | None) -> None:
    if count is None:
        with pytest.raises(click.BadParameter, match="no number of bytes"):
            ByteCount().convert(text, None, None)
    else:
        assert ByteCount().convert(text, None, None) == count


@pytest.mark.parametrize("number", ["nan", "inf", "-inf", "-1", "1e400", "x", ""])
@pytest.mark.parametrize(
    "options",
    [("bench", "--seconds"), ("profile", "--seconds"), ("verify", "--tolerance"),
     ("reduce", "--tolerance"), ("check", "--require")],
)  # fmt: skip
def test_numbers_are_finite(cli: Cli, mlp: Compiled, options: tuple[str, str], number: str) -> None:
    """NaN is beyond no bound: `profile` ran on and on."""
    verb, option = options
    cli(verb, mlp.program, f"{option}={number}").refused(option)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_profiles_end(mlp: Compiled, seconds: float) -> None:
    with pytest.raises(npusim.Error, match="finite number of seconds"):
        npusim.profile_program(mlp.program, mlp.weights, seconds=seconds)
