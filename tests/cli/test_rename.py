"""`--rename`: weights under other names, in every verb that takes weights; and the hint at it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.cli.conftest import FACTORIES, Cli, Compiled

MLP = f"{FACTORIES}:mlp"


@pytest.fixture
def prefixed(mlp: Compiled, tmp_path: Path) -> Path:
    """The weights of the network as a wrapper around it has them."""
    path = tmp_path / "prefixed.safetensors"
    save_file({f"module.{k}": v for k, v in load_file(mlp.weights).items()}, path)
    return path


def test_every_verb_with_weights_takes_renamed_ones(
    cli: Cli, mlp: Compiled, prefixed: Path, tmp_path: Path
) -> None:
    plan = tmp_path / "model.npuplan"
    assert cli("partition", mlp.graph, "-o", plan).code == 0
    for verb in (
        ("run", mlp.program, "--input", mlp.x),
        ("run", plan, "--input", mlp.x),
        ("bench", mlp.program, "--runs", 1, "--warmup", 0),
        ("profile", mlp.program, "--repeats", 1),
        ("verify", MLP),
        ("export-onnx", mlp.graph, "-o", tmp_path / "model.onnx"),
    ):
        hint = "--rename =module."
        without = cli(*verb, "--weights", prefixed)
        assert without.code == 2 and hint in without.err, (verb, without.err)
        with_it = cli(*verb, "--weights", prefixed, *hint.split())
        assert with_it.code == 0, (verb, with_it.err)
    reduced = cli("reduce", MLP, "-o", tmp_path / "r", "--weights", prefixed, *hint.split())
    reduced.refused("does not fail")  # it has run, so the weights were found


def test_renamed_weights_give_the_same_numbers(
    cli: Cli, mlp: Compiled, prefixed: Path, tmp_path: Path
) -> None:
    for name, weights in (("a", (mlp.weights,)), ("b", (prefixed, "--rename", "=module."))):
        out = tmp_path / name
        run = cli("run", mlp.program, "--input", mlp.x, "-o", out, "--weights", *weights)
        assert run.code == 0, run.err
    (a,), (b,) = (sorted((tmp_path / name).iterdir()) for name in "ab")
    assert np.array_equal(np.load(a), np.load(b))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--rename", "model.="), ("--rename", "--weights")),
        (("--weights", "W", "--rename", "model."), ("KEY=KEY",)),
        (("--weights", "W", "--rename", "="), ("KEY=KEY",)),
        (("--weights", "W", "--rename", ""), ("KEY=KEY",)),
        (("--weights", "W", "--rename", "a=b", "--rename", "a=c"), ("two names", "b, c")),
    ],
)
def test_renaming_that_says_nothing_is_refused(
    cli: Cli, mlp: Compiled, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    given = [mlp.weights if option == "W" else option for option in options]
    cli("run", mlp.program, "--input", mlp.x, *given).refused(*words)
