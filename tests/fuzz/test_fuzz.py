"""A short run of every fuzzer; `make fuzz-files` and docs/fuzzing.md have the long ones."""

from __future__ import annotations

import json
from random import Random

import pytest

from npusim.cli.app import npusim as cli
from tests.fuzz.harness import TARGETS, Finding, Target, trial

# How many seeds every run takes, and how many `make long`.
RUNS = {
    "graph": (100, 400),
    "module": (100, 100),
    "text": (150, 150),
    "pytorch-ir": (10, 30),
    "plan": (100, 100),
    "onnx": (50, 200),
    "arguments": (30, 80),
}


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        *(pytest.param(name, range(few), id=name) for name, (few, _) in RUNS.items()),
        *(
            pytest.param(name, range(many), id=f"{name}-long", marks=pytest.mark.long)
            for name, (few, many) in RUNS.items()
            if few < many
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_mutated_files_are_refused_or_run(name: str, seeds: range) -> None:
    if name == "pytorch-ir":
        pytest.importorskip("torch_ir")
    verdicts = {trial(TARGETS[name], seed) for seed in seeds}
    assert "refused" in verdicts and "ran" in verdicts


def test_command_lines_are_of_every_verb() -> None:
    """But of those that take long, which the long runs have."""
    seeds = range(40 * len(cli.commands))  # making a line takes no time
    lines = [json.loads(TARGETS["arguments"].make(Random(seed))) for seed in seeds]
    verbs = {word for line in lines for word in line if word in cli.commands}
    assert verbs >= set(cli.commands) - {"demo", "doctor", "selftest", "metal-selftest"}


# Files that were neither refused nor run as PyTorch runs them, when they were found.
FOUND = {
    "graph": (14186, 18143, 23820, 30964, 35297, 35418, 45676, 54649, 64254, 1003148, 1006050),
    "onnx": (1004109,),
    "arguments": (2001291,),
}


@pytest.mark.parametrize(
    ("name", "seed"), [(name, seed) for name, seeds in FOUND.items() for seed in seeds]
)
@pytest.mark.filterwarnings("ignore")
def test_what_was_found_stays_mended(name: str, seed: int) -> None:
    trial(TARGETS[name], seed)


def test_the_harness_finds_what_escapes() -> None:
    def fail(path: object) -> str:
        raise KeyError("dim")

    with pytest.raises(Finding, match="KeyError"):
        trial(Target(lambda chance: b"", fail, ".json"), 0)
