"""Sessions of a language model whose state is a recurrence: what one cannot undo is done anew.

The model is a few lines, so that NumPy says exactly what each state must be: the logits after a
text are the sum of table[token] over it, halved for each token that follows.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.frontends.generate_method import generate_method
from npusim.frontends.torch_export import extract_ir
from npusim.ir.graph import Graph
from npusim.ir.module import Module

VOCABULARY, CONTEXT, CHUNKS = 32, 24, (4, 8)
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]
TABLE = np.random.default_rng(0).integers(-9, 9, (VOCABULARY, VOCABULARY)).astype(np.float32)


class Decay(nn.Module):
    """Appends its tokens, all of which count, to the recurrent state."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(VOCABULARY, VOCABULARY))
        self.register_buffer("state", torch.zeros(VOCABULARY), persistent=False)
        self.register_buffer("position", torch.zeros(1, dtype=torch.int64), persistent=False)

    def forward(self, tokens: Tensor) -> dict[str, Tensor]:
        state = torch.where(self.position == 0, torch.zeros_like(self.state), self.state)
        for token in self.table[tokens[0]]:
            state = 0.5 * state + token
        self.state.copy_(state)
        self.position.add_(tokens.shape[1])
        return {"logits": state[None, None]}


class Prefill(Decay):
    """The same, with a length that is always the whole chunk."""

    def forward(self, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        scores = super().forward(tokens)["logits"]
        return {"logits": scores + 0 * (length - tokens.shape[1])}


@functools.cache
def graphs() -> dict[str, Graph]:
    graphs = {}
    for name, chunk in zip(("prefill", "prefill_8"), CHUNKS, strict=True):
        arguments = torch.zeros(1, chunk, dtype=torch.int64), torch.ones(1, dtype=torch.int64)
        graphs[name] = extract_ir(Prefill().eval(), arguments)
    graphs["decode"] = extract_ir(Decay().eval(), (torch.zeros(1, 1, dtype=torch.int64),))
    graphs["generate"] = generate_method(graphs["decode"], "generate", CONTEXT, "position")
    return graphs


def module(**facts: object) -> Module:
    known: dict[str, object] = {
        "max_context": CONTEXT,
        "prefill_chunk": CHUNKS[0],
        "larger_chunks": [CHUNKS[1]],
        "vocab_size": VOCABULARY,
        "eos_token_ids": [],
        "caches": [],
        "recurrent": ["state"],
        "position": "position",
        "token": "token",
        "history": "history",
    }
    return Module("decay", graphs(), {"language_model": known | facts})


@pytest.fixture(scope="module")
def model() -> npusim.LanguageModel:
    return npusim.LanguageModel.load(npusim.compile(module()), {"table": torch.from_numpy(TABLE)})


def logits(tokens: list[int]) -> np.ndarray:
    state = np.zeros(VOCABULARY, np.float32)
    for token in tokens:
        state = np.float32(0.5) * state + TABLE[token]
    return state


def greedy(tokens: list[int], count: int) -> list[int]:
    text = list(tokens)
    for _ in range(count):
        text.append(int(logits(text).argmax()))
    return text[len(tokens) :]


def check(session: npusim.LanguageSession, tokens: list[int]) -> None:
    assert session.tokens == tokens
    np.testing.assert_array_equal(session.logits, logits(tokens))


@pytest.mark.parametrize("count", range(1, CONTEXT + 1))
def test_no_padding_reaches_the_state(model: npusim.LanguageModel, count: int) -> None:
    tokens = np.random.default_rng(count).integers(0, VOCABULARY, count).tolist()
    session = model.new_session()
    session.append(tokens)
    check(session, tokens)
    session.reset()
    session.append(tokens[:1])
    check(session, tokens[:1])


@pytest.mark.parametrize("to", range(len(TEXT) + 1))
@pytest.mark.parametrize("generated", [0, 3])
def test_rewinding_begins_anew(model: npusim.LanguageModel, to: int, generated: int) -> None:
    session = model.new_session()
    session.append(TEXT)
    list(session.generate_tokens(max_new_tokens=generated))
    session.rewind(to)
    assert session.tokens == TEXT[:to]
    if to:
        check(session, TEXT[:to])
    session.rewind(max(to - 1, 0))
    session.append([7, 8])
    check(session, [*TEXT[: max(to - 1, 0)], 7, 8])


@pytest.mark.parametrize("prompt", [[3], TEXT[:2], TEXT])
def test_generation_after_every_kind_of_call(
    model: npusim.LanguageModel, prompt: list[int]
) -> None:
    session = model.new_session()
    text = list(prompt)
    assert list(session.generate_tokens(prompt, max_new_tokens=4)) == greedy(text, 4)
    text += greedy(text, 4)
    session.rewind(2)
    text = text[:2] if len(text) > 2 else text
    assert list(session.generate_tokens(max_new_tokens=3)) == greedy(text, 3)
    text += greedy(text, 3)
    session.append([9])
    text.append(9)
    assert list(session.generate_tokens([1, 2], max_new_tokens=2)) == greedy([*text, 1, 2], 2)
    drawn = model.new_session()
    again = model.new_session()
    again.append(TEXT[:1])
    again.rewind(0)
    options = {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.5, "max_new_tokens": 8}
    assert list(drawn.generate_tokens(prompt, **options)) == list(
        again.generate_tokens(prompt, **options)
    )


def test_forks_are_independent(model: npusim.LanguageModel) -> None:
    session = model.new_session()
    session.append(TEXT)
    fork = session.fork()
    fork.append([1])
    check(session, TEXT)
    session.append([2])
    check(fork, [*TEXT, 1])
    check(session, [*TEXT, 2])
    session.rewind(5)
    late = session.fork()  # of a session whose state is of other tokens
    check(late, TEXT[:5])


@pytest.mark.parametrize("change", ["none", "waiting", "rewound", "empty"])
def test_saved_sessions(model: npusim.LanguageModel, tmp_path: Path, change: str) -> None:
    session = model.new_session()
    tokens = [] if change == "empty" else list(TEXT)
    session.append(tokens)
    if change == "waiting":
        tokens += list(session.generate_tokens(max_new_tokens=1))
    if change == "rewound":
        session.rewind(6)
        tokens = tokens[:6]
    session.save(tmp_path / "s")
    other = model.new_session()
    other.append([4, 4])
    other.load(tmp_path / "s")
    assert other.tokens == tokens
    if tokens:
        check(other, tokens)
    other.append([8])
    check(other, [*tokens, 8])
    fed = json.loads((tmp_path / "s").read_bytes()[8:].split(b"}}")[0] + b"}}")
    assert fed["__metadata__"]["fed"] == str(0 if change in ("rewound", "empty") else len(TEXT))


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"recurrent": []}, "neither its position, a cache nor recurrent"),
        ({"recurrent": ["state", "state"]}, "'state' is another one, too"),
        ({"recurrent": ["position"]}, "'position' is another one, too"),
        ({"recurrent": ["gone"]}, "no state 'gone'"),
        ({"recurrent": ["state", "token"]}, "is another one, too"),
    ],
)
def test_facts_that_contradict_the_program_are_refused(
    facts: dict[str, object], words: str
) -> None:
    with pytest.raises(npusim.ProgramFormatError, match=words):
        program = npusim.compile(module(**facts))
        npusim.LanguageModel.load(program, {"table": torch.from_numpy(TABLE)})
