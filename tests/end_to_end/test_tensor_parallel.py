"""A decoder split among ranks, from the model to its tokens: prefill, decode and generate over a
cache of which each rank has its heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import npusim
from npusim.errors import Error, TargetConstraintError
from tests.cli.conftest import Cli, cli  # noqa: F401

PROMPT = [3, 14, 15, 9, 26, 5, 35, 8, 9, 7]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A Qwen of four query heads in two groups, biases, and tied embeddings."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        tie_word_embeddings=True, initializer_range=0.3,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config).eval()
    folder = tmp_path_factory.mktemp("qwen")
    module = npusim.extract_llm(model, max_context=48, prefill_chunk=8)
    module.save(folder / "qwen.json")
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if k != "lm_head.weight"}
    save_file(weights, folder / "model.safetensors")
    return module, folder


Compiled = Callable[..., npusim.CompiledProgram]


@pytest.fixture(scope="module")
def compiled(decoder: tuple[Any, Path]) -> Compiled:
    """Compiles the decoder for so many ranks, once for all tests."""
    return cache(partial(_compiled, decoder[0]))


def _compiled(module: Any, ranks: int, **options: Any) -> npusim.CompiledProgram:
    return npusim.compile(module, tensor_parallel=ranks, **options)


def loaded(decoder: tuple[Any, Path], program: npusim.CompiledProgram) -> npusim.LanguageModel:
    return npusim.LanguageModel.load(program, decoder[1] / "model.safetensors", threads=2)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_logits_and_tokens(decoder: Any, compiled: Compiled, ranks: int) -> None:
    split = loaded(decoder, compiled(ranks))
    sessions = [model.new_session() for model in (loaded(decoder, compiled(1)), split)]
    for session in sessions:
        session.append(PROMPT)
    a, b = (session.logits for session in sessions)
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4 * np.abs(a).max())
    tokens = [list(s.generate_tokens(max_new_tokens=20)) for s in sessions]
    assert tokens[0] == tokens[1]
    assert tokens[1] == list(split.generate_tokens(PROMPT, max_new_tokens=20))


def test_every_matrix_is_split(decoder: Any, compiled: Compiled) -> None:
    facts: Any = compiled(2).metadata["tensor_parallel"]
    assert facts["ranks"] == 2 and not facts["whole"]
    how = {key.split(".")[-2]: how for key, how in facts["split"].items()}
    rows = dict.fromkeys(("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"), "rows")
    columns = dict.fromkeys(("o_proj", "down_proj"), "columns")
    assert how == {**rows, **columns, "embed_tokens": "rows, gathered"}


def test_heads_that_ranks_would_cut_are_whole(decoder: Any, compiled: Compiled) -> None:
    program = compiled(3)
    facts: Any = program.metadata["tensor_parallel"]
    assert {key.split(".")[-2] for key in facts["split"]} >= {"gate_proj", "up_proj", "down_proj"}
    shapes = {tuple(s["shape"]) for s in program.metadata["states"] if "cache" in s["name"]}
    assert shapes == {(1, 2, 48, 16)}


def test_a_cache_has_the_heads_of_a_rank(decoder: Any, compiled: Compiled) -> None:
    for ranks, heads in ((2, 1), (4, 1)):
        program = compiled(ranks)
        shapes = {tuple(s["shape"]) for s in program.metadata["states"] if "cache" in s["name"]}
        assert shapes == {(1, heads, 48, 16)}


def test_sessions_fork_and_go_back(decoder: Any, compiled: Compiled) -> None:
    session = loaded(decoder, compiled(2)).new_session()
    session.append(PROMPT)
    fork = session.fork()
    one = list(session.generate_tokens(max_new_tokens=6))
    assert list(fork.generate_tokens(max_new_tokens=6)) == one
    session.rewind(len(PROMPT))
    assert list(session.generate_tokens(max_new_tokens=6)) == one


def test_sessions_of_ranks_are_not_saved(decoder: Any, compiled: Compiled, tmp_path: Path) -> None:
    session = loaded(decoder, compiled(2)).new_session()
    session.append(PROMPT)
    with pytest.raises(Error, match="neither read, saved nor set"):
        session.save(tmp_path / "session")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("scheme", ["int8", "int4-g32"])
def test_quantized_weights(decoder: Any, compiled: Compiled, scheme: str) -> None:
    sessions = [loaded(decoder, compiled(n, quantize=scheme)).new_session() for n in (1, 2)]
    for session in sessions:
        session.append(PROMPT)
    a, b = (session.logits for session in sessions)
    # int8: each rank's part of a row has a scale of its own. int4: groups are the same.
    np.testing.assert_allclose(a, b, atol=(0.05 if scheme == "int8" else 1e-3) * np.abs(a).max())


def test_bfloat16(decoder: Any, compiled: Compiled) -> None:
    sessions = [loaded(decoder, compiled(n, precision="bfloat16")).new_session() for n in (1, 2)]
    for session in sessions:
        session.append(PROMPT)
    a, b = (session.logits for session in sessions)
    np.testing.assert_allclose(a, b, atol=0.05 * np.abs(a).max())


def test_from_the_command_line(decoder: Any, cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    made = tmp_path / "qwen.npubin"
    outcome = cli("compile", decoder[1] / "qwen.json", "--tensor-parallel", 2, "-o", made)
    assert outcome.code == 0 and "2 ranks: matrices split 4 by columns" in outcome.out
    assert cli("compile", decoder[1] / "qwen.json", "--tensor-parallel", 0).code == 2
    outcome = cli("info", made)
    assert outcome.code == 0


def test_more_ranks_than_there_are_columns(decoder: Any, compiled: Compiled) -> None:
    with pytest.raises(TargetConstraintError, match="Nothing in this model can be split"):
        compiled(7)
