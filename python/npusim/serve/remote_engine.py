"""The engine of another process, as a front end asks it: AnyEngine over a channel.

Masks of answers of a given form are made here, so that they cost the engine's process nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import npusim.errors
from npusim.errors import Error
from npusim.language_model import Tokenizer
from npusim.language_model.model import check_tokens, fitting_tokenizer
from npusim.serve.channel import ACCEPTED, NUMBER, Kind, message, submission
from npusim.serve.engine import Engine, Stream, check_request, retry_after
from npusim.serve.packed_events import unpacked
from npusim.serve.paged import follow, native_options
from npusim.serve.requests import BusyError, Constraint, Event, Piece, Sampling


def facts_of(engine: Engine) -> dict[str, Any]:
    """Returns what a front end has to know of an engine; JSON."""
    path = engine.model.tokenizer_path
    return {
        "max_context": engine.max_context,
        "max_batch": engine.max_batch,
        "most_open": engine.most_open,
        "vocab_size": engine.model.vocab_size,
        "eos_token_ids": list(engine.model.eos_token_ids),
        "tokenizer": None if path is None else str(path.absolute()),
    }


class RemoteModel:
    """The model of an engine elsewhere: as `AnyModel` has it."""

    def __init__(self, facts: Mapping[str, Any]) -> None:
        self.vocab_size: int = facts["vocab_size"]
        self.eos_token_ids: tuple[int, ...] = tuple(facts["eos_token_ids"])
        self._path: str | None = facts["tokenizer"]
        self._tokenizer: Tokenizer | None = None

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is a tokenizer."""
        return self._path is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; Error where there is none, or it is no good."""
        if self._path is None:
            raise Error("This language model has no tokenizer.", hint="Work with token ids.")
        if self._tokenizer is None:
            self._tokenizer = fitting_tokenizer(Path(self._path), self.vocab_size)
        return self._tokenizer

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raises Error for the first token outside the vocabulary."""
        check_tokens(tokens, self.vocab_size)


class RemoteEngine:
    """Asks an engine through a channel. All calls are made in one event loop.

    Args:
        facts: of `facts_of`.
        send: sends a message.

    Attributes:
        taken: how many requests there were so far.
    """

    def __init__(self, facts: Mapping[str, Any], send: Callable[[bytes], None]) -> None:
        self.model = RemoteModel(facts)
        self.max_context: int = facts["max_context"]
        self.max_batch: int = facts["max_batch"]
        self.most_open: int = facts["most_open"]
        self._send = send
        self._tickets = itertools.count(1)
        self._asked: dict[int, tuple[Sequence[int], asyncio.Future[Stream]]] = {}
        self._streams: dict[int, Stream] = {}
        self._started: dict[int, float] = {}
        self._constraints: dict[int, Constraint] = {}
        self._refuses: Error | None = None  # for good
        self._pauses: dict[Kind, Error] = {}  # why not now, by what would say that it is again
        self._seconds = 1.0  # how long a request took lately
        self.taken = 0

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer; Error where there is none."""
        return self.model.tokenizer

    @property
    def open(self) -> int:
        """How many requests of this process have not ended."""
        return len(self._streams)

    async def ask(
        self, prompt: Sequence[int], sampling: Sampling, follows: Stream | None = None
    ) -> Stream:
        """Takes a request, when the engine has; raises as `Engine.submit`."""
        check_request(prompt, sampling, self.max_context, self.model.vocab_size)
        self.check()
        options = native_options(sampling)
        if not sampling.ignore_eos:
            options["stop_tokens"] += self.model.eos_token_ids
        ticket = next(self._tickets)
        answer: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self._asked[ticket] = prompt, answer
        before = 0 if follows is None else follows.number
        self._send(submission(ticket, before, prompt, options))
        try:
            stream = await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                answer.result().close()  # nobody else knows of it
            raise
        if sampling.constraint is not None:
            self._constrain(stream, sampling.constraint)
        return stream

    def check(self) -> None:
        """Raises Error if the engine cannot serve, as far as it has said."""
        why = self._refuses or next(iter(self._pauses.values()), None)
        if why is not None:
            raise why.with_traceback(None)  # which would grow, as it is raised often

    def stats(self) -> Mapping[str, float]:
        """Returns what this process knows: how many of its requests are `open`."""
        return {"open": len(self._streams)}

    def refuse(self, why: Error) -> None:
        """Takes no more requests."""
        self._refuses = self._refuses or why

    def pause(self, until: Kind, why: Error | None) -> None:
        """Takes no requests until that has been heard; None: it has."""
        if why is None:
            self._pauses.pop(until, None)
        else:
            self._pauses[until] = why

    def end_all(self, why: Error) -> None:
        """Tells all that are open that they failed."""
        for number in list(self._streams):
            self._tell(Event(number, Piece(), why))
            self._send(message(Kind.CANCEL, NUMBER.pack(number)))
        for _, answer in self._asked.values():
            if not answer.done():
                answer.set_exception(why)
        self._asked.clear()

    def accepted(self, content: bytes) -> None:
        """Takes a message ACCEPTED."""
        ticket, number = ACCEPTED.unpack(content)
        prompt, answer = self._asked.pop(ticket, ((), None))
        if answer is None or answer.done():  # who asked is gone
            self._send(message(Kind.CANCEL, NUMBER.pack(number)))
            return
        stream = self._streams[number] = Stream(self._end, number, prompt)
        self._started[number] = time.monotonic()
        self.taken += 1
        answer.set_result(stream)

    def refused(self, content: bytes) -> None:
        """Takes a message REFUSED."""
        told = json.loads(content)
        _, answer = self._asked.pop(told["ticket"], ((), None))
        if answer is not None and not answer.done():  # told since to refuse all: that is why
            answer.set_exception(self._refuses or self._refusal(told))

    def events(self, content: bytes) -> None:
        """Takes a message EVENTS."""
        for event in unpacked(content):
            constraint = self._constraints.get(event.request)
            if constraint is not None and event.error is None:
                event = self._followed(event, constraint)
            self._tell(event)

    def _refusal(self, told: Mapping[str, Any]) -> Error:
        if told["busy"]:
            after = retry_after(self._seconds, told["open"], self.max_batch)
            return BusyError(told["message"], retry_after=after)
        of: type[Error] = getattr(npusim.errors, told["class"], Error)
        return of(told["message"])

    def _constrain(self, stream: Stream, constraint: Constraint) -> None:
        self._constraints[stream.number] = constraint
        try:
            self._allow(stream.number, constraint)
        except Error:
            stream.close()
            raise

    def _followed(self, event: Event, constraint: Constraint) -> Event:
        """Tells a constraint what came, and the engine what may come next."""
        if event.piece.finish_reason is not None:
            return event
        try:
            if follow(constraint, event.piece):
                self._allow(event.request, constraint)
                return event
        except Error as error:
            event = Event(event.request, event.piece, error)
        self._send(message(Kind.CANCEL, NUMBER.pack(event.request)))
        return event

    def _allow(self, number: int, constraint: Constraint) -> None:
        bits = np.packbits(constraint.allowed(), bitorder="little").tobytes()
        self._send(message(Kind.ALLOW, NUMBER.pack(number) + bits))

    def _tell(self, event: Event) -> None:
        stream = self._streams.get(event.request)
        if stream is None:
            return
        if event.error is not None or event.piece.finish_reason is not None:
            self._forget(event.request)
        stream.take(event)

    def _forget(self, number: int) -> bool:
        """Returns whether it was known."""
        known = self._streams.pop(number, None)
        self._constraints.pop(number, None)
        began = self._started.pop(number, None)
        if began is not None:
            self._seconds += 0.1 * (time.monotonic() - began - self._seconds)
        return known is not None

    def _end(self, number: int) -> None:
        if self._forget(number):
            self._send(message(Kind.CANCEL, NUMBER.pack(number)))
