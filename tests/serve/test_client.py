"""What OpenAI's own client gets from a server process: answers, streams, records, refusals."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

import npusim

from . import model
from .conftest import Running, Start

TURN = [{"role": "user", "content": "x"}]
END = 256 + model.SPECIAL.index(model.END)


def client(server: Running, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=60)


def complete(server: Running, prompt: Any, **options: Any) -> Any:
    return client(server).completions.create(model="model", prompt=prompt, **options)


def chat(server: Running, **options: Any) -> Any:
    return client(server).chat.completions.create(model="model", messages=TURN, **options)


def test_a_prompt_that_is_too_long_has_the_code_that_clients_know(spoken: Running) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        complete(spoken, "0" * model.CONTEXT)
    assert error.value.code == "context_length_exceeded"


def test_a_chat(spoken: Running) -> None:
    answer = chat(spoken)
    assert answer.object == "chat.completion" and answer.model == "model"
    (choice,) = answer.choices
    assert choice.message.content == model.SPOKEN and choice.message.role == "assistant"
    assert choice.finish_reason == "stop" and choice.index == 0
    text = "<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"
    for special in model.SPECIAL:
        text = text.replace(special, "!")
    assert answer.usage.prompt_tokens == len(text)
    assert answer.usage.completion_tokens == len(model.SPOKEN.encode()) + 1


def test_a_streamed_chat_comes_in_the_order_that_clients_rely_on(spoken: Running) -> None:
    chunks = list(chat(spoken, stream=True, stream_options={"include_usage": True}))
    assert len({chunk.id for chunk in chunks}) == 1
    first, *middle, last, usage = chunks
    assert first.choices[0].delta.role == "assistant" and first.choices[0].delta.content == ""
    deltas = [chunk.choices[0].delta.content for chunk in middle]
    assert all(deltas) and "".join(deltas) == model.SPOKEN
    assert all(chunk.choices[0].finish_reason is None for chunk in (first, *middle))
    assert last.choices[0].finish_reason == "stop" and last.choices[0].delta.content is None
    assert usage.choices == [] and usage.usage.completion_tokens == len(model.SPOKEN.encode()) + 1
    assert all(chunk.usage is None for chunk in (first, *middle, last))


def test_a_streamed_completion_has_no_usage_unless_asked(spoken: Running) -> None:
    chunks = list(complete(spoken, "\n", stream=True, max_tokens=30))
    assert "".join(c.choices[0].text for c in chunks) == model.SPOKEN
    assert [c.choices[0].finish_reason for c in chunks][-1] == "stop"
    assert chunks[-1].choices[0].text == "" and all(c.choices for c in chunks)


def test_several_prompts_and_answers_in_order(spoken: Running) -> None:
    answer = complete(spoken, ["0", "5"], n=2, max_tokens=3)
    told = [(choice.index, choice.text) for choice in answer.choices]
    assert told == [(0, "123"), (1, "123"), (2, "678"), (3, "678")]
    assert answer.usage.prompt_tokens == 2 and answer.usage.completion_tokens == 12
    ids = complete(spoken, [[ord("0")], [ord("1"), ord("2")]], max_tokens=2)
    assert [choice.text for choice in ids.choices] == ["12", "34"]


def test_stop_strings_are_held_back_and_named(spoken: Running) -> None:
    chunks = list(complete(spoken, "0", stop=["45", "789"], max_tokens=20, stream=True))
    assert "".join(c.choices[0].text for c in chunks) == "123"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert chunks[-1].choices[0].stop_reason == "45"
    answer = complete(spoken, "0", stop="95", max_tokens=9).choices[0]
    assert (answer.text, answer.finish_reason) == ("123456789", "length")
    halves = complete(spoken, "\n", stop="é", max_tokens=30).choices[0]
    assert (halves.text, halves.finish_reason) == ("Hi 😀", "stop")


def test_a_limit_inside_a_character_shows_that_it_was_cut(spoken: Running) -> None:
    answer = complete(spoken, "\n", max_tokens=5).choices[0]
    assert answer.text.rstrip("\N{REPLACEMENT CHARACTER}") == "Hi "
    assert answer.finish_reason == "length"


def test_streams_never_cut_a_character(random: Running) -> None:
    for seed in range(6):
        options: dict[str, Any] = {"seed": seed, "max_tokens": 60, "temperature": 3}
        whole = complete(random, "abc", **options).choices[0].text
        chunks = complete(random, "abc", stream=True, **options)
        assert "".join(c.choices[0].text for c in chunks) == whole


def test_seeds_repeat_and_answers_of_one_request_differ(random: Running) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 2, "n": 3}
    first, again = (complete(random, "abc", seed=7, **options) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in again.choices] and len(set(texts)) == 3
    alone = complete(random, "abc", seed=8, max_tokens=12, temperature=2)
    assert alone.choices[0].text == texts[1]


@pytest.fixture(scope="module")
def lm(folder: Path) -> npusim.LanguageModel:
    return npusim.LanguageModel.load(folder / "model.npubin", folder / "random", threads=1)


def test_answers_are_those_of_a_session(random: Running, lm: npusim.LanguageModel) -> None:
    told = complete(random, "abc", max_tokens=20, seed=3, temperature=1.5, extra_body={
        "return_token_ids": True, "top_k": 40, "ignore_eos": True,
    }).choices[0]  # fmt: skip
    made = lm.generate_tokens(
        "abc", max_new_tokens=20, seed=3, temperature=1.5, top_k=40, ignore_eos=True
    )
    assert told.token_ids == list(made)


def test_logprobs_are_the_models(random: Running, lm: npusim.LanguageModel) -> None:
    told = complete(random, "abcd", max_tokens=3, temperature=0, logprobs=2, echo=True)
    records = told.choices[0].logprobs
    ids = lm.tokenizer.encode("abcd") + list(lm.generate_tokens("abcd", max_new_tokens=3))
    assert records.token_logprobs[0] is None and records.top_logprobs[0] is None
    np.testing.assert_allclose(records.token_logprobs[1:], lm.score(ids).log_probabilities)
    assert records.tokens[:4] == list("abcd") and records.text_offset[:4] == [0, 1, 2, 3]
    for place, top in enumerate(records.top_logprobs[1:], 1):
        assert records.tokens[place] in top and len(top) in (2, 3)
        assert max(top.values()) >= records.token_logprobs[place]


def test_logprobs_of_a_chat(random: Running) -> None:
    options: dict[str, Any] = {"max_tokens": 6, "seed": 1, "logprobs": True, "top_logprobs": 3}
    whole = chat(random, **options).choices[0].logprobs.content
    assert len(whole) == 6
    for record in whole:
        assert len(record.top_logprobs) == 3 and record.logprob <= record.top_logprobs[0].logprob
        assert record.bytes is not None
    chunks = chat(random, stream=True, **options)
    parts = [c.choices[0].logprobs.content for c in chunks if c.choices[0].logprobs]
    assert list(itertools.chain(*parts)) == whole


def test_a_prompt_can_be_scored_alone(random: Running, lm: npusim.LanguageModel) -> None:
    """As evaluations score: no new token, the prompt's records."""
    answer = complete(random, "abcd", max_tokens=0, logprobs=1, echo=True)
    (choice,) = answer.choices
    assert choice.text == "abcd" and choice.finish_reason == "length"
    scores = lm.score("abcd").log_probabilities
    np.testing.assert_allclose(choice.logprobs.token_logprobs[1:], scores)
    assert answer.usage.completion_tokens == 0


def test_penalties_and_biases_change_the_choice(spoken: Running) -> None:
    def say(**options: Any) -> str:
        return complete(spoken, "0", max_tokens=3, temperature=0, **options).choices[0].text

    assert say() == "123"
    assert say(logit_bias={str(ord("z")): 100}) == "zzz"
    assert say(logit_bias={str(ord("z")): 33}) == "123"  # the successor is ahead by 33.9
    # After z everything is equal but for the bias: a penalty of 2 outweighs one of 1.
    assert say(logit_bias={str(ord("z")): 35, str(ord("y")): 34}, presence_penalty=2) == "zyz"
    assert say(logit_bias={str(ord("z")): 36, str(ord("y")): 35}, frequency_penalty=0.4) == "zzz"


def test_least_tokens_and_ends(spoken: Running) -> None:
    ignoring = complete(spoken, "k", max_tokens=4, extra_body={"ignore_eos": True})
    assert ignoring.usage.completion_tokens == 4 and ignoring.choices[0].finish_reason == "length"
    least = complete(spoken, "k", max_tokens=3, extra_body={"min_tokens": 3})
    assert least.usage.completion_tokens == 3
    own = complete(spoken, "0", max_tokens=9, extra_body={"stop_token_ids": [ord("4")]})
    assert own.choices[0].text == "123" and own.choices[0].stop_reason == ord("4")


def test_answers_of_a_given_form(random: Running) -> None:
    pytest.importorskip("llguidance")
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "yé"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}
    for seed in range(3):
        answer = chat(random, seed=seed, response_format=form, max_tokens=100).choices[0]
        assert answer.finish_reason == "stop"
        value = json.loads(answer.message.content)
        assert set(value) == {"a", "b"} and value["b"] in ("x", "yé")
    for kind, value, allowed in (
        ("regex", "[0-9]{3}", None),
        ("choice", ["red", 'gr"een'], ("red", 'gr"een')),
        ("grammar", 'start: "on" | "off"', ("on", "off")),
    ):
        body = {"structured_outputs": {kind: value}}
        text = complete(random, "a", max_tokens=50, seed=1, extra_body=body).choices[0].text
        assert text in allowed if allowed else (len(text) == 3 and text.isdigit()), (kind, text)
    with pytest.raises(openai.BadRequestError, match="cannot be used"):
        complete(random, "a", extra_body={"structured_outputs": {"regex": "(("}})
    with pytest.raises(openai.BadRequestError, match="cannot be used"):
        chat(random, response_format={
            "type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "what"}},
        })  # fmt: skip


def test_parts_of_content_are_text(spoken: Running) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    told = client(spoken).chat.completions.create(
        model="model", messages=[{"role": "user", "content": parts}]
    )
    plain = client(spoken).chat.completions.create(
        model="model", messages=[{"role": "user", "content": "ab"}]
    )
    assert told.usage == plain.usage


def test_models(spoken: Running) -> None:
    (found,) = client(spoken).models.list().data
    assert found.id == "model" and found.max_model_len == model.CONTEXT
    assert client(spoken).models.retrieve("model").id == "model"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client(spoken).models.retrieve("other")
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client(spoken).completions.create(model="other", prompt="0")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"n": 0}, "n is 0"),
        ({"n": 129}, "n is 129"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": model.CONTEXT}, "context holds"),
        ({"logprobs": 21}, "logprobs"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"seed": 2**64}, "seed"),
        ({"logit_bias": {"1": 101}}, "logit_bias"),
        ({"logit_bias": {str(model.VOCABULARY): 1}}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"extra_body": {"stop_token_ids": [model.VOCABULARY]}}, "stop_token_ids"),
        ({"extra_body": {"min_p": 2}}, "min_p"),
        ({"extra_body": {"stream": 1}}, "stream"),
        ({"extra_body": {"use_beam_search": True}}, "use_beam_search"),
    ],
)
def test_what_cannot_be_honoured_is_refused(
    spoken: Running, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        complete(spoken, "0", **{"max_tokens": 1, **options})


@pytest.mark.parametrize("prompt", ["", [], [[]], [-1], [model.VOCABULARY], [2**40]])
def test_prompts_that_are_none(spoken: Running, prompt: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        complete(spoken, prompt)


def test_turns_that_are_none(spoken: Running) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    for options in (
        {"messages": []},
        {"messages": [{"content": "x"}]},
        {"messages": [{"role": "user", "content": [picture]}]},
        {"messages": [{"role": "user", "content": 3}]},
        {"messages": TURN, "tools": [tool]},
        {"messages": TURN, "top_logprobs": 3},
        {"messages": TURN, "response_format": {"type": "yaml"}},
    ):
        with pytest.raises(openai.BadRequestError):
            client(spoken).chat.completions.create(model="model", **options)


def test_keys(start: Start, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("one\n\ntwo\n")
    server = start("spoken", "--api-key-file", tmp_path / "keys")
    assert client(server, "two").models.list().data
    for wrong in ("three", "on", "one two"):
        with pytest.raises(openai.AuthenticationError):
            client(server, wrong).models.list()


def test_many_at_once_get_their_own_answers(random: Running, lm: npusim.LanguageModel) -> None:
    """More requests than run at a time, of different lengths and seeds, streamed and not."""

    async def ask(made: openai.AsyncOpenAI, number: int) -> list[int]:
        options: dict[str, Any] = {
            "model": "model", "prompt": [97 + number % 20] * (1 + number % 50),
            "max_tokens": 1 + number % 13, "seed": number, "temperature": 1.2,
            "extra_body": {"return_token_ids": True, "ignore_eos": True},
        }  # fmt: skip
        if number % 2:
            return (await made.completions.create(**options)).choices[0].token_ids
        stream = await made.completions.create(stream=True, **options)
        return [t async for c in stream for t in getattr(c.choices[0], "token_ids", [])]

    async def all_of_them() -> list[list[int]]:
        async with openai.AsyncOpenAI(base_url=f"{random.url}/v1", api_key="none") as made:
            return await asyncio.gather(*(ask(made, number) for number in range(60)))

    for number, tokens in enumerate(asyncio.run(all_of_them())):
        prompt = [97 + number % 20] * (1 + number % 50)
        alone = lm.generate_tokens(
            prompt, max_new_tokens=1 + number % 13, seed=number, temperature=1.2, ignore_eos=True
        )
        assert tokens == list(alone), number
