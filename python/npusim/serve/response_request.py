"""Bodies of /v1/responses: read as the chat that they ask for, or refused by their field.

https://platform.openai.com/docs/api-reference/responses/create. Nothing is stored between
requests, so what refers to an earlier answer is refused: its items go into `input` again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from npusim.serve.fields import Fields, RequestError
from npusim.serve.openai import ChatRequest, parse_chat

_LOGPROBS = "message.output_text.logprobs"
_NOTHING_HERE = "reasoning.encrypted_content"  # asked for by agents; there is no such item
_MOST_ITEMS = 1 << 16
_ANY = 2**53
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}

# Field -> values with which it asks for nothing, and why any other is refused.
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "previous_response_id": ((), "no answer is stored: send the earlier items in input"),
    "conversation": ((), "no conversation is stored: send the earlier items in input"),
    "store": ((False,), "no answer is stored"),
    "background": ((False,), "an answer is made while its client waits"),
    "prompt": ((), "there are no stored prompts: send instructions and input"),
    "truncation": (("disabled",), "no input is cut: one that is too long is refused"),
    "messages": ((), "this is input here"),
    "max_tokens": ((), "this is max_output_tokens here"),
    "max_completion_tokens": ((), "this is max_output_tokens here"),
    "response_format": ((), "this is text.format here"),
    "logprobs": ((False,), f'include has "{_LOGPROBS}" for it'),
    "n": ((1,), "there is one answer to each request"),
    "best_of": ((1,), "there is one answer to each request"),
    "return_token_ids": ((False,), "/v1/chat/completions has it"),
}
# What chats do not get: it is read here, or says nothing about the answer.
_OWN = frozenset(_REFUSED) | {
    "input",
    "instructions",
    "max_output_tokens",
    "text",
    "include",
    "reasoning",
    "tools",
    "tool_choice",
    "top_logprobs",
    "stream_options",
    "metadata",
    "max_tool_calls",
}


@dataclass(frozen=True, kw_only=True)
class ResponseRequest:
    """A body of /v1/responses.

    Attributes:
        chat: what is asked of the model.
        told: the fields of the body that the answer repeats.
    """

    chat: ChatRequest
    told: Mapping[str, Any]


def parse_response(body: Mapping[str, Any]) -> ResponseRequest:
    """Returns the request that a body of /v1/responses makes; RequestError for a wrong one."""
    fields = Fields(body)
    _refuse_what_is_not_there(fields)
    asked = {name: value for name, value in body.items() if name not in _OWN}
    asked["messages"] = _instructions(fields) + _messages(fields)
    asked["max_completion_tokens"] = fields.integer("max_output_tokens", 1, _ANY)
    asked |= _logprobs(fields) | _tools(fields) | _reasoning(fields)
    options = fields.object("stream_options")  # whether events are padded: they are not
    if options is not None and not fields.boolean("stream"):
        fields.refuse("stream_options", "absent where stream is not true")
    form = _format(fields)
    chat = parse_chat({**asked, "response_format": form})
    if form is not None and chat.grammar is not None:
        chat = replace(chat, grammar=replace(chat.grammar, field="text.format"))
    return ResponseRequest(chat=chat, told=_told(fields, chat))


def _refuse_what_is_not_there(fields: Fields) -> None:
    for name, (neutral, why) in _REFUSED.items():
        value = fields.raw(name)
        if value is not None and value not in neutral:
            raise RequestError(
                f"This server does not support {name}: {why}.",
                param=name,
                code="unsupported_parameter",
            )
    fields.integer("max_tool_calls", 1, _ANY)  # of built-in tools, of which there are none
    metadata = fields.raw("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        fields.refuse("metadata", "an object")


def _told(fields: Fields, chat: ChatRequest) -> dict[str, Any]:
    """Returns what an answer says of its request."""
    tools = fields.raw("tools") or []
    return {
        "instructions": fields.raw("instructions"),
        "max_output_tokens": fields.raw("max_output_tokens"),
        "metadata": fields.raw("metadata") or {},
        "parallel_tool_calls": fields.boolean("parallel_tool_calls", default=True),
        "previous_response_id": None,
        "reasoning": fields.raw("reasoning") or {"effort": None, "summary": None},
        "store": False,
        "temperature": chat.sampling.temperature,
        "text": {"format": {"type": "text"}, **(fields.raw("text") or {})},
        "tool_choice": fields.raw("tool_choice") or "auto",
        "tools": [{"strict": None, "parameters": None, **tool} for tool in tools],
        "top_logprobs": fields.raw("top_logprobs") or 0,
        "top_p": chat.sampling.top_p,
        "truncation": "disabled",
        "background": False,
    }


def _instructions(fields: Fields) -> list[dict[str, Any]]:
    text = fields.text("instructions")
    return [] if text is None else [{"role": "system", "content": text}]


def _messages(fields: Fields) -> list[dict[str, Any]]:
    """Returns the messages of a chat that the items of `input` are."""
    given = fields.raw("input")
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not 0 < len(given) <= _MOST_ITEMS:
        fields.refuse("input", "a text, or a list of one item or more")
    messages: list[dict[str, Any]] = []
    called: set[str] = set()
    for place, item in enumerate(given):
        where = f"input[{place}]"
        if not isinstance(item, dict):
            _refuse(where, "must be an object")
        kind = item.get("type", "message")
        if kind == "message":
            messages.append(_message(item, where))
        elif kind == "function_call":
            call = _call(item, where)
            called.add(call["id"])
            _add_call(messages, call)
        elif kind == "function_call_output":
            messages.append(_output(item, where, called))
        else:
            _refuse(where, f"has the type {kind!r}, which this server does not support", "type")
    return messages


def _message(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = item.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        _refuse(where, f"must have one of the roles {', '.join(_ROLES)}", "role")
    return {"role": _ROLES[role], "content": _content(item.get("content"), f"{where}.content")}


def _content(content: Any, where: str) -> str:
    """Returns the text of an item; parts of text are joined."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        _refuse(where, "must be a text or a list of parts")
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = None
        if isinstance(kind, str) and kind in _TEXTS:
            text = part.get(_TEXTS[kind])
        if not isinstance(text, str):
            _refuse(f"{where}[{place}]", f"is of type {kind!r}: this server reads texts alone")
        texts.append(text)
    return "".join(texts)


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    call_id, name, arguments = (item.get(key) for key in ("call_id", "name", "arguments"))
    if not all(isinstance(value, str) for value in (call_id, name, arguments)):
        _refuse(where, "must have call_id, name and arguments, which are texts")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _add_call(messages: list[dict[str, Any]], call: dict[str, Any]) -> None:
    """Puts a call into the assistant's turn, which may have begun."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    messages[-1].setdefault("tool_calls", []).append(call)


def _output(item: Mapping[str, Any], where: str, called: set[str]) -> dict[str, Any]:
    call_id = item.get("call_id")
    if not isinstance(call_id, str) or call_id not in called:
        _refuse(where, f"answers the call {call_id!r}, which is not before it", "call_id")
    text = _content(item.get("output"), f"{where}.output")
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _logprobs(fields: Fields) -> dict[str, Any]:
    include = fields.texts("include", 16, 256)
    for name in include:
        if name not in (_LOGPROBS, _NOTHING_HERE):
            fields.refuse("include", f'absent, or a list of "{_LOGPROBS}"')
    if _LOGPROBS in include:
        return {"logprobs": True, "top_logprobs": fields.raw("top_logprobs")}
    if fields.raw("top_logprobs"):
        fields.refuse("top_logprobs", f'absent, or include has "{_LOGPROBS}"')
    return {}


def _tools(fields: Fields) -> dict[str, Any]:
    """Returns tools and the choice of one as chats have them, functions in objects of their own."""
    given, choice = fields.raw("tools"), fields.raw("tool_choice")
    if given is not None and not isinstance(given, list):
        fields.refuse("tools", "a list of objects")
    tools = []
    for place, tool in enumerate(given or []):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind != "function":
            _refuse(f"tools[{place}]", f"is of type {kind!r}: this server calls no tools itself")
        tools.append({"type": kind, "function": {k: v for k, v in tool.items() if k != "type"}})
    if isinstance(choice, dict):
        if choice.get("type") != "function":
            fields.refuse("tool_choice", "a word, or an object of type function with a name")
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    return {"tools": tools or None, "tool_choice": choice}


def _reasoning(fields: Fields) -> dict[str, Any]:
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return {}
    if reasoning.raw("summary") not in (None, "auto"):
        reasoning.refuse("summary", "absent: this server makes no summaries")
    return {"reasoning_effort": reasoning.text("effort")}


def _format(fields: Fields) -> dict[str, Any] | None:
    """Returns `text.format` as the field `response_format` of chats."""
    text = fields.object("text")
    if text is None:
        return None
    if text.raw("verbosity") not in (None, "medium"):
        text.refuse("verbosity", "absent: nothing tells the model of it")
    form = text.object("format")
    if form is None or form.text("type") in ("text", "json_object"):
        return text.raw("format")  # type: ignore[no-any-return]
    if form.raw("type") != "json_schema":
        form.refuse("type", '"text", "json_object" or "json_schema"')
    schema = form.raw("schema")
    if not isinstance(schema, (dict, bool)):
        form.refuse("schema", "a JSON schema, which is an object")
    return {"type": "json_schema", "json_schema": {"name": form.raw("name"), "schema": schema}}


def _refuse(where: str, what: str, field: str = "") -> NoReturn:
    raise RequestError(f"{where} {what}.", param=f"{where}.{field}" if field else where)
