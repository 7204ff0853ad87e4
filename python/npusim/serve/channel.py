"""What the process of an engine and those that serve its clients tell each other.

These are messages over a pair of sockets.

A message is its length, its kind and its content. Only what one process of a server wrote is
read by another one of the same server.
"""

from __future__ import annotations

import enum
import json
import struct
from array import array
from collections.abc import Sequence
from typing import Any

_HEAD = struct.Struct("=IB")
_SUBMIT = struct.Struct("=QQI")
NUMBER, TICKET = struct.Struct("=Q"), struct.Struct("=Q")  # never used up
ACCEPTED, CONNECTIONS = struct.Struct("=QQ"), struct.Struct("=QQ")

BEAT = 1.0  # seconds between two messages of a front end that lives, at most: CONNECTIONS at least


class Kind(enum.IntEnum):
    """Kinds of messages.

    To a front end: HELLO, LOADED, NOT_LOADED (JSON: what it serves), ACCEPTED (ticket, request),
    REFUSED (JSON), EVENTS (`packed_events`), FAILED (JSON: why nothing is served; "": it is again),
    METRICS (ticket, text), DRAIN, END (JSON: the error that streams get), ALIVE (for each
    CONNECTIONS).

    From one: SUBMIT (`submission`), CANCEL (request), ALLOW (request, bits of tokens), NOTES (JSON:
    what metrics count), ASK_METRICS (ticket), CONNECTIONS (how many it has, and how many it took
    so far), READY (it answers requests, after LOADED).
    """

    HELLO = 0
    LOADED = 1
    NOT_LOADED = 2
    ACCEPTED = 3
    REFUSED = 4
    EVENTS = 5
    METRICS = 6
    DRAIN = 7
    END = 8
    FAILED = 9
    ALIVE = 10
    SUBMIT = 16
    CANCEL = 17
    ALLOW = 18
    NOTES = 19
    ASK_METRICS = 20
    CONNECTIONS = 21
    READY = 22


def message(kind: Kind, content: bytes = b"") -> bytes:
    """Returns a message as it is sent."""
    return _HEAD.pack(len(content), kind) + content


def json_message(kind: Kind, value: Any) -> bytes:
    """Returns a message whose content is JSON."""
    return message(kind, json.dumps(value).encode())


def submission(ticket: int, follows: int, tokens: Sequence[int], options: Any) -> bytes:
    """Returns a message that asks for an answer.

    Args:
        ticket: what the reply names.
        follows: a request with the same tokens, or 0.
        tokens: of the prompt; checked.
        options: of the native engine.
    """
    told = json.dumps(options).encode()
    head = _SUBMIT.pack(ticket, follows, len(told))
    return message(Kind.SUBMIT, head + told + array("i", tokens).tobytes())


def read_submission(content: bytes) -> tuple[int, int, list[int], dict[str, Any]]:
    """Returns ticket, follows, tokens and options."""
    ticket, follows, length = _SUBMIT.unpack_from(content)
    end = _SUBMIT.size + length
    options = json.loads(content[_SUBMIT.size : end])
    return ticket, follows, array("i", content[end:]).tolist(), options


class Messages:
    """Messages out of bytes as they come."""

    def __init__(self) -> None:
        self._held = bytearray()

    def push(self, news: bytes) -> list[tuple[Kind, bytes]]:
        """Takes bytes; returns the messages that are whole."""
        self._held += news
        whole, at = [], 0
        while len(self._held) - at >= _HEAD.size:
            length, kind = _HEAD.unpack_from(self._held, at)
            end = at + _HEAD.size + length
            if len(self._held) < end:
                break
            whole.append((Kind(kind), bytes(self._held[at + _HEAD.size : end])))
            at = end
        del self._held[:at]
        return whole
