"""No verb runs code that a pickle brings, whatever it is taken for."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import click
import pytest

from npusim.cli import app

from .conftest import FACTORIES, Cli, Compiled

pytest.importorskip("torch")

# `demo` and `doctor` read no file; a factory's module is code by its nature, and what `reduce` left
# in a folder is as well.
VERBS = sorted(set(app.npusim.commands) - {"demo", "doctor", "reproduce"})


class _Evil:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.fixture(params=[".pt", ".bin", ".npz", ".npubin", ".json", ".safetensors", ".plan"])
def evil(request, tmp_path: Path) -> Path:
    """A pickle, or an archive with one, that leaves a mark when it is read carelessly."""
    path = tmp_path / f"evil{request.param}"
    content = pickle.dumps({"w": _Evil(f"touch {tmp_path}/ran")}, protocol=2)
    if request.param in (".pt", ".npz"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("evil/data.pkl", content)
            archive.writestr("evil/version", "3")
            archive.writestr("x.npy", content)
    else:
        path.write_bytes(content)
    return path


def _arguments(command: click.Command, evil: Path, mlp: Compiled) -> list[list[object]]:
    """Returns arguments that give a verb the file, wherever it takes one."""
    names = {name for p in command.params if isinstance(p, click.Option) for name in p.opts}
    out = ["-o", evil.parent / "out"] if "-o" in names else []
    every: list[list[object]] = [[evil, *out]]
    for given in (mlp.program, mlp.graph, f"{FACTORIES}:mlp"):
        every += [
            [given, option, evil, *out]
            for option in ("--weights", "--input", "--target", "--tokenizer")
            if option in names
        ]
    return every


def test_pickles_do_run_code_when_they_are_read_carelessly(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(_Evil(f"touch {tmp_path}/ran")))
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_no_verb_runs_code_of_a_pickle(verb: str, evil: Path, cli: Cli, mlp: Compiled) -> None:
    for arguments in _arguments(app.npusim.commands[verb], evil, mlp):
        outcome = cli(verb, *arguments)
        assert not (evil.parent / "ran").exists()
        assert "weights_only=False" not in outcome.err + outcome.out
