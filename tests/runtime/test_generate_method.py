"""The method `generate`: sessions behave as without it, and choose the same tokens."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from tests.runtime import toy_language_model as toy

TABLE = toy.weights()["table"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"repetition_penalty": 3.0},
    {"temperature": 2.0, "seed": 5},
    {"temperature": 5.0, "top_k": 6, "seed": 6},
    {"temperature": 4.0, "top_p": 0.7, "min_p": 0.05, "seed": 7},
    {"temperature": 3.0, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.4, "seed": 8},
]
Both = tuple[npusim.LanguageSession, npusim.LanguageSession]


@pytest.fixture(scope="module")
def models() -> tuple[npusim.LanguageModel, npusim.LanguageModel]:
    """The model with and without the method."""
    kept, plain = (
        npusim.LanguageModel.load(toy.program(generates=generates), {"table": TABLE})
        for generates in (True, False)
    )
    return kept, plain


@pytest.fixture
def both(models: tuple[npusim.LanguageModel, npusim.LanguageModel]) -> Both:
    return models[0].new_session(), models[1].new_session()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("prompt", [[3], [3, 1], [3, 1, 4, 1, 5, 9, 2]], ids=len)
def test_it_chooses_what_the_sampler_does(
    both: Both, prompt: list[int], options: dict[str, Any]
) -> None:
    one, other = (list(s.generate_tokens(prompt, ignore_eos=True, **options)) for s in both)
    assert one == other and len(one) == toy.CONTEXT - len(prompt)


def _operations(rng: random.Random, folder: Path) -> list[Callable[[Both], Any]]:
    """Things to do with both sessions alike; each returns what they showed."""
    options = rng.choice(OPTIONS)
    tokens = [rng.randrange(toy.VOCABULARY) for _ in range(rng.randint(1, 3))]
    count = rng.randint(1, 6)

    def append(both: Both) -> Any:
        for session in both:
            if session.position + len(tokens) > toy.CONTEXT:
                session.reset()
            session.append(tokens)

    def generate(both: Both) -> Any:
        made = []
        for session in both:
            if session.position in (0, toy.CONTEXT):
                session.reset()
                session.append(tokens)
            generation = session.generate_tokens(max_new_tokens=9, ignore_eos=True, **options)
            made.append([token for _, token in zip(range(count), generation, strict=False)])
        return made

    def rewind(both: Both) -> Any:
        for session in both:
            session.rewind(max(session.position - count, 0))

    def save(both: Both) -> Any:
        for number, session in enumerate(both):
            session.save(folder / f"{number}")
            session.reset()
            session.load(folder / f"{number}")

    def logits(both: Both) -> Any:
        return [session.logits.tolist() for session in both if session.position]

    return [append, generate, generate, generate, rewind, save, logits]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_is_done_sessions_stay_alike(both: Both, seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    for _ in range(40):
        seen = rng.choice(_operations(rng, tmp_path))(both)
        if seen and len(seen) == 2:
            np.testing.assert_allclose(seen[0], seen[1], rtol=1e-6)
        if rng.random() < 0.2:
            one, other = (session.fork() for session in both)
            both = (one, other)
        assert both[0].tokens == both[1].tokens


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_scores_that_are_no_numbers_are_an_error_and_change_nothing(
    options: dict[str, Any],
) -> None:
    table = TABLE.copy()
    table[9] = np.nan
    session = npusim.LanguageModel.load(toy.program(generates=True), {"table": table}).new_session()
    session.append([3, 1, 9, 2])
    session.rewind(3)  # the last one waits
    with pytest.raises(npusim.Error, match="all 32 scores are NaN"):
        list(session.generate_tokens(max_new_tokens=2, **options))
    assert session.tokens == [3, 1, 9]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"token": "position"}, "another one, too"),
        ({"token": "cache"}, "no single int64"),
        ({"history": "token"}, "no room for 24 tokens"),
        ({"history": "nothing"}, "no state 'nothing'"),
        ({"token": ""}, "nor generate's"),
    ],
)
def test_metadata_that_contradicts_the_program(facts: dict[str, str], message: str) -> None:
    with pytest.raises(npusim.Error, match=message):
        npusim.LanguageModel.load(toy.program(facts, generates=True), {"table": TABLE})


def test_a_program_runs_it_without_a_session() -> None:
    session = npusim.load(toy.program(generates=True), {"table": TABLE}, method="generate")
    (chosen,) = session(np.array([0.0, 0, 1, 0, 1]), np.array([0]))
    assert int(np.asarray(chosen)[0]) == int(TABLE[0].argmax())  # after token 0, at position 0
