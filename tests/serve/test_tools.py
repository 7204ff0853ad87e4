"""Tools: how templates write calls, how answers are read, and what clients get of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from npusim.errors import Error
from npusim.language_model.chat import ChatTemplate
from npusim.serve.call_format import CallFormat, learned
from npusim.serve.calls import CallReader, ToolCall
from npusim.serve.fields import RequestError
from npusim.serve.openai import parse_chat

from . import model
from .conftest import Running, Start
from .test_client import client
from .test_http import ask

TURNS = [{"role": "user", "content": "x"}]
SHOWN = "{% if tools %}{{ tools | tojson }}\n{% endif %}"
HERMES = SHOWN + (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{% for c in m.tool_calls or [] %}{% if not loop.first %}{{ '\n' }}{% endif %}"
    '{{ \'<tool_call>\n{"name": "\' + c.function.name + \'", "arguments": \' }}'
    "{{ c.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LISTED = SHOWN + (
    "{% for m in messages %}{% if m.tool_calls %}[TOOL_CALLS] ["
    "{% for c in m.tool_calls %}{{ {'name': c.function.name, 'arguments': c.function.arguments,"
    " 'id': c.id} | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}]</s>"
    "{% else %}{{ ' ' + m.content }}</s>{% endif %}{% endfor %}"
)
ALONE = SHOWN + (
    "{% for m in messages %}{{ '<' + m.role + '>' }}{% if m.tool_calls %}"
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}"
    "{{ '{\"name\": \"' + c.name + '\", \"parameters\": ' + c.arguments + '}' }}"
    "{% else %}{{ m.content }}{% endif %}<end>{% endfor %}"
)


def form_of(source: str) -> CallFormat | None:
    template = ChatTemplate(source)

    async def render(messages: Sequence[Any], tools: Sequence[Any]) -> str:
        return template.render(messages, answer=False, variables={"tools": tools})

    return asyncio.run(learned(render))


def read(source: str, text: str, size: int = 1) -> tuple[str, list[ToolCall]]:
    """Returns the text and the calls of an answer that comes in pieces of that size."""
    form = form_of(source)
    assert form is not None
    reader = CallReader(form, {"add", "now"}, lambda text: text.replace("[TOOL_CALLS]", ""))
    told, calls = "", []
    for start in range(0, len(text), size):
        said, more = reader.push(text[start : start + size])
        told, calls = told + said, calls + more
    said, more = reader.finish("stop")
    return told + said, calls + more


def test_forms_are_learned_from_templates() -> None:
    hermes, listed, alone = map(form_of, (HERMES, LISTED, ALONE))
    assert hermes is not None and listed is not None and alone is not None
    assert (hermes.opening, hermes.closing) == ("<tool_call>\n", "\n</tool_call>")
    assert hermes.between == "\n</tool_call>\n<tool_call>\n" and not hermes.arguments_as_text
    assert (listed.opening, listed.between, listed.closing) == ("[TOOL_CALLS] [", ", ", "]")
    assert (alone.opening, alone.between, alone.closing) == ("", None, "")
    assert alone.arguments_as_text and alone.arguments_key == "parameters"
    assert hermes.head("add") == '{"name": "add", "arguments": '


@pytest.mark.parametrize(
    "source",
    [
        model.TEMPLATE,  # shows no tools
        SHOWN + "{% for m in messages %}{{ m.content }}{% endfor %}",  # drops calls
        SHOWN + "{% for m in messages %}{% if m.tool_calls %}<f>{{ m.tool_calls[0].function.name }}"
        "</f>{% else %}{{ m.content }}{% endif %}{% endfor %}",
        "{{ raise_exception('no') }}",
    ],
)
def test_templates_without_a_form_that_is_read(source: str) -> None:
    assert form_of(source) is None


ADD, NOW = '{"name": "add", "arguments": {"a": "}</tool_call>\\"", "b": [1]}}', '{"name": "now"}'


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_calls_are_found_in_pieces_of_any_size(size: int) -> None:
    arguments = {"a": '}</tool_call>"', "b": [1]}
    text = f"Well.\n<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>\n"
    told, calls = read(HERMES, text, size)
    assert told == "Well.\n" and [(c.index, c.name) for c in calls] == [(0, "add"), (1, "now")]
    assert json.loads(calls[0].arguments) == arguments and calls[1].arguments == "{}"
    assert all(len(c.id) == 9 and c.id.isalnum() for c in calls) and calls[0].id != calls[1].id
    told, calls = read(LISTED, f" [{ADD}, {NOW}]", size)
    assert told == "" and [c.name for c in calls] == ["add", "now"]
    told, calls = read(ALONE, ' {"name": "add", "parameters": "{\\"a\\": 1}"}', size)
    assert told == "" and [c.arguments for c in calls] == ['{"a": 1}']


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("source", "text"),
    [
        (HERMES, "<tool_call>\nno object</tool_call> <tool"),
        (HERMES, '<tool_call>\n{"name": "other", "arguments": {}}\n</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": [1]}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>'),
        (HERMES, '<tool_call>{"name": "add", "arguments": {"a": 1'),  # cut
        (HERMES, "<tool_call>" + "{" * 20_000),
        (HERMES, '<tool_call>{"name": "add" "arguments": {}}'),
        (LISTED, "  [1, 2]"),
        (LISTED, f"See [{ADD}]"),
        (ALONE, '{"a": 1} and more'),
        (ALONE, "  "),
    ],
)
def test_what_is_no_call_stays_as_it_is(source: str, text: str, size: int) -> None:
    assert read(source, text, size) == (text, [])


TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/digit"}},
            "required": ["a"],
            "additionalProperties": False,
            "$defs": {"digit": {"enum": [1, 2]}},
        },
    },
}
NAMED = {"type": "function", "function": {"name": "add"}}


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"tools": {}}, "tools"),
        ({"tools": [1]}, "tools"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tools": [{"type": "code"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [TOOL], "tool_choice": "some"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [TOOL], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [TOOL], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [TOOL], "response_format": {"type": "json_object"}}, "response_format"),
        ({"functions": [TOOL["function"]]}, "functions"),
    ],
)
def test_tools_that_are_refused_name_their_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestError) as error:
        parse_chat({"messages": TURNS, **options})
    assert (error.value.status, error.value.param) == (400, field)


def called(arguments: Any) -> list[Mapping[str, Any]]:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": arguments}}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


@pytest.mark.parametrize("arguments", ["[1]", "{", "[" * 100_000, 5, "nul"])
def test_calls_of_messages_that_are_none(arguments: Any) -> None:
    with pytest.raises(RequestError, match=r"messages\[0\].tool_calls\[0\]"):
        parse_chat({"messages": called(arguments)})
    with pytest.raises(RequestError, match="tool_calls"):
        parse_chat({"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]})


def test_a_form_beside_calls_that_have_to_come_binds_nothing() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    body: dict[str, Any] = {"messages": TURNS, "tools": [TOOL], "response_format": form}
    for choice in ("required", NAMED):
        chat = parse_chat({**body, "tool_choice": choice})
        assert chat.grammar is None and chat.tools is not None and chat.tools.forced == ("add",)
    assert parse_chat({**body, "tool_choice": "none"}).grammar is not None
    with pytest.raises(RequestError, match="tool_choice has to be none, required or of a name"):
        parse_chat(body)


@pytest.fixture(scope="module")
def random(start: Start, folder: Path) -> Running:
    """A server that says any bytes, whose template shows tools."""
    config = folder / "random" / "tokenizer_config.json"
    before = config.read_text("utf-8")
    config.write_text(json.dumps({"chat_template": HERMES, "eos_token": model.END}), "utf-8")
    server = start("random", program="paged")
    config.write_text(before, "utf-8")
    return server


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_call_that_has_to_come_keeps_to_its_schema(random: Running, choice: Any) -> None:
    pytest.importorskip("llguidance")
    asked: dict[str, Any] = {"model": "paged", "messages": TURNS, "tools": [TOOL]}
    asked |= {"tool_choice": choice, "max_tokens": 90, "seed": 1, "n": 2}
    whole = client(random).chat.completions.create(**asked)
    for choice_made in whole.choices:
        (call,) = choice_made.message.tool_calls or []
        assert call.function.name == "add" and choice_made.message.content is None
        assert json.loads(call.function.arguments)["a"] in (1, 2)
        assert choice_made.finish_reason == ("tool_calls" if choice == "required" else "stop")
    streamed = list(client(random).chat.completions.create(**asked | {"stream": True}))
    calls = [c for e in streamed for o in e.choices for c in o.delta.tool_calls or []]
    assert [c.function.name for c in calls] == ["add"] * 2 and calls[0].index == 0
    again = [{"role": "assistant", "tool_calls": [call.model_dump()]},
             {"role": "tool", "tool_call_id": call.id, "content": "3"}]  # fmt: skip
    told = client(random).chat.completions.create(
        model="paged", messages=[*TURNS, *again], tools=[TOOL], max_tokens=4
    )
    assert (
        told.usage.prompt_tokens > whole.usage.prompt_tokens
        and not told.choices[0].message.tool_calls
    )


def test_a_call_that_was_cut_has_the_beginning_of_its_arguments(random: Running) -> None:
    pytest.importorskip("llguidance")
    body = {"messages": TURNS, "tools": [TOOL], "tool_choice": NAMED, "max_tokens": 32}
    status, _, told = ask(random, "/v1/chat/completions", body)
    (choice,) = told["choices"]
    assert status == 200 and choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert call["function"]["name"] == "add" and call["function"]["arguments"].startswith("{")


def test_a_template_without_tools_refuses_them(spoken: Running) -> None:
    status, _, told = ask(spoken, "/v1/chat/completions", {"messages": TURNS, "tools": [TOOL]})
    assert status == 400 and told["error"]["param"] == "tools"
    body = {"messages": [*TURNS, *called("{}")]}
    status, _, told = ask(spoken, "/v1/chat/completions", body)
    assert status == 400 and "shows no tools" in told["error"]["message"]
    body = {"messages": TURNS, "tools": [TOOL], "tool_choice": "none"}
    assert ask(spoken, "/v1/chat/completions", body)[0] == 200


def test_blocks_that_mark_what_is_trained_are_their_content() -> None:
    template = ChatTemplate("{% for m in messages %}{% generation %}{{ m.content }}"
                            "{% endgeneration %}{% endfor %}")  # fmt: skip
    assert template.render([{"role": "assistant", "content": "é"}], answer=False) == "é"
    with pytest.raises(Error, match="no Jinja"):
        ChatTemplate("{% generation %}")
