"""Language models, extracted, compiled and run natively, against `transformers` (decoding.py)."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import transformers
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


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 100.0,
    "factor": 4.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 8.0],
    "original_max_position_embeddings": 24,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 2.0}
SMALL = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 96}


@pytest.mark.parametrize("rotation", [LONGROPE, DYNAMIC], ids=lambda r: r["rope_type"])
def test_frequencies_that_go_by_the_length_are_those_of_the_context(rotation) -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, **HEADS, rope_parameters=rotation)
    model = transformers.LlamaForCausalLM(config).eval()
    tokens = torch.randint(3, 99, (1, 24))
    with torch.no_grad():
        want = model(tokens).logits[0, -1]
        model(torch.zeros((1, 90), dtype=torch.int64))  # which leaves the frequencies of that
    module = npusim.extract_llm(model, max_context=24, prefill_chunk=8)
    assert all(c["axis"] is not None for c in module.facts["language_model"]["caches"])
    lm = npusim.LanguageModel.load(npusim.compile(module), model.state_dict())
    session = lm.new_session()
    session.append(tokens[0].tolist())
    np.testing.assert_allclose(session.logits, want, atol=1e-5)


def test_what_the_length_of_a_text_changes_within_the_context_is_refused() -> None:
    config = transformers.LlamaConfig(**SMALL, **HEADS, rope_parameters=LONGROPE)
    model = transformers.LlamaForCausalLM(config).eval()
    with pytest.raises(npusim.Error, match=r"more than 24 tokens .*\(longrope\)"):
        npusim.extract_llm(model, max_context=25, prefill_chunk=8)


def test_attention_to_later_tokens_is_refused() -> None:
    config = transformers.Gemma3TextConfig(**SMALL, **HEADS, use_bidirectional_attention=True)
    with pytest.raises(npusim.Error, match="attends to tokens that come later"):
        npusim.extract_llm(transformers.Gemma3ForCausalLM(config).eval(), max_context=16)


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
