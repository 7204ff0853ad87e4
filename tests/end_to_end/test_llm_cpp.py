"""examples/llm_cpp: the native program says what Python says.

The C++ tests' build makes the program; `make test` has built it by the time this runs.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from safetensors.numpy import save_file

import npusim
from tests.runtime import toy_language_model as toy

_ROOT = Path(__file__).resolve().parents[2]
PROMPT = [3, 1, 4, 1, 5, 9]


def _program() -> Path:
    given = os.environ.get("NPUSIM_LLM_CPP")
    found = [Path(given)] if given else sorted(_ROOT.glob("build/*/examples/llm_cpp/llm_cpp"))
    if not found:
        pytest.skip("llm_cpp is not built: cmake -S . -B build/test -DNPUSIM_TESTS=ON, or `make`")
    return found[-1]


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(_program()), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={})


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    toy.program().save(tmp_path / "model.npubin")
    save_file(toy.weights(), tmp_path / "model.safetensors")
    return tmp_path / "model.npubin", tmp_path


@pytest.mark.parametrize(("temperature", "seed"), [(0, 0), (1.5, 7), (1.5, 8)])
def test_it_makes_the_tokens_python_makes(
    files: tuple[Path, Path], temperature: float, seed: int
) -> None:
    model = npusim.LanguageModel.load(*files)
    made = model.generate_tokens(PROMPT, max_new_tokens=9, temperature=temperature, seed=seed)
    text = ",".join(map(str, PROMPT))
    outcome = _run(*files, text, 9, temperature, seed, 2)
    assert outcome.returncode == 0, outcome.stderr
    assert [int(token) for token in outcome.stdout.split()] == list(made)
    assert "tokens (" in outcome.stderr


def test_it_refuses_what_is_wrong(files: tuple[Path, Path], tmp_path: Path) -> None:
    program, weights = files
    for arguments, words in [
        ((), "usage"),
        ((tmp_path / "none", weights, "1"), "none"),
        ((program, tmp_path / "none", "1"), "none"),
        ((program, weights, "1,x"), "a token is a number in range, not 'x'"),
        ((program, weights, "9" * 30), "a token is a number"),
        ((program, weights, "1", "2.5"), "NEW_TOKENS is a number"),
        ((program, weights, "1", "2", "hot"), "TEMPERATURE is a number"),
        ((program, weights, "99"), "Token 99 is outside the vocabulary"),
        ((program, weights, "1", 5, -1), "temperature is -1"),
    ]:
        outcome = _run(*arguments)
        assert outcome.returncode == 2 and words in outcome.stderr, outcome.stderr
        assert outcome.stdout == ""
