"""What a request asks of an engine, what it gets back, and the face that engines have in common.

No asyncio and no text here: tokens in, tokens out.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from npusim.errors import Error

MOST_LOGPROBS = 20  # what an answer may name beside each token
_BIAS = 100.0  # the greatest magnitude; OpenAI's


class BusyError(Error):
    """The queue is full; the request may come again.

    Attributes:
        retry_after: when that is worth while, in seconds.
    """

    def __init__(self, message: str, *, retry_after: int, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after = retry_after


class TooLongError(Error):
    """A prompt and its answer have more tokens than the context holds."""


class Constraint(Protocol):
    """What an answer must look like, token by token. Owned by one request; never shared."""

    def allowed(self) -> NDArray[np.bool_]:
        """Returns bool[vocab]: the tokens that may come next; one at least."""

    def accept(self, token: int) -> bool:
        """Takes the token that came; returns whether the answer is complete."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a request's tokens are chosen, and when it ends.

    The scores of a step are changed in this order: `logit_bias` is added; `presence_penalty` and
    `frequency_penalty` are subtracted; tokens that may not come (`min_tokens`, `constraint`) go to
    -inf; then `repetition_penalty`, temperature, `top_k`, `top_p` and `min_p` as
    `npusim.LanguageModel` has them.

    Attributes:
        max_tokens: new tokens at most; None: as many as the context holds; 0: score the prompt.
        min_tokens: before so many, no stop token is chosen.
        temperature: 0 always takes the most probable token.
        top_k: draw among the k most probable tokens; 0: all.
        top_p: draw among the most probable tokens that together reach this probability.
        min_p: draw among tokens at least this fraction as probable as the most probable one.
        repetition_penalty: above 1 it disfavours tokens of the prompt and the answer.
        presence_penalty: subtracted from the scores of tokens that the answer has, -2 … 2.
        frequency_penalty: the same, times how often the answer has them.
        logit_bias: added to the scores of tokens, -100 … 100 each.
        seed: of the draws; None: another one each time.
        stop_token_ids: tokens that end the answer, besides the model's own.
        ignore_eos: go on after the model's own end of text.
        logprobs: also say the log-probability of each token, and of that many of the most probable
            ones, 0 … 20; they are the model's, before anything above changes scores.
        prompt_logprobs: the same of the prompt's tokens.
        constraint: what the answer must look like.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    constraint: Constraint | None = None

    def check(self, vocab_size: int) -> None:
        """Raises Error that names every option out of its range."""
        in_range = {
            "max_tokens must be 0 or more": self.max_tokens is None or self.max_tokens >= 0,
            "min_tokens must be 0 or more": self.min_tokens >= 0,
            "temperature must be finite, 0 (greedy) or more": 0 <= self.temperature < math.inf,
            "top_k must be 0 (all tokens) or more": 0 <= self.top_k < 2**53,
            "top_p must be above 0 and at most 1": 0 < self.top_p <= 1,
            "min_p must be between 0 and 1": 0 <= self.min_p <= 1,
            "repetition_penalty must be finite and above 0 (1: none)": (
                0 < self.repetition_penalty < math.inf
            ),
            "presence_penalty must be between -2 and 2": -2 <= self.presence_penalty <= 2,
            "frequency_penalty must be between -2 and 2": -2 <= self.frequency_penalty <= 2,
            f"logit_bias must name tokens 0 … {vocab_size - 1} and numbers from -100 to 100": all(
                0 <= token < vocab_size and -_BIAS <= bias <= _BIAS
                for token, bias in self.logit_bias.items()
            ),
            "seed must be an integer from -2**63 to 2**64 - 1": (
                self.seed is None or -(2**63) <= self.seed < 2**64
            ),
            f"stop_token_ids must be tokens 0 … {vocab_size - 1}": all(
                0 <= token < vocab_size for token in self.stop_token_ids
            ),
            f"logprobs must be between 0 and {MOST_LOGPROBS}": all(
                count is None or 0 <= count <= MOST_LOGPROBS
                for count in (self.logprobs, self.prompt_logprobs)
            ),
        }
        wrong = [text for text, holds in in_range.items() if not holds]
        if wrong:
            raise Error(f"The sampling options: {'; '.join(wrong)}.")

    @property
    def reads_scores(self) -> bool:
        """Whether a token's choice or its record needs the scores on the host."""
        changed = self.presence_penalty or self.frequency_penalty or self.logit_bias
        held = self.min_tokens > 0 or self.constraint is not None
        return bool(changed or held or self.logprobs is not None)

    def drawn_seed(self) -> int:
        """Returns the seed as an unsigned number of 64 bits; a random one where there is none."""
        return secrets.randbits(63) if self.seed is None else self.seed % 2**64


@dataclass(frozen=True)
class TokenLogprob:
    """How probable a token was.

    Attributes:
        token: the token.
        logprob: natural logarithm of its probability, by the model's own scores.
        top: the most probable tokens with theirs, in order; equal ones by their numbers.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Piece:
    """What came since the last piece of a request.

    Attributes:
        tokens: new ones; the token that ended the answer is the last of them.
        logprobs: one for each token, where they were asked for.
        finish_reason: "stop" or "length" in the last piece, else None.
        stop_token: the token that ended the answer.
        prompt_logprobs: one for each token of the prompt but the first, in one piece, where they
            were asked for.
    """

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    finish_reason: str | None = None
    stop_token: int | None = None
    prompt_logprobs: list[TokenLogprob] | None = None

    def add(self, later: Piece) -> None:
        """Puts what came after it behind it."""
        self.tokens += later.tokens
        self.logprobs += later.logprobs
        self.finish_reason = later.finish_reason
        self.stop_token = later.stop_token
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs


@dataclass(frozen=True)
class Event:
    """What a poll tells about one request.

    Attributes:
        request: its number.
        piece: what came.
        error: why the request failed; nothing comes after it.
    """

    request: int
    piece: Piece
    error: Error | None = None


class Backend(Protocol):
    """What an engine needs of whoever computes. `submit` and `cancel` may come from any thread
    while one thread polls."""

    max_context: int
    vocab_size: int
    eos_token_ids: Sequence[int]
    max_batch: int

    def submit(self, tokens: Sequence[int], sampling: Sampling, follows: int | None = None) -> int:
        """Takes a request that was checked; returns its number, never used before.

        Args:
            follows: a request with the same tokens, whose prompt it may take over.

        Raises:
            Error: it cannot be served.
        """

    def poll(self, timeout: float) -> list[Event]:
        """Waits for news, `timeout` seconds at most, and returns it."""

    def cancel(self, request: int) -> None:
        """Ends a request; no event tells of it after the next poll. Unknown ones are ignored."""

    def stats(self) -> Mapping[str, float]:
        """Returns counts: `running`, `waiting`, and whatever else it can tell."""

    def failure(self) -> str:
        """Returns why nothing is served any more; empty as long as something is."""

    def close(self) -> None:
        """Frees what it holds; `poll` is not called afterwards."""
