"""npusim tune: choices of a tuning file put into a program; what cannot be tuned is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import npusim
from npusim.codegen.choice import Choice
from npusim.codegen.cuda.image import unpack_image
from npusim.codegen.tuning import Tuning, key_of

from .conftest import Cli, Compiled


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program of one product that is the own kernel's by default."""
    file = tmp_path / "net.npubin"
    npusim.compile((nn.Linear(32, 48).eval(), (torch.randn(80, 32),)), target="cuda").save(file)
    return file


def test_takes_the_choices_of_a_file(cli: Cli, program: Path, tmp_path: Path) -> None:
    compiled = npusim.CompiledProgram.load(program)
    (command,) = compiled.methods[0].commands
    key = key_of("linear", command.params)
    Tuning("a GPU", {key: Choice("cublaslt", 1, 130100)}, {key: "linear"}).save(tmp_path / "t.json")
    output = tmp_path / "tuned.npubin"
    outcome = cli("tune", program, "--from", tmp_path / "t.json", "-o", output)
    assert outcome.code == 0 and "1 × cublaslt" in outcome.out and "a GPU" in outcome.out
    tuned = npusim.CompiledProgram.load(output)
    library = unpack_image(tuned.kernels[tuned.methods[0].commands[0].kernel].image).library
    assert library is not None and library["plan"] == 1
    facts = cli("tune", program, "--from", tmp_path / "t.json", "-o", output, "--json").json
    assert facts["choices"] == {"cublaslt": 1}


def test_refuses_what_is_not_tuned(cli: Cli, mlp: Compiled, program: Path, tmp_path: Path) -> None:
    Tuning("a GPU").save(tmp_path / "t.json")
    output = tmp_path / "tuned.npubin"
    cli("tune", mlp.program, "--from", tmp_path / "t.json", "-o", output).refused(
        "only programs with device code are tuned", "'cuda'"
    )
    cli("tune", program, "--from", program, "-o", output).refused("no tuning file")
    assert not output.exists()
