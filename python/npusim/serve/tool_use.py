"""A chat whose model has tools: what its prompt ends with, what binds its answer, who reads it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from npusim.serve.call_format import CallFormat
from npusim.serve.calls import CallReader, ForcedCallReader, ToolCall, new_id
from npusim.serve.grammar import GrammarSpec
from npusim.serve.text import Delta
from npusim.serve.tools import Tools


class ToolUse:
    """How one request's tools are served.

    Args:
        tools: what may be called.
        form: how the model writes calls.
        visible: returns what is seen of a text when its tokens are decoded.
    """

    def __init__(self, tools: Tools, form: CallFormat, visible: Callable[[str], str]) -> None:
        self._tools, self._form, self._visible = tools, form, visible
        self._behind = form.behind_arguments.replace(form.call_id, new_id())

    @property
    def begun(self) -> str:
        """What the prompt ends with: the opening of a call that has to come."""
        return self._form.opening if self._tools.forced else ""

    @property
    def grammar(self) -> GrammarSpec | None:
        """What an answer must be that has to be a call."""
        if not self._tools.forced:
            return None
        rules = [f"start: {' | '.join(f'call{i}' for i in range(len(self._tools.forced)))}"]
        for place, name in enumerate(self._tools.forced):
            head = json.dumps(self._form.head(name), ensure_ascii=False)
            behind = json.dumps(self._behind, ensure_ascii=False)
            rules.append(f"call{place}: {head} arguments{place} {behind}")
            rules.append(f"arguments{place}: %json {json.dumps(self._tools.schemas[name])}")
        return GrammarSpec("grammar", "\n".join(rules), "tools")

    def reader(self) -> Calls:
        """Returns what reads one answer."""
        forced = self._tools.forced
        reader: CallReader | ForcedCallReader
        if forced:
            reader = ForcedCallReader(
                {name: self._form.head(name) for name in forced}, self._behind
            )
        else:
            reader = CallReader(self._form, self._tools.schemas, self._visible)
        single = not self._tools.parallel
        return Calls(reader, single=single, reason="stop" if self._tools.named else "tool_calls")


class Calls:
    """Takes calls out of the deltas of one answer.

    Args:
        reader: finds them.
        single: whether the answer ends with the first one.
        reason: why an answer with calls ended, where it was not cut.
    """

    def __init__(self, reader: CallReader | ForcedCallReader, *, single: bool, reason: str) -> None:
        self._reader, self._single, self._reason = reader, single, reason
        self._any = False

    def take(self, delta: Delta) -> None:
        """Moves calls from the delta's text to its `calls`."""
        delta.text, calls = self._reader.push(delta.text)
        if delta.finish_reason is not None:
            text, more = self._reader.finish(delta.finish_reason)
            delta.text += text
            calls = calls + more
        if self._single and calls:
            del calls[1:]
            delta.finish_reason = delta.finish_reason or "stop"
        self._any = self._any or bool(calls)
        delta.calls = calls
        if self._any and delta.finish_reason == "stop":
            delta.finish_reason, delta.stop_reason = self._reason, None


def with_calls_as(
    messages: Sequence[Mapping[str, Any]], form: CallFormat
) -> list[Mapping[str, Any]]:
    """Returns messages whose calls have arguments as the template wants them."""
    if not form.arguments_as_text:
        return list(messages)
    return [_as_text(message) if message.get("tool_calls") else message for message in messages]


def _as_text(message: Mapping[str, Any]) -> Mapping[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(
            call["function"]["arguments"], ensure_ascii=False)}}
        for call in message["tool_calls"]
    ]  # fmt: skip
    return {**message, "tool_calls": calls}


def told_calls(calls: Sequence[ToolCall], *, indexed: bool) -> list[dict[str, Any]]:
    """Returns calls as answers tell them, with their places where those are of a stream."""
    return [
        {"index": call.index, **call.as_dict()} if indexed else call.as_dict() for call in calls
    ]
