"""Requests over sessions of a LanguageModel: for decoders whose program has no paged step.

Several requests take turns, a token or a chunk of a prompt each; what one computes depends on
nothing but itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from npusim.errors import DeviceError, Error, first_line
from npusim.language_model import LanguageModel, LanguageSession
from npusim.serve.requests import Event, Piece, Sampling, TokenLogprob
from npusim.serve.scores import Chooser, logprob_of

_TURN = 128  # tokens of a prompt that run before the others have their turn


@dataclass
class _Request:
    """A request and how far it is."""

    number: int
    prompt: Sequence[int]
    sampling: Sampling
    stop_tokens: frozenset[int]
    most: int
    chooser: Chooser
    session: LanguageSession | None = None
    fed: int = 0  # tokens of the prompt that ran
    made: int = 0
    last: int | None = None  # a token that was chosen on the host and has not run
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)


class SessionBackend:
    """Serves requests by sessions that take turns.

    Args:
        model: the language model.
        max_batch: sessions at a time; each has a cache of the whole context.
    """

    def __init__(self, model: LanguageModel, max_batch: int = 4) -> None:
        self._model = model
        self.max_context, self.vocab_size = model.max_context, model.vocab_size
        self.eos_token_ids: Sequence[int] = model.eos_token_ids
        self.max_batch = max_batch
        self._turn = max(_TURN, model.native.prefill_chunk)
        self._changed = threading.Condition()
        self._waiting: OrderedDict[int, _Request] = OrderedDict()
        self._running: OrderedDict[int, _Request] = OrderedDict()
        self._cancelled: set[int] = set()
        self._free: list[LanguageSession] = []
        self._next = 0

    def submit(self, tokens: Sequence[int], sampling: Sampling, follows: int | None = None) -> int:
        """Takes a request; returns its number. Sessions share nothing, whomever it follows."""
        room = self.max_context - len(tokens)
        most = room if sampling.max_tokens is None else sampling.max_tokens
        own = () if sampling.ignore_eos else self.eos_token_ids
        stops = frozenset((*own, *sampling.stop_token_ids))
        chooser = Chooser(sampling, stops)
        with self._changed:
            number, self._next = self._next, self._next + 1
            self._waiting[number] = _Request(number, tokens, sampling, stops, most, chooser)
            self._changed.notify()
        return number

    def cancel(self, request: int) -> None:
        """Ends a request."""
        with self._changed:
            if self._waiting.pop(request, None) is None and request in self._running:
                self._cancelled.add(request)

    def poll(self, timeout: float) -> list[Event]:
        """Gives every running request a turn; returns what came of it."""
        with self._changed:
            if not self._waiting and not self._running:
                self._changed.wait(timeout)
            for number in self._cancelled:
                self._end(number)
            self._cancelled.clear()
            while self._waiting and len(self._running) < self.max_batch:
                number, request = self._waiting.popitem(last=False)
                self._running[number] = request
            turns = list(self._running.values())
        events = [event for request in turns if (event := self._take_turn(request)) is not None]
        with self._changed:
            for event in events:
                if event.error is not None or event.piece.finish_reason is not None:
                    self._end(event.request, keep=event.error is None)
        return events

    def stats(self) -> Mapping[str, float]:
        """Returns how many requests run and wait."""
        with self._changed:
            return {"running": len(self._running), "waiting": len(self._waiting)}

    def failure(self) -> str:
        """Sessions fail one by one."""
        return ""

    def close(self) -> None:
        """Forgets all requests and sessions."""
        with self._changed:
            for held in (self._waiting, self._running, self._cancelled, self._free):
                held.clear()

    def _end(self, number: int, keep: bool = True) -> None:
        """Forgets a running request; its session serves others, unless something failed in it."""
        request = self._running.pop(number, None)
        if request is not None and request.session is not None and keep:
            request.session.reset()
            self._free.append(request.session)

    def _take_turn(self, request: _Request) -> Event | None:
        try:
            if request.session is None:
                request.session = self._free.pop() if self._free else self._model.new_session()
            piece = self._advance(request, request.session)
        except Error as error:
            return Event(request.number, Piece(), error)
        except (MemoryError, RuntimeError) as error:
            return Event(request.number, Piece(), DeviceError(f"{first_line(error)}."))
        return None if piece is None else Event(request.number, piece)

    def _advance(self, request: _Request, session: LanguageSession) -> Piece | None:
        """Runs a turn's tokens of the prompt, or makes a token."""
        if request.fed < len(request.prompt):
            self._feed(request, session)
            if request.fed < len(request.prompt) or request.most > 0:
                return None
        piece = self._next_token(request, session) if request.most > 0 else Piece()
        if request.sampling.prompt_logprobs is not None and request.made <= 1:
            piece.prompt_logprobs = request.prompt_logprobs
        if piece.finish_reason is None and request.made >= request.most:
            piece.finish_reason = "length"
        return piece

    def _feed(self, request: _Request, session: LanguageSession) -> None:
        count = request.sampling.prompt_logprobs
        for _ in range(1 if count is None else self._turn):
            end = min(len(request.prompt), request.fed + (self._turn if count is None else 1))
            if count is not None and request.fed > 0:
                scores = session.logits
                token = request.prompt[request.fed]
                request.prompt_logprobs.append(logprob_of(scores, token, count))
            session.append(request.prompt[request.fed : end])
            request.fed = end
            if end == len(request.prompt):
                return

    def _next_token(self, request: _Request, session: LanguageSession) -> Piece:
        sampling = request.sampling
        more = request.made + 1 < request.most
        piece = Piece()
        if sampling.reads_scores:
            token = self._choose(request, session, piece)
        else:
            token = session._native.step(request.chooser.sampler, more)
        request.made += 1
        piece.tokens.append(token)
        complete = sampling.constraint is not None and sampling.constraint.accept(token)
        if token in request.stop_tokens:
            piece.finish_reason, piece.stop_token = "stop", token
        elif complete:
            piece.finish_reason = "stop"
        return piece

    def _choose(self, request: _Request, session: LanguageSession, piece: Piece) -> int:
        if request.last is not None:
            session.append((request.last,))
        scores = session.logits
        given = scores.copy() if request.sampling.logprobs is not None else None
        history = session.tokens if request.sampling.repetition_penalty != 1 else ()
        token = request.chooser.choose(scores, history)
        if given is not None:
            piece.logprobs.append(logprob_of(given, token, request.sampling.logprobs or 0))
        request.last = token
        return token
