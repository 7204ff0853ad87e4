"""Language models, extracted, compiled and run natively, against `transformers`.

float32 must give transformers' greedy tokens one for one. bfloat16 may choose the other of two
tokens that are nearly as likely: its logits are compared along the tokens it chose, and what it
chose must be within that error of the best.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import npusim
from tests.end_to_end.architectures import CONFIGURATIONS, VOCAB, small_model

CONTEXT, CHUNK, NEW = 400, 128, 12
PROMPTS = (1, 7, 128, 129, 300)
BFLOAT16_TOLERANCE = 2e-2  # of the largest logit


@functools.lru_cache(maxsize=2)
def loaded(name: str, dtype: torch.dtype) -> tuple[nn.Module, npusim.LanguageModel]:
    model = small_model(name, dtype)
    program = npusim.compile(npusim.extract_llm(model, max_context=CONTEXT, prefill_chunk=CHUNK))
    return model, npusim.LanguageModel.load(program, model.state_dict(), threads=2)


def prompt_of(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(3, VOCAB, (length,), generator=generator).tolist()


def logits_along(model: nn.Module, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].float()


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_float32_gives_the_tokens_of_transformers(name: str) -> None:
    model, lm = loaded(name, torch.float32)
    for length in PROMPTS:
        prompt = prompt_of(length)
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=None
        )[0, length:].tolist()
        actual = list(lm.generate_tokens(prompt, max_new_tokens=NEW, ignore_eos=True))
        assert actual == expected, f"{name}, prompt of {length}"


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_bfloat16_gives_the_logits_of_transformers(name: str) -> None:
    model, lm = loaded(name, torch.bfloat16)
    for length in PROMPTS:
        session = lm.new_session()
        prompt = prompt_of(length)
        session.append(prompt)
        logits, tokens = [session.logits], []
        for _ in range(NEW):
            tokens.append(int(logits[-1].argmax()))
            session.append(tokens[-1:])
            logits.append(session.logits)
        expected = logits_along(model, prompt + tokens)[length - 1 :]
        allowed = BFLOAT16_TOLERANCE * float(expected.abs().max())
        for step, (want, got) in enumerate(zip(expected.numpy(), logits, strict=True)):
            assert np.abs(want - got).max() <= allowed, f"{name}, prompt of {length}, step {step}"
            assert want.max() - want[got.argmax()] <= 2 * allowed


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
    program = npusim.compile(npusim.extract_llm(model, max_context=CONTEXT, prefill_chunk=CHUNK))
    other = npusim.LanguageModel.load(program, model.state_dict(), threads=threads)
    sessions = [lm.new_session(), other.new_session()]
    for session in sessions:
        session.append(prompt_of(150))
    np.testing.assert_array_equal(sessions[0].logits, sessions[1].logits)
