"""Requests over the native engine (cpp/serve): for programs whose method `step` takes rows of many.

The engine's thread plans and runs the steps; `poll` fetches what came of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npusim import _runtime
from npusim.errors import Error
from npusim.serve.requests import Constraint, Event, Piece, Sampling, TokenLogprob

_Record = tuple[int, float, list[tuple[int, float]]]


class PagedBackend:
    """Serves requests by steps over pages.

    Args:
        native: the engine; closed with the backend.
        eos_token_ids: end the answers that do not ignore them; by default the program's.
    """

    def __init__(self, native: _runtime.Engine, eos_token_ids: Sequence[int] | None = None) -> None:
        self.native = native
        facts = self.native.facts()
        self.max_context: int = facts["max_context"]
        self.vocab_size: int = facts["vocab_size"]
        own: Sequence[int] = facts["eos_token_ids"]
        self.eos_token_ids = own if eos_token_ids is None else eos_token_ids
        self.max_batch: int = facts["max_requests"]
        self._lock = threading.Lock()
        self._requests: dict[int, Sampling] = {}

    def submit(self, tokens: Sequence[int], sampling: Sampling, follows: int | None = None) -> int:
        """Takes a request; returns its number. One that follows another waits for its prompt, and
        takes over the full pages of it."""
        options = native_options(sampling)
        options["follows"] = follows or 0
        if not sampling.ignore_eos:
            options["stop_tokens"] += self.eos_token_ids
        with self._lock:
            number = self.native.submit(list(tokens), options)
            self._requests[number] = sampling
        if sampling.constraint is not None:
            self._allow(number, sampling.constraint)
        return number

    def cancel(self, request: int) -> None:
        """Ends a request."""
        with self._lock:
            self._requests.pop(request, None)
        self.native.cancel(request)

    def poll(self, timeout: float) -> list[Event]:
        """Waits for what came of the latest steps."""
        events = []
        news = self.native.poll(timeout)
        with self._lock:
            known = [self._requests.get(told[0]) for told in news]
            for number, _, _, _, ending, error, _ in news:
                if ending is not None or error is not None:
                    self._requests.pop(number, None)
        for (number, tokens, logprobs, prompt, ending, error, _), sampling in zip(
            news, known, strict=True
        ):
            if sampling is None:
                continue
            piece = Piece(tokens, _records(logprobs), ending, prompt_logprobs=None)
            if prompt is not None:
                piece.prompt_logprobs = _records(prompt)
            if ending == "stop":
                piece.stop_token = tokens[-1]
            if sampling.constraint is not None and ending is None and error is None:
                error = self._follow(number, sampling.constraint, piece)
            events.append(Event(number, piece, error))
        return events

    def stats(self) -> Mapping[str, float]:
        """Returns what the native engine counts."""
        return self.native.stats()

    def failure(self) -> str:
        """Returns what the native engine failed of."""
        return self.native.failure()

    def close(self) -> None:
        """Ends all requests, and the engine's thread."""
        self.native.close()

    def _follow(self, number: int, constraint: Constraint, piece: Piece) -> Error | None:
        """Tells a constraint what came, and the engine what may come next."""
        try:
            if follow(constraint, piece):
                self._allow(number, constraint)
                return None
        except Error as error:
            self.cancel(number)
            return error
        self.cancel(number)
        return None

    def _allow(self, number: int, constraint: Constraint) -> None:
        self.native.allow(number, np.ascontiguousarray(constraint.allowed(), np.bool_))


def follow(constraint: Constraint, piece: Piece) -> bool:
    """Tells a constraint what came; returns whether more may come, or else ends the piece.

    Raises:
        Error: the constraint failed.
    """
    if any(constraint.accept(token) for token in piece.tokens):
        piece.finish_reason = "stop"
        return False
    return True


def native_options(sampling: Sampling) -> dict[str, Any]:
    """Returns what `_runtime.Engine.submit` calls these options."""
    named = ("min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    more = ("presence_penalty", "frequency_penalty", "ignore_eos")
    return {
        **{name: getattr(sampling, name) for name in named + more},
        "max_tokens": -1 if sampling.max_tokens is None else sampling.max_tokens,
        "seed": sampling.drawn_seed(),
        "stop_tokens": list(sampling.stop_token_ids),
        "logit_bias": list(sampling.logit_bias.items()),
        "logprobs": -1 if sampling.logprobs is None else sampling.logprobs,
        "prompt_logprobs": -1 if sampling.prompt_logprobs is None else sampling.prompt_logprobs,
        "masked": sampling.constraint is not None,
    }


def _records(logprobs: Sequence[_Record] | None) -> list[TokenLogprob]:
    if not logprobs:
        return []
    return [TokenLogprob(token, value, tuple(top)) for token, value, top in logprobs]
