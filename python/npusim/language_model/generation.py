"""Generating: the loop over a session's steps, as iterators of tokens and of text.

Owns when generation ends and what it reports. An iterator may be left at any time, by `break` or by
Ctrl-C: the session keeps the tokens made until then, and can go on.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from npusim import _runtime
from npusim.errors import Error
from npusim.language_model.tokenizer import StopStrings, TextStream, Tokenizer

if TYPE_CHECKING:
    from npusim.language_model.session import LanguageSession


class Sampling(TypedDict, total=False):
    """How the next token is chosen: the options of `_runtime.Sampler`, in their order of effect.

    Keys:
        repetition_penalty: above 1 it disfavours tokens of the prompt and the text so far.
        temperature: 0 always takes the most probable token; 1 draws as the model says.
        top_k: draw among the k most probable tokens only; 0: all.
        top_p: draw among the most probable tokens that together reach this probability.
        min_p: draw among tokens at least this fraction as probable as the most probable one.
        seed: of the draws; the same seed gives the same text. None: another one each time.
    """

    repetition_penalty: float
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None


class GenerateOptions(Sampling, total=False):
    """What `generate` takes beside the prompt: `Sampling`, and where the text ends.

    Keys:
        max_new_tokens: None: as many as the context holds.
        stop: strings; the text ends before the first one.
        stop_token_ids: tokens that end the text, besides the model's own.
        ignore_eos: go on after the model's own end of text.
        return_logits: keep the scores that each token was drawn from.
    """

    max_new_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    return_logits: bool


class TokenOptions(Sampling, total=False):
    """What `generate_tokens` takes beside the prompt: `GenerateOptions` without `stop`."""

    max_new_tokens: int | None
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    return_logits: bool


def make_sampler(sampling: Sampling) -> _runtime.Sampler:
    """Returns a sampler; Error for options that are unknown, of a wrong type or out of range."""
    options = dict(sampling)
    unknown = sorted(set(options) - set(Sampling.__annotations__))
    if unknown:
        known = ", ".join(Sampling.__annotations__)
        raise TypeError(f"unknown sampling option {', '.join(unknown)}; there are: {known}")
    seed = options.pop("seed", None)
    if seed is None:
        seed = secrets.randbits(63)
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise Error(f"seed is {seed!r}, it must be an integer from 0 to 2**64 - 1.")
    try:
        return _runtime.Sampler(**options, seed=seed)  # type: ignore[arg-type]
    except TypeError:
        given = ", ".join(f"{key}={value!r}" for key, value in options.items())
        raise Error(
            f"The sampling options must be numbers, top_k an integer; got {given}."
        ) from None


@dataclass
class Stats:
    """How long generating took so far, in seconds of the wall clock.

    Attributes:
        prompt_tokens: tokens appended before the first new one.
        new_tokens: tokens made.
        time_to_first_token: from the first request for a token until it was there.
        decode_seconds: from then until the latest token was there.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    time_to_first_token: float = 0.0
    decode_seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """Of the tokens after the first one; 0 when there are none."""
        return (self.new_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """How fast the prompt went in, the first token included; 0 before it is there."""
        first = self.time_to_first_token
        return self.prompt_tokens / first if first > 0 else 0.0


@dataclass(frozen=True)
class Limits:
    """When generation ends, besides at the end of the context.

    Attributes:
        max_new_tokens: None: as many as the context holds.
        stop_tokens: a token of these ends the text; it is the last one made.
        keep_logits: collect the scores each token was drawn from.
    """

    max_new_tokens: int | None = None
    stop_tokens: Collection[int] = ()
    keep_logits: bool = False


@dataclass(eq=False)
class TokenGeneration(Iterator[int]):
    """Yields new tokens. The prompt runs when the first one is asked for.

    Attributes:
        session: what is continued.
        tokens: those made so far; one that ended the text is included.
        finish_reason: "stop" (a stop token or string), "length" (max_new_tokens), "context" (it is
            full), or None while there is more to come.
        logits: with `return_logits`, the scores each token was drawn from.
        stats: counts and times.
    """

    session: LanguageSession
    prompt: Sequence[int]
    sampler: _runtime.Sampler
    limits: Limits
    context: int
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    logits: list[NDArray[np.float32]] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    _first: float | None = None

    def __next__(self) -> int:
        if self.finish_reason is None:
            self._check_room()
        if self.finish_reason is not None:
            raise StopIteration
        token = self._step()
        self.tokens.append(token)
        if token in self.limits.stop_tokens:
            self.finish_reason = "stop"
        return token

    def _check_room(self) -> None:
        most = self.limits.max_new_tokens
        if most is not None and len(self.tokens) >= most:
            self.finish_reason = "length"
        elif self.tokens and self.session.position >= self.context:
            self.finish_reason = "context"

    def _step(self) -> int:
        start = time.perf_counter()
        if self._first is None and self.prompt:
            self.session.append(self.prompt)
            self.stats.prompt_tokens = len(self.prompt)
            self.prompt = ()
        if self.limits.keep_logits:
            self.logits.append(self.session.logits)
        most = self.limits.max_new_tokens
        more = not self.limits.keep_logits and (most is None or len(self.tokens) + 1 < most)
        token = self.session._native.step(self.sampler, more)
        now = time.perf_counter()
        self.stats.new_tokens += 1
        if self._first is None:
            self._first = now
            self.stats.time_to_first_token = now - start
        else:
            self.stats.decode_seconds = now - self._first
        return token


class TextGeneration(Iterator[str]):
    """Yields new text in pieces of whole characters; special tokens and stop strings do not show.

    A stop string may end inside a token; the session keeps that token whole.

    Attributes:
        text: all text so far.
        tokens, finish_reason, logits, stats, session: as of TokenGeneration.
    """

    def __init__(
        self, tokens: TokenGeneration, tokenizer: Tokenizer, stops: Sequence[str] = ()
    ) -> None:
        self._generation = tokens
        self._stream = TextStream(tokenizer)
        self._stops = StopStrings(stops)
        self._ended = False
        self.text = ""

    @property
    def tokens(self) -> list[int]:
        """The tokens made so far."""
        return self._generation.tokens

    @property
    def finish_reason(self) -> str | None:
        """Why it ended, or None."""
        return self._generation.finish_reason

    @property
    def logits(self) -> list[NDArray[np.float32]]:
        """The scores each token was drawn from, when they were asked for."""
        return self._generation.logits

    @property
    def stats(self) -> Stats:
        """Counts and times."""
        return self._generation.stats

    @property
    def session(self) -> LanguageSession:
        """What is continued."""
        return self._generation.session

    def __next__(self) -> str:
        while not self._ended:
            piece = self._advance()
            if piece:
                self.text += piece
                return piece
        raise StopIteration

    def flush(self) -> str:
        """Ends the text here; returns what was held back of it."""
        if self._ended:
            return ""
        self._ended = True
        piece = self._stops.push(self._stream.finish())
        if not self._stops.found:
            piece += self._stops.finish()
        self.text += piece
        return piece

    def _advance(self) -> str:
        try:
            token = next(self._generation)
        except StopIteration:
            start = len(self.text)
            self.flush()
            piece, self.text = self.text[start:], self.text[:start]
            return piece
        if token in self._generation.limits.stop_tokens:
            return ""  # it may be text, but not of the answer
        piece = self._stops.push(self._stream.push(token))
        if self._stops.found:
            self._ended = True
            self._generation.finish_reason = "stop"
        return piece


def check_stops(stop: str | Sequence[str]) -> tuple[str, ...]:
    """Returns stop strings as a tuple; Error for one that is empty or no string."""
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    for value in stops:
        if not isinstance(value, str) or not value:
            raise Error(f"A stop string is {value!r}; it must be a string that is not empty.")
    return stops
