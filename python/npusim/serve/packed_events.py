"""What the native engine's `poll_packed` tells, out of bytes; in the machine's own order of bytes.

uint32 plain, tokens                 events of nothing but tokens, and how many these have
uint64[plain], uint32[plain]         their requests, and how many tokens each has
int32[tokens]
and of each other event, to the end:
    uint64 request, uint32 count, uint8 facts, int32[count] tokens
    as bits of facts say: records of the tokens (4), of the prompt (8), an error (16);
    the answer stopped (1) or is as long as it may be (2)
records: uint32 count, and for each int32 token, uint32 top, float64 logprob,
    top times int32 token, float64 logprob
error: the name of a class of npusim.errors and a message, each uint32 length and UTF-8
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator

import npusim.errors
from npusim.errors import Error
from npusim.serve.requests import Event, Piece, TokenLogprob

_HEAD, _OTHER = struct.Struct("=II"), struct.Struct("=QIB")
_COUNT, _RECORD, _PAIR = struct.Struct("=I"), struct.Struct("=iId"), struct.Struct("=id")
_STOP, _LENGTH, _LOGPROBS, _PROMPT_LOGPROBS, _ERROR = 1, 2, 4, 8, 16


def unpacked(packed: bytes) -> Iterator[Event]:
    """Yields the events; `Piece.stop_token` is the last one of an answer that stopped."""
    if not packed:
        return
    plain, count = _HEAD.unpack_from(packed)
    first = _HEAD.size
    second, third = first + 8 * plain, first + 12 * plain
    end = third + 4 * count
    requests, counts = array("Q", packed[first:second]), array("I", packed[second:third])
    tokens = array("i", packed[third:end]).tolist()
    at = 0
    for request, has in zip(requests, counts, strict=True):
        yield Event(request, Piece(tokens[at : at + has]))
        at += has
    reader = _Reader(packed, end)
    while reader.at < len(packed):
        yield reader.event()


class _Reader:
    """Reads events that are more than tokens, one after the other.

    Attributes:
        at: where the next one begins.
    """

    def __init__(self, packed: bytes, at: int) -> None:
        self._packed, self.at = packed, at

    def event(self) -> Event:
        """Reads one."""
        request, count, facts = self._take(_OTHER)
        piece = Piece(array("i", self._bytes(4 * count)).tolist())
        if facts & _STOP:
            piece.finish_reason, piece.stop_token = "stop", piece.tokens[-1]
        elif facts & _LENGTH:
            piece.finish_reason = "length"
        if facts & _LOGPROBS:
            piece.logprobs = self._records()
        if facts & _PROMPT_LOGPROBS:
            piece.prompt_logprobs = self._records()
        if not facts & _ERROR:
            return Event(request, piece)
        of, message = self._text(), self._text()
        return Event(request, piece, getattr(npusim.errors, of, Error)(message))

    def _records(self) -> list[TokenLogprob]:
        (count,) = self._take(_COUNT)
        return [self._record() for _ in range(count)]

    def _record(self) -> TokenLogprob:
        token, top, logprob = self._take(_RECORD)
        pairs = _PAIR.iter_unpack(self._bytes(_PAIR.size * top))
        return TokenLogprob(token, logprob, tuple(pairs))

    def _text(self) -> str:
        (length,) = self._take(_COUNT)
        return self._bytes(length).decode("utf-8", "replace")

    def _take(self, of: struct.Struct) -> tuple[int, ...]:
        values = of.unpack_from(self._packed, self.at)
        self.at += of.size
        return values

    def _bytes(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        return self._packed[start : self.at]
