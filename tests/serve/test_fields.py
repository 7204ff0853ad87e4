"""What clients of other projects send, and fields that would change an answer unheard."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.serve.fields import RequestError
from npusim.serve.openai import parse_chat, parse_completion

TURNS = [{"role": "user", "content": [{"type": "text", "text": "0"}]}]


def test_what_lm_evaluation_harness_sends_to_score() -> None:
    """`local-completions`: https://github.com/EleutherAI/lm-evaluation-harness."""
    body = {"model": "m", "prompt": [[1, 2, 3], [4, 5]], "temperature": 0, "max_tokens": 1,
            "logprobs": 1, "seed": 1234, "echo": True}  # fmt: skip
    request = parse_completion(body)
    assert request.prompts == ((1, 2, 3), (4, 5)) and request.echo
    sampling = request.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed) == (1, 0, 1234)
    assert sampling.logprobs == sampling.prompt_logprobs == 1


def test_what_lm_evaluation_harness_sends_to_generate() -> None:
    more = {"max_tokens": 256, "temperature": 0.0, "stop": ["\n\n", "Q:"], "seed": 1234}
    request = parse_completion({"model": "m", "prompt": ["0 1", "2"], **more})
    assert request.prompts == ("0 1", "2") and request.stop == ("\n\n", "Q:")
    chat = parse_chat({"model": "m", "messages": TURNS, **more})
    assert chat.messages[0]["content"] == "0" and chat.sampling.max_tokens == 256


def test_what_vllm_bench_serve_sends() -> None:
    """`--backend openai` and `openai-chat`: vllm/benchmarks/lib/endpoint_request_func.py."""
    usage = {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
    body = {"model": "m", "prompt": "0", "repetition_penalty": 1.0, "max_tokens": 128,
            "logprobs": None, "temperature": 0.0, **usage}  # fmt: skip
    request = parse_completion(body)
    assert request.stream and request.include_usage and request.sampling.ignore_eos
    assert request.sampling.max_tokens == 128 and request.sampling.logprobs is None
    chat = parse_chat({"model": "m", "messages": TURNS, "max_completion_tokens": 64, **usage})
    assert chat.stream and chat.sampling.max_tokens == 64 and chat.sampling.ignore_eos


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("guided_json", {"type": "object"}),
        ("guided_regex", "a*"),
        ("guided_choice", ["a"]),
        ("guided_grammar", "root ::= 'a'"),
        ("grammar", "root ::= 'a'"),
        ("chat_template", "{{ messages }}"),
        ("return_tokens_as_token_ids", True),
        ("allowed_token_ids", [1]),
        ("bad_words", ["a"]),
        ("length_penalty", 2),
        ("truncate_prompt_tokens", 4),
    ],
)
def test_fields_that_would_change_the_answer_are_refused(field: str, value: Any) -> None:
    for parse, body in ((parse_completion, {"prompt": "0"}), (parse_chat, {"messages": TURNS})):
        with pytest.raises(RequestError, match=field) as refused:
            parse({**body, field: value})
        assert refused.value.status == 400 and refused.value.param == field


def test_fields_that_ask_for_what_is_done_anyway_are_taken() -> None:
    neutral = {"length_penalty": 1.0, "bad_words": [], "skip_special_tokens": True, "typical_p": 1}
    parse_completion({"prompt": "0", "add_special_tokens": True, **neutral})
    parse_chat({"messages": TURNS, "add_special_tokens": False, "echo": False, **neutral})
    with pytest.raises(RequestError, match="add_special_tokens"):
        parse_completion({"prompt": "0", "add_special_tokens": False})
    with pytest.raises(RequestError, match="echo"):
        parse_chat({"messages": TURNS, "echo": True})
