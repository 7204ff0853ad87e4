"""/v1/responses: what OpenAI's own client gets, the order of events, what is refused."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from npusim.serve.calls import ToolCall
from npusim.serve.fields import RequestError
from npusim.serve.response_answer import OutputItems
from npusim.serve.response_request import parse_response
from npusim.serve.text import Delta

from . import model
from .conftest import Running
from .test_client import client
from .test_http import ask
from .test_tools import random as shown_tools  # noqa: F401  (a fixture)

TOOL = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"enum": [1, 2]}},
        "required": ["a"],
        "additionalProperties": False,
    },
}
SAID = {"role": "user", "content": [{"type": "input_text", "text": "x"}]}
CALL = {"type": "function_call", "call_id": "1", "name": "add", "arguments": '{"a": 1}'}


def respond(server: Running, asked: Any = "x", **options: Any) -> Any:
    return client(server).responses.create(model="model", input=asked, **options)


def test_a_response_says_what_a_chat_says(spoken: Running) -> None:
    answer = respond(spoken, metadata={"a": "b"})
    assert (answer.object, answer.status, answer.model) == ("response", "completed", "model")
    assert answer.output_text == model.SPOKEN and answer.error is None and not answer.store
    (item,) = answer.output
    assert (item.type, item.role, item.status) == ("message", "assistant", "completed")
    chat: Any = client(spoken).chat.completions.create(
        model="model", messages=[{"role": "user", "content": "x"}]
    )
    assert answer.usage.input_tokens == chat.usage.prompt_tokens
    assert answer.usage.output_tokens == chat.usage.completion_tokens
    assert answer.metadata == {"a": "b"}


def test_events_come_in_the_order_that_clients_rely_on(spoken: Running) -> None:
    events = list(respond(spoken, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    before = ["created", "in_progress", "output_item.added", "content_part.added"]
    behind = ["output_text.done", "content_part.done", "output_item.done", "completed"]
    assert kinds[:4] == before and kinds[-4:] == behind
    assert set(kinds[4:-4]) == {"output_text.delta"}
    assert "".join(event.delta for event in events[4:-4]) == model.SPOKEN == events[-4].text
    assert {event.item_id for event in events[3:-2]} == {events[2].item.id}
    assert events[0].response.output == [] and events[0].response.status == "in_progress"
    assert events[-1].response.output_text == model.SPOKEN
    with client(spoken).responses.stream(model="model", input="x") as stream:
        assert stream.get_final_response().output_text == model.SPOKEN


def test_a_response_that_is_cut_says_so(spoken: Running) -> None:
    answer = respond(spoken, max_output_tokens=2)
    assert answer.status == "incomplete" and answer.output_text == model.SPOKEN[:2]
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"
    *_, last = respond(spoken, max_output_tokens=2, stream=True)
    assert last.type == "response.incomplete" and last.response.usage.output_tokens == 2


def test_items_are_the_turns_of_a_chat() -> None:
    result = {"type": "function_call_output", "call_id": "1", "output": "3"}
    said = {"type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": "é", "annotations": []}]}  # fmt: skip
    body = {"instructions": "be", "input": [SAID, said, CALL, {**CALL, "call_id": "2"}, result]}
    chat = parse_response({**body, "tools": [TOOL]}).chat
    system, user, assistant, tool = chat.messages
    assert (system["role"], system["content"]) == ("system", "be") and user["content"] == "x"
    assert assistant["content"] == "é" and [c["id"] for c in assistant["tool_calls"]] == ["1", "2"]
    assert assistant["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert (tool["tool_call_id"], tool["content"]) == ("1", "3")
    assert chat.tools is not None and chat.tools.offered[0]["function"]["name"] == "add"
    developer = parse_response({"input": [{"role": "developer", "content": "do"}]}).chat
    assert developer.messages[0]["role"] == "system"


def test_an_answer_of_a_given_form(random: Running) -> None:
    pytest.importorskip("llguidance")
    form = {"type": "json_schema", "name": "it", "schema": TOOL["parameters"], "strict": True}
    answer = respond(random, text={"format": form}, max_output_tokens=300, extra_body={"seed": 1})
    assert json.loads(answer.output_text)["a"] in (1, 2) and answer.text.format.name == "it"


def test_logprobs_are_a_chats(random: Running) -> None:
    options: dict[str, Any] = {
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "max_output_tokens": 5,
        "extra_body": {"seed": 1},
    }
    whole = respond(random, **options).output[0].content[0].logprobs
    chat: Any = client(random).chat.completions.create(
        model="model", messages=[{"role": "user", "content": "x"}],
        logprobs=True, top_logprobs=2, max_tokens=5, seed=1,
    )  # fmt: skip
    records = chat.choices[0].logprobs.content
    assert [(r.token, r.logprob) for r in whole] == [(r.token, r.logprob) for r in records]
    deltas = [e for e in respond(random, stream=True, **options) if hasattr(e, "delta")]
    assert [r.logprob for e in deltas for r in e.logprobs] == [r.logprob for r in whole]


def test_calls_are_items_and_go_back_as_items(shown_tools: Running) -> None:  # noqa: F811
    pytest.importorskip("llguidance")
    asked: dict[str, Any] = {"tools": [TOOL], "tool_choice": {"type": "function", "name": "add"}}
    responses: Any = client(shown_tools).responses
    whole = responses.create(model="paged", input="x", max_output_tokens=90, **asked)
    (call,) = whole.output
    assert (call.type, call.name, call.status) == ("function_call", "add", "completed")
    assert json.loads(call.arguments)["a"] in (1, 2)
    events = list(
        responses.create(model="paged", input="x", max_output_tokens=90, stream=True, **asked)
    )
    assert [event.type for event in events] == [
        f"response.{kind}"
        for kind in (
            "created",
            "in_progress",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        )
    ]
    again = ["x", {"type": "function_call_output", "call_id": call.call_id, "output": "3"}]
    told = responses.create(
        model="paged", input=[SAID, call.model_dump(), again[1]], tools=[TOOL], max_output_tokens=4
    )
    assert told.usage.input_tokens > whole.usage.input_tokens


def test_items_of_text_and_calls() -> None:
    """White space before a call is nothing that is said; what is said behind one is."""
    items = OutputItems(lambda delta: [])
    call = ToolCall(0, "f", "{}", "c")
    kinds = [
        event["type"].removeprefix("response.")
        for delta in (Delta(" \n"), Delta("", calls=[call]), Delta("a"), Delta("b"))
        for event in items.push(delta)
    ] + [event["type"].removeprefix("response.") for event in items.finish(cut=False)]
    assert kinds == [
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
        "output_item.done", "output_item.added", "content_part.added", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done",
    ]  # fmt: skip
    assert [item["type"] for item in items.done] == ["function_call", "message"]
    assert items.done[1]["content"][0]["text"] == "ab"
    cut = OutputItems(lambda delta: [])
    list(cut.push(Delta("", calls=[call], finish_reason="length")))
    list(cut.finish(cut=True))
    assert [item["status"] for item in cut.done] == ["incomplete"]
    empty = OutputItems(lambda delta: [])
    assert len(list(empty.finish(cut=False))) == 5 and empty.done[0]["content"][0]["text"] == ""


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": [1]}, "input[0]"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": [], "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"role": "user", "content": [{"type": {}}]}]}, "input[0].content[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0]"),
        (
            {"input": [{"type": "function_call_output", "call_id": "9", "output": "x"}]},
            "input[0].call_id",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": [], "output": "x"}]},
            "input[0].call_id",
        ),
        ({"instructions": ["x"]}, "instructions"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"store": True}, "store"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"truncation": "auto"}, "truncation"),
        ({"include": ["file_search_call.results"]}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"messages": []}, "messages"),
        ({"n": 2}, "n"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": {}}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"stream_options": {}}, "stream_options"),
        ({"metadata": 1}, "metadata"),
        ({"temperature": "hot"}, "temperature"),
        ({"modalities": ["audio"]}, "modalities"),
    ],
)
def test_what_is_refused_names_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_response({"input": "x", **options})
    assert (error.value.status, error.value.param) == (400, field)


def test_refusals_over_http(spoken: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="no answer is stored"):
        respond(spoken, previous_response_id="resp_1")
    with pytest.raises(openai.BadRequestError) as error:
        respond(spoken, "0" * model.CONTEXT)
    assert error.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError):
        client(spoken).responses.create(model="other", input="x")
    status, _, told = ask(spoken, "/v1/responses", {"input": "x", "tools": [TOOL]})
    assert status == 400 and told["error"]["param"] == "tools"
