"""Steps filled up to sizes that there is code for, and tokens that the device has chosen."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import npusim
from npusim import _runtime
from npusim.codegen.step_sizes import step_sizes
from npusim.program.program import CompiledProgram
from npusim.program.sized_command import PREPARED
from npusim.runtime.native import native_program
from tests.serve.test_step_method import SIZES, VOCAB, decoder, text

Answers = list[tuple[list[int], str]]


@pytest.fixture(scope="module")
def made() -> tuple[CompiledProgram, dict[str, torch.Tensor]]:
    model = decoder("grouped")
    module = npusim.extract_llm(model, max_context=96, prefill_chunk=8, serve=SIZES)
    return npusim.compile(module), {k: v.clone() for k, v in model.state_dict().items()}


def served(program: CompiledProgram, weights: dict[str, torch.Tensor], **asked: Any) -> Answers:
    """Returns tokens of six requests, and how each ended."""
    native, device = native_program(program), npusim.Device("cpu", threads=1)
    loaded = npusim.load_weights(weights, native, device, check_nan=False)
    engine = _runtime.Engine(native, device, loaded, prefix_cache=False)
    options = {"max_tokens": 9, "ignore_eos": True, **asked}
    numbers = [engine.submit(text(seed, 5 + 11 * seed), options) for seed in range(6)]
    found: dict[int, tuple[list[int], str]] = {number: ([], "") for number in numbers}
    while not all(ending for _, ending in found.values()):
        for number, tokens, _, _, ending, error, _ in engine.poll(10):
            found[number] = (found[number][0] + tokens, ending or (str(error) if error else ""))
    engine.close()
    return [found[number] for number in numbers]


def filled(program: CompiledProgram) -> CompiledProgram:
    """Returns the program as if it had code for two sizes alone."""
    sizes = [{"tokens": 40, "requests": 4}, {"tokens": 7, "requests": 4}]
    return dataclasses.replace(program, metadata={**program.metadata, PREPARED: {"step": sizes}})


def test_rows_that_fill_a_step_up_change_nothing(made: Any) -> None:
    program, weights = made
    plain = served(program, weights)
    assert served(filled(program), weights) == plain
    assert served(program, weights, logprobs=0) == plain  # from all scores, on the host
    drawn = {"temperature": 0.9, "seed": 3}
    assert served(filled(program), weights, **drawn) == served(program, weights, **drawn)


def test_a_token_without_a_score_is_never_the_best(made: Any) -> None:
    program, weights = made
    broken = {**weights, "lm_head.weight": weights["lm_head.weight"].clone()}
    broken["lm_head.weight"][7] = torch.nan
    found = served(program, broken)
    assert found == served(program, broken, logprobs=0)
    assert all(7 not in tokens and len(tokens) == 9 for tokens, _ in found)
    broken["lm_head.weight"][:] = torch.nan
    assert all("no token can be chosen" in ending for _, ending in served(program, broken))


def test_steps_have_code_for_powers_of_two(made: Any) -> None:
    program, _ = made
    counts = [(size["tokens"], size["requests"]) for size in step_sizes(program)]
    assert counts == [(1, 1), (2, 2), (4, 4), (8, 4), (16, 4), (32, 4)]
    assert VOCAB > 7
    assert step_sizes(dataclasses.replace(program, metadata={})) == []
