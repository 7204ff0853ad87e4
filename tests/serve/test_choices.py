"""Several answers to one prompt, and what evaluations read of prompts, over pages.

Nothing of an answer may depend on what is served beside it: choices are those of requests of their
own, to the bit.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.serve.engine import Engine
from npusim.serve.fields import RequestError
from npusim.serve.generation import Generator, Record

from . import model

TEXT = "The quick brown fox jumps over the lazy dog"  # 43 tokens: two full pages, and eleven
Complete = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def generator(folder: Path) -> Iterator[Generator]:
    engine = Engine(folder / "paged.npubin", folder / "random", threads=1)
    made = Generator(engine, "model")
    yield made
    made.close()
    engine.close()


async def answer(generator: Generator, body: Mapping[str, Any]) -> dict[str, Any]:
    return await (await generator.completion(body, Record())).whole()


@pytest.fixture(scope="module")
def complete(generator: Generator) -> Complete:
    return lambda **body: asyncio.run(answer(generator, body))


def chunks(generator: Generator, **body: Any) -> list[dict[str, Any]]:
    async def all_of_them() -> list[dict[str, Any]]:
        generation = await generator.completion({**body, "stream": True}, Record())
        return [json.loads(event) async for event in generation.events()]

    return asyncio.run(all_of_them())


DRAWN: dict[str, Any] = {"max_tokens": 9, "temperature": 1.5, "ignore_eos": True, "logprobs": 2}


class Watched:
    """A native engine, and whom each request followed."""

    def __init__(self, native: Any) -> None:
        self._native = native
        self.followed: list[tuple[int, int]] = []  # (number, the one it followed)

    def submit(self, tokens: list[int], options: dict[str, Any]) -> int:
        number: int = self._native.submit(tokens, options)
        self.followed.append((number, options["follows"]))
        return number

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


def test_choices_follow_the_first_one_of_their_prompt(
    generator: Generator, complete: Complete, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend: Any = generator.engine._backend
    watched = Watched(backend.native)
    monkeypatch.setattr(backend, "native", watched)
    complete(prompt=["q" * 40, "x"], n=3, max_tokens=1)
    (one, before), (other, before_other) = watched.followed[:2]
    assert before == before_other == 0, "the first of each prompt"
    assert [follows for _, follows in watched.followed[2:]] == [one, one, other, other]


def test_choices_are_requests_of_their_own_after_one_prompt(
    generator: Generator, complete: Complete
) -> None:
    body = {"prompt": TEXT, **DRAWN}
    before = generator.engine.stats()["prompt_tokens"]
    many = complete(**body, n=6, seed=3)
    ran = generator.engine.stats()["prompt_tokens"] - before
    # Those that come when the first one has ended find its full pages alone.
    most = len(TEXT) + 5 * (len(TEXT) - 2 * model.PAGE)
    assert len(TEXT) + 5 <= ran <= most, "its full pages are computed once"
    assert many["usage"]["prompt_tokens"] == len(TEXT)
    assert many["usage"]["completion_tokens"] == 6 * 9
    texts = [choice.pop("text") for choice in many["choices"]]
    assert len(set(texts)) == 6
    for index, choice in enumerate(many["choices"]):
        (alone,) = complete(**body, seed=3 + index)["choices"]
        assert alone.pop("text") == texts[index]
        assert {**alone, "index": index} == choice


def test_streamed_choices_come_in_the_order_that_clients_rely_on(
    generator: Generator, complete: Complete
) -> None:
    body = {"prompt": TEXT, **DRAWN, "n": 4, "seed": 5, "echo": True}
    whole = complete(**body)
    *told, usage = chunks(generator, **body, stream_options={"include_usage": True})
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]
    for expected in whole["choices"]:
        mine = [c for chunk in told for c in chunk["choices"] if c["index"] == expected["index"]]
        first, *_, last = mine
        assert first["text"] == TEXT and first["logprobs"]["tokens"] == list(TEXT)
        assert "".join(choice["text"] for choice in mine) == expected["text"]
        assert [c["finish_reason"] for c in mine] == [None] * (len(mine) - 1) + ["length"]
        records = [c["logprobs"] for c in mine if c["logprobs"] is not None]
        for name in ("tokens", "token_logprobs", "top_logprobs"):
            assert [row for of in records for row in of[name]] == expected["logprobs"][name]
        assert last["text"] == ""


def loglikelihoods(answer: dict[str, Any], contexts: list[int]) -> list[tuple[float, bool]]:
    """As lm-evaluation-harness reads the answer to prompts of context and continuation."""
    found = []
    for choice, context in zip(
        sorted(answer["choices"], key=lambda c: c["index"]), contexts, strict=True
    ):
        records = choice["logprobs"]
        told = records["token_logprobs"][context:-1]
        top = records["top_logprobs"][context:-1]
        greedy = all(one == max(of.values()) for one, of in zip(told, top, strict=True))
        found.append((sum(told), greedy))
    return found


def test_evaluations_read_prompts_in_few_steps(
    generator: Generator, complete: Complete, folder: Path
) -> None:
    lm = npusim.LanguageModel.load(folder / "paged.npubin", folder / "random", threads=1)
    greedy = list(lm.generate_tokens(TEXT, max_new_tokens=3, ignore_eos=True))
    context = list(TEXT.encode())
    prompts = [context + greedy, [*context, 1, 2], context, context[:1] + greedy]
    asked: dict[str, Any] = {"max_tokens": 1, "temperature": 0, "logprobs": 1, "echo": True}
    before = generator.engine.stats()["steps"]
    answer = complete(prompt=prompts, **asked)
    assert generator.engine.stats()["steps"] - before < 30, "not a step for each token"
    told = loglikelihoods(answer, [len(context)] * 2 + [40, 1])
    for (total, _), prompt, start in zip(told, prompts, [len(context)] * 2 + [40, 1], strict=True):
        expected = lm.score(prompt).log_probabilities[start - 1 :]
        np.testing.assert_allclose(total, expected.sum(), rtol=1e-4)
    assert told[0][1] and not told[1][1], "whether the continuation is the most probable one"
    for index, prompt in enumerate(prompts):
        (alone,) = complete(prompt=prompt, **asked)["choices"]
        assert {**alone, "index": index} == answer["choices"][index], "beside others, to the bit"
        records = complete(prompt=prompt, **{**asked, "max_tokens": 0})["choices"][0]["logprobs"]
        assert len(records["token_logprobs"]) == len(prompt)
        for name, rows in records.items():
            assert rows == alone["logprobs"][name][: len(prompt)]
        assert records["token_logprobs"][0] is None and records["top_logprobs"][0] is None


def test_prompts_are_told_by_their_own_field(complete: Complete) -> None:
    body: dict[str, Any] = {"prompt": TEXT, "max_tokens": 2, "temperature": 0, "n": 2}
    echoed = complete(**body, echo=True, logprobs=2)["choices"][0]["logprobs"]
    answer = complete(**body, prompt_logprobs=3, logprobs=1)
    for choice in answer["choices"]:
        assert not choice["text"].startswith(TEXT)
        assert len(choice["logprobs"]["tokens"]) == 2, "the answer's alone"
        first, *rows = choice["prompt_logprobs"]
        assert first is None and len(rows) == len(TEXT) - 1
        for place, row in enumerate(rows, 1):
            mine = row[str(ord(TEXT[place]))]
            assert mine["logprob"] == echoed["token_logprobs"][place]
            assert mine["decoded_token"] == TEXT[place] and len(row) in (3, 4)
            ranks = sorted(one["rank"] for one in row.values() if one["rank"] is not None)
            assert ranks == [1, 2, 3]
    assert "prompt_logprobs" not in complete(**body)["choices"][0]


def test_the_most_probable_answers_are_told(complete: Complete) -> None:
    body = {"prompt": [TEXT, "x"], **DRAWN, "seed": 1}
    every = complete(**body, n=5)["choices"]
    best = complete(**body, n=2, best_of=5)
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    assert best["usage"]["completion_tokens"] == 2 * 5 * 9, "those that are not told count"
    for place in range(2):
        group = every[place * 5 : place * 5 + 5]
        group.sort(key=lambda c: -float(np.mean(c["logprobs"]["token_logprobs"])))
        expected = [choice["text"] for choice in group[:2]]
        assert [c["text"] for c in best["choices"][2 * place : 2 * place + 2]] == expected
    silent = complete(**{**body, "logprobs": None}, n=2, best_of=5)["choices"]
    assert [c["text"] for c in silent] == [c["text"] for c in best["choices"]]
    assert all(choice["logprobs"] is None for choice in silent)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"n": 3, "best_of": 2}, "best_of is 2, it must be n or more"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"best_of": 129}, "best_of"),
        ({"prompt": ["x"] * 65, "best_of": 2}, "best_of"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_what_makes_no_sense_is_refused(
    complete: Complete, body: dict[str, Any], words: str
) -> None:
    with pytest.raises(RequestError, match=words):
        complete(**{"prompt": "x", "max_tokens": 1, **body})


def test_a_chat_tells_nothing_of_its_prompt(generator: Generator) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "prompt_logprobs": 1}
    with pytest.raises(RequestError, match="/v1/completions"):
        asyncio.run(generator.chat(json.loads(json.dumps(body)), Record()))
