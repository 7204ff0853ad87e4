"""Choosing a token on the host: what a request's options make of the model's scores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from npusim import _runtime
from npusim.serve.requests import Sampling, TokenLogprob


class Chooser:
    """Chooses the tokens of one request.

    Args:
        sampling: how.
        stop_tokens: those that `min_tokens` holds back.
    """

    def __init__(self, sampling: Sampling, stop_tokens: Collection[int]) -> None:
        self._sampling = sampling
        self._stop_tokens = sorted(stop_tokens)
        self._said: Counter[int] = Counter()
        bias = sampling.logit_bias
        self._biased = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self.sampler = _runtime.Sampler(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            seed=sampling.drawn_seed(),
        )

    def choose(self, scores: NDArray[np.float32], history: Sequence[int]) -> int:
        """Returns the next token.

        Args:
            scores: float32[vocab]; they are changed.
            history: all tokens so far, for the repetition penalty.

        Raises:
            Error: no token is left to choose.
        """
        self._change(scores)
        token = self.sampler.sample(scores, history)
        self._said[token] += 1
        return token

    def _change(self, scores: NDArray[np.float32]) -> None:
        sampling = self._sampling
        scores[self._biased] += self._bias
        if self._said and (sampling.presence_penalty or sampling.frequency_penalty):
            tokens = np.fromiter(self._said.keys(), np.int64, len(self._said))
            counts = np.fromiter(self._said.values(), np.float32, len(self._said))
            penalty = sampling.presence_penalty + sampling.frequency_penalty * counts
            scores[tokens] -= penalty.astype(np.float32)
        if self._said.total() < sampling.min_tokens:
            scores[self._stop_tokens] = -np.inf
        if sampling.constraint is not None:
            scores[~sampling.constraint.allowed()] = -np.inf


def logprob_of(scores: NDArray[np.float32], token: int, count: int) -> TokenLogprob:
    """Returns the log-probability of a token, and those of the `count` most probable ones.

    Args:
        scores: float32[vocab], as the model gave them.
    """
    values = scores.astype(np.float64)
    values -= values.max()
    values -= np.log(np.exp(values).sum())
    if count <= 0:
        return TokenLogprob(token, float(values[token]))
    count = min(count, values.size)
    least = np.partition(values, values.size - count)[values.size - count]
    among = np.flatnonzero(values >= least)  # all that are as probable as the last of them
    order = among[np.argsort(-values[among], kind="stable")][:count]
    return TokenLogprob(
        token, float(values[token]), tuple((int(i), float(values[i])) for i in order)
    )
