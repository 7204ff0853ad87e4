"""Calls of tools in the text of one answer: found as it comes, whole, and taken out of it.

What is no call of a tool that was offered stays text, as the model wrote it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NoReturn

from npusim.serve.call_format import CallFormat


def new_id() -> str:
    """Returns a call's number: 9 letters and digits, as the strictest templates want it."""
    return secrets.token_hex(5)[:9]


@dataclass(frozen=True)
class ToolCall:
    """A call.

    Attributes:
        index: its place in the answer.
        name: of the tool.
        arguments: JSON; where the answer was cut at its limit, the beginning of it.
        id: its own.
    """

    index: int
    name: str
    arguments: str
    id: str

    def as_dict(self) -> dict[str, Any]:
        """Returns OpenAI's object."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class _Object:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self.text = ""
        self._depth, self._in_string, self._escaped = 0, False, False

    def push(self, text: str) -> str | None:
        """Takes more text; returns what lies behind the object's end, None before that."""
        for place, character in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif self._in_string:
                self._escaped = character == "\\"
                self._in_string = character != '"'
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.text += text[: place + 1]
                    return text[place + 1 :]
        self.text += text
        return None


class _In(Enum):
    TEXT = auto()  # where a call may begin
    CALL = auto()  # what was opened and is perhaps a call
    BEHIND = auto()  # between a call and what comes next
    REST = auto()  # where no call begins any more


class CallReader:
    """Reads an answer whose model decides whether it calls.

    A form whose opening has no letters (`[`, or nothing) is looked for where the answer begins.

    Args:
        form: how the model writes calls.
        names: of the tools.
        visible: returns what is seen of a text when its tokens are decoded.
    """

    def __init__(
        self, form: CallFormat, names: Collection[str], visible: Callable[[str], str]
    ) -> None:
        self._form, self._names = form, names
        self._opening = visible(form.opening).strip()
        self._closing = visible(form.closing).strip()
        self._between = visible(form.between or "").strip()
        self._anywhere = any(character.isalnum() for character in self._opening)
        self._state, self._held = _In.TEXT, ""
        self._opened = ""  # the text since a call was opened, for when it is none
        self._object = _Object()
        self._calls: list[ToolCall] = []
        self._count = 0

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """Takes more text; returns what is certainly text, and the calls that are whole now."""
        self._held += text
        said = ""
        while True:
            piece, goes_on = self._advance()
            said += piece
            if not goes_on:
                break
        calls, self._calls = self._calls, []
        return said, calls

    def finish(self, finish_reason: str) -> tuple[str, list[ToolCall]]:
        """Returns what was held back: the answer ends here."""
        rest = self._opened + self._held
        behind = self._state is _In.BEHIND or (self._count > 0 and not rest.strip())
        self._opened = self._held = ""
        return ("" if behind else rest), []

    def _advance(self) -> tuple[str, bool]:
        """Returns text, and whether there is more to do with what is held."""
        if self._state is _In.TEXT:
            return self._look() if self._anywhere else self._look_at_first()
        if self._state is _In.CALL:
            return self._read()
        if self._state is _In.BEHIND:
            return "", self._go_on()
        return self._rest()

    def _rest(self) -> tuple[str, bool]:
        if self._count and not self._held.strip():
            return "", False  # white space behind a call, so far
        said, self._held = self._held, ""
        return said, False

    def _look(self) -> tuple[str, bool]:
        at = self._held.find(self._opening)
        if at >= 0:
            said = self._held[:at]
            self._open(at)
            return ("" if self._count and not said.strip() else said), True
        keep = next(
            (n for n in range(len(self._opening) - 1, 0, -1)
             if self._held.endswith(self._opening[:n])), 0,
        )  # fmt: skip
        cut = len(self._held) - keep
        if self._count and not self._held[:cut].strip():
            return "", False
        said, self._held = self._held[:cut], self._held[cut:]
        return said, False

    def _look_at_first(self) -> tuple[str, bool]:
        begins = self._held.lstrip()
        if not begins or (begins != self._opening and self._opening.startswith(begins)):
            return "", False
        if begins.startswith(self._opening):
            blank = self._held[: len(self._held) - len(begins)]
            self._open(len(blank))
            self._opened = blank + self._opened
            return "", True
        self._state = _In.REST
        return "", True

    def _open(self, at: int) -> None:
        behind = at + len(self._opening)
        self._opened, self._held = self._held[at:behind], self._held[behind:]
        self._state, self._object = _In.CALL, _Object()

    def _read(self) -> tuple[str, bool]:
        if not self._object.text:
            blank = len(self._held) - len(self._held.lstrip())
            self._opened += self._held[:blank]
            self._held = self._held[blank:]
            if not self._held:
                return "", False
            if self._held[0] != "{":
                return self._no_call()
        rest = self._object.push(self._held)
        if rest is None:
            self._opened, self._held = self._opened + self._held, ""
            return "", False
        self._opened += self._held[: len(self._held) - len(rest)]
        self._held = rest
        call = self._call(self._object.text)
        if call is None:
            return self._no_call()
        self._calls.append(call)
        self._count += 1
        self._opened, self._state = "", _In.BEHIND
        return "", True

    def _no_call(self) -> tuple[str, bool]:
        said, self._opened = self._opened, ""
        self._state = _In.TEXT if self._anywhere else _In.REST
        return said, True

    def _go_on(self) -> bool:
        """Takes what lies behind a call; returns whether that is known."""
        behind = self._held.lstrip()
        for text, state in ((self._closing, self._after()), (self._between, _In.CALL)):
            if text and behind.startswith(text):
                self._held, self._state = behind[len(text) :], state
                self._object = _Object()
                return True
        if any(text.startswith(behind) for text in (self._closing, self._between) if text):
            return False
        self._state = self._after()
        return True

    def _after(self) -> _In:
        return _In.TEXT if self._anywhere else _In.REST

    def _call(self, text: str) -> ToolCall | None:
        try:
            value = json.loads(text, parse_constant=_refuse)
            arguments = value.get(self._form.arguments_key)
            if isinstance(arguments, str):  # JSON twice
                arguments = json.loads(arguments, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
        name = value.get(self._form.name_key)
        if not isinstance(name, str) or name not in self._names:
            return None
        if arguments is not None and not isinstance(arguments, dict):
            return None
        told = json.dumps(arguments or {}, ensure_ascii=False)
        return ToolCall(self._count, name, told, new_id())


class ForcedCallReader:
    """Reads an answer that was made to be one call, behind the opening.

    Args:
        heads: the call's text up to its arguments, by the names of the tools.
        behind: its text behind them.
    """

    def __init__(self, heads: Mapping[str, str], behind: str) -> None:
        self._heads, self._behind, self._text = heads, behind, ""

    def push(self, text: str) -> tuple[str, list[ToolCall]]:
        """Takes more text; tells nothing before the end."""
        self._text += text
        return "", []

    def finish(self, finish_reason: str) -> tuple[str, list[ToolCall]]:
        """Returns the call, or text that ended before it had a name."""
        for name, head in self._heads.items():
            if not self._text.startswith(head):
                continue
            arguments = self._text[len(head) :]
            if finish_reason == "stop":
                arguments = arguments.removesuffix(self._behind)
            return "", [ToolCall(0, name, arguments, new_id())]
        return self._text, []


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
