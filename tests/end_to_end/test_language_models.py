"""Language models, extracted, compiled and run natively, against `transformers` (decoding.py)."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

import npusim
from tests.end_to_end.architectures import CONFIGURATIONS, small_model
from tests.end_to_end.decoding import (
    CONTEXT,
    PROMPTS,
    check_logits,
    check_tokens,
    compiled,
    logits_along,
    prompt_of,
)


@functools.lru_cache(maxsize=2)
def loaded(name: str, dtype: torch.dtype) -> tuple[nn.Module, npusim.LanguageModel]:
    model = small_model(name, dtype)
    return model, npusim.LanguageModel.load(compiled(model), model.state_dict(), threads=2)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_float32_gives_the_tokens_of_transformers(name: str) -> None:
    for length in PROMPTS:
        check_tokens(*loaded(name, torch.float32), length)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_bfloat16_gives_the_logits_of_transformers(name: str) -> None:
    for length in PROMPTS:
        check_logits(*loaded(name, torch.bfloat16), length)


def test_long_prompts_run_in_larger_chunks() -> None:
    model = small_model("qwen2-tied", torch.float32)
    module = npusim.extract_llm(model, max_context=CONTEXT, prefill_chunk=(96, 16, 16))
    assert list(module.methods) == ["prefill", "prefill_96", "decode", "generate"]
    assert module.facts["language_model"]["larger_chunks"] == [96]
    lm = npusim.LanguageModel.load(npusim.compile(module), model.state_dict(), threads=2)
    for length in (7, 60, 200):
        check_tokens(model, lm, length)


@pytest.mark.parametrize("chunks", [0, (), (16, -1)])
def test_chunks_that_make_no_sense_are_refused(chunks: int | tuple[int, ...]) -> None:
    model = small_model("qwen2-tied", torch.float32)
    with pytest.raises(npusim.Error, match="all are 1 or more"):
        npusim.extract_llm(model, max_context=CONTEXT, prefill_chunk=chunks)


def test_forks_and_rewinds_give_what_a_fresh_session_gives() -> None:
    _, lm = loaded("qwen2-tied", torch.float32)
    shared, ends = prompt_of(140), ([5, 6, 7], [9], [11, 12, 13, 14])
    session = lm.new_session()
    session.append(shared)
    forks = [session.fork() for _ in ends]
    for fork, end in zip(forks, ends, strict=True):
        got = list(fork.generate_tokens(end, max_new_tokens=6, ignore_eos=True))
        want = list(lm.generate_tokens(shared + end, max_new_tokens=6, ignore_eos=True))
        assert got == want
    session.append(prompt_of(50))
    session.rewind(len(shared))
    again = list(session.generate_tokens(ends[0], max_new_tokens=6, ignore_eos=True))
    fresh = list(lm.generate_tokens(shared + ends[0], max_new_tokens=6, ignore_eos=True))
    assert again == fresh


def test_generation_runs_to_the_end_of_the_context_and_no_further() -> None:
    model, lm = loaded("llama3", torch.float32)
    prompt = prompt_of(CONTEXT - 5)
    session = lm.new_session()
    session.append(prompt)  # the last tokens no longer fill a chunk inside the context
    tokens = []
    for _ in range(5):
        tokens.append(int(session.logits.argmax()))
        session.append(tokens[-1:])
    expected = logits_along(model, prompt + tokens)
    assert tokens == expected[len(prompt) - 1 : -1].argmax(-1).tolist()
    with pytest.raises(npusim.Error, match=str(CONTEXT)):
        session.append([3])


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_do_not_change_a_bit(threads: int) -> None:
    model, lm = loaded("qwen3", torch.bfloat16)
    other = npusim.LanguageModel.load(compiled(model), model.state_dict(), threads=threads)
    sessions = [lm.new_session(), other.new_session()]
    for session in sessions:
        session.append(prompt_of(150))
    np.testing.assert_array_equal(sessions[0].logits, sessions[1].logits)
