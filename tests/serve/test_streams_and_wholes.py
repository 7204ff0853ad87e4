"""A stream says what a whole answer does, whatever was asked: text, tokens, records, ends."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from .conftest import Running, Start
from .test_http import ask

COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module")
def paged(start: Start) -> Running:
    return start("random", program="paged")


def drawn(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Returns a path and a body with some of what may be asked."""
    body: dict[str, Any] = {
        "max_tokens": chance.choice([0, 1, 2, 5, 17, 40]),
        "seed": chance.randrange(100),
        "temperature": chance.choice([0, 0.5, 1, 2]),
        "n": chance.choice([1, 1, 2, 3]),
    }
    is_chat = chance.random() < 0.3
    more: dict[str, list[Any]] = {
        "stop": [["a", "b", "c", "d"], "\ufffd", ["é", "K"], [chr(i) for i in range(33, 47)]],
        "logit_bias": [{"65": 100, "200": -100}],
        "min_tokens": [1, 3, 10],
        "ignore_eos": [True],
        "stop_token_ids": [[*range(0, 280, 28)]],
        "presence_penalty": [-2, 1.5],
        "structured_outputs": [{"regex": "[a-f]{0,12}"}, {"choice": ["é", "😀x", "ab"]}],
        "return_token_ids": [True],
    }
    if is_chat:
        body["messages"] = [{"role": "user", "content": chance.choice(["x", "é😀", ""])}]
        more |= {"logprobs": [True]}
    else:
        prompts: list[Any] = ["0", "é😀z", [48, 195, 169], ["0", "1"], [[200], [255, 254]]]
        body["prompt"] = chance.choice(prompts)
        more |= {"logprobs": [0, 1, 4], "echo": [True]}
    for name, values in more.items():
        if chance.random() < 0.35:
            body[name] = chance.choice(values)
    return CHATS if is_chat else COMPLETIONS, body


def joined(text: str) -> tuple[dict[int, dict[str, Any]], Any]:
    """Returns what the choices of a stream say together, by index, and its usage."""
    *events, end = [line[6:] for line in text.split("\n\n") if line]
    assert end == "[DONE]"
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for told in map(json.loads, events):
        usage = told["usage"] or usage
        for choice in told["choices"]:
            said = choices.setdefault(choice["index"], {"text": "", "ids": [], "records": {}})
            assert "reasons" not in said, "nothing comes after the end"
            said["text"] += choice.get("text", "") + choice.get("delta", {}).get("content", "")
            said["ids"] += choice.get("token_ids", [])
            for name, rows in (choice["logprobs"] or {}).items():
                said["records"].setdefault(name, []).extend(rows or [])
            if choice["finish_reason"] is not None:
                said["reasons"] = choice["finish_reason"], choice["stop_reason"]
    return choices, usage


@pytest.mark.parametrize("seed", range(4))
def test_streams_say_what_whole_answers_say(paged: Running, seed: int) -> None:
    pytest.importorskip("llguidance")
    chance = random.Random(seed)
    for _ in range(15):
        path, body = drawn(chance)
        status, _, whole = ask(paged, path, body)
        assert status == 200, whole
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        choices, usage = joined(ask(paged, path, streamed)[2])
        assert usage == whole["usage"], body
        for choice in whole["choices"]:
            records = {name: rows or [] for name, rows in (choice["logprobs"] or {}).items()}
            assert choices[choice["index"]] == {
                "text": choice["message"]["content"] if path == CHATS else choice["text"],
                "ids": choice.get("token_ids", []),
                "records": records if any(records.values()) else {},
                "reasons": (choice["finish_reason"], choice["stop_reason"]),
            }, body
