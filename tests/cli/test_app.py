"""What stands before every verb: modules to import, and completion in the shell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Cli

OPERATOR = """
import torch
import npusim

@npusim.register_op("{name}.halve")
def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2
"""

MODEL = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return torch.ops.{name}.halve(x) + 1

def net():
    return Net().eval(), (torch.ones(3),)
"""


def test_operators_are_registered_by_import(cli: Cli, tmp_path: Path) -> None:
    name = "imported_by_the_command_line"  # PyTorch keeps operators as long as the process lives
    (tmp_path / "operators_of_a_test.py").write_text(OPERATOR.format(name=name))
    (tmp_path / "model_of_a_test.py").write_text(MODEL.format(name=name))
    graph = tmp_path / "net.json"
    extract = ("extract", f"{tmp_path}/model_of_a_test.py:net", "-o", graph)
    assert cli(*extract).code == 2, "nobody has registered the operator yet"
    operators = tmp_path / "operators_of_a_test.py"
    assert cli("--import", operators, *extract).code == 0
    assert f"{name}.halve.default" in cli("info", graph).out


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "no file"), ("1 +", "failed: SyntaxError"), ("import nonesuch", "nonesuch")],
)
def test_what_cannot_be_imported_is_refused(
    cli: Cli, tmp_path: Path, text: str | None, words: str
) -> None:
    module = tmp_path / "broken_module_of_a_test.py"
    if text is not None:
        module.write_text(text)
    cli("--import", module, "doctor").refused(words)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_verbs(shell: str) -> None:
    words = {"COMP_WORDS": "npusim gener", "COMP_CWORD": "gener" if shell == "fish" else "1"}
    given = {**os.environ, "_NPUSIM_COMPLETE": f"{shell}_complete", **words}
    command = [sys.executable, "-m", "npusim.cli"]
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert "generate" in done.stdout, done.stderr
