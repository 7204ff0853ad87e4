"""How a model writes calls of tools, learned from its chat template.

A template writes the calls of earlier turns as the model was trained to write its own. So a
conversation with one call, and with two, is rendered with names that stand for nothing, and what
is found around these is the form: `<tool_call>` and JSON, a list of JSON behind `[TOOL_CALLS]`, an
object alone. Forms that are no JSON objects with a name and arguments are not read.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from npusim.errors import Error

_NAME, _KEY, _IDS = "npusim_tool", "npusim_key", ("npusim001", "npusim002")
_TEXT = "npusim_said"
_VALUE = {_KEY: 1}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "npusim_described",
        "parameters": {
            "type": "object",
            "properties": {_KEY: {"type": "integer", "description": _KEY}},
            "required": [_KEY],
        },
    },
}
_ASKED = [{"role": "user", "content": "npusim_asked"}]

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]], Awaitable[str]]
"""Renders messages and tools, without what begins an answer."""


@dataclass(frozen=True)
class CallFormat:
    """A form of calls: opening, calls with what stands between, closing.

    Attributes:
        opening, between, closing: texts; `between` is None where there can be one call only.
        name_key, arguments_key: of the object that a call is.
        before_name, behind_name, behind_arguments: its text around name and arguments; the last
            one may hold `call_id`.
        arguments_as_text: whether the template wants the arguments of earlier calls as JSON text.
    """

    opening: str
    between: str | None
    closing: str
    name_key: str
    arguments_key: str
    before_name: str
    behind_name: str
    behind_arguments: str
    arguments_as_text: bool

    call_id = _IDS[0]

    def head(self, name: str) -> str:
        """Returns a call's text up to its arguments."""
        return self.before_name + name + self.behind_name


async def learned(render: Render) -> CallFormat | None:
    """Returns how a template writes calls; None where it shows no tools, or in no form that is
    read here."""
    for as_text in (False, True):
        try:
            found = await _learned(render, as_text)
        except Error:  # it refuses such a conversation
            continue
        if found is not None:
            return found
    return None


async def _learned(render: Render, as_text: bool) -> CallFormat | None:
    value = json.dumps(_VALUE) if as_text else _VALUE
    calls = [
        {"id": number, "type": "function", "function": {"name": _NAME, "arguments": value}}
        for number in _IDS
    ]
    asked = await render(_ASKED, [_TOOL])
    said = await render([*_ASKED, {"role": "assistant", "content": _TEXT}], [_TOOL])
    turn = {"role": "assistant", "content": "", "tool_calls": calls[:1]}
    called = await render([*_ASKED, turn], [_TOOL])
    if _NAME not in asked or not said.startswith(asked) or said.count(_TEXT) != 1:
        return None
    header, ending = said[len(asked) :].split(_TEXT)
    if not header.strip() and not called.startswith(asked + header):
        header = ""  # white space before what is said, and none before a call
    if not called.startswith(asked + header):
        return None
    text = called[len(asked) + len(header) :]
    text = text[: len(text) - len(ending)] if ending and text.endswith(ending) else text
    found = _object(text, 0)
    if found is None:
        return None
    start, end, keys = found
    opening, call, closing = text[:start], text[start:end], text[end:]
    name, arguments = call.index(_NAME), call.rindex("{", 0, call.index(f'"{_KEY}"'))
    if name > arguments or _IDS[0] in opening + closing + call[:arguments]:
        return None
    length = json.JSONDecoder().raw_decode(call, arguments)[1]
    try:
        turn = {**turn, "tool_calls": calls}
        between = _between(await render([*_ASKED, turn], [_TOOL]), asked + header + text[:end])
    except Error:
        between = None
    return CallFormat(
        opening, between, closing, *keys, call[:name], call[name + len(_NAME) : arguments],
        call[length:], as_text,
    )  # fmt: skip


def _between(text: str, first: str) -> str | None:
    """Returns what stands between the first call and the second."""
    if not text.startswith(first):
        return None
    found = _object(text, len(first))
    return None if found is None else text[len(first) : found[0]]


def _object(text: str, begin: int) -> tuple[int, int, tuple[str, str]] | None:
    """Returns where the next call begins and ends, and the keys of its name and arguments."""
    decoder = json.JSONDecoder()
    start = text.find("{", begin)
    while start >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except ValueError:
            value, end = {}, start
        keys = {json.dumps(each): key for key, each in value.items()}
        name, arguments = keys.get(json.dumps(_NAME)), keys.get(json.dumps(_VALUE))
        if name is not None and arguments is not None:
            return start, end, (name, arguments)
        start = text.find("{", start + 1)
    return None
