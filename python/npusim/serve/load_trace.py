"""What a load test sends: lengths of prompts and answers, and when each request comes.

Lengths follow published traces. Azure 2023 (github.com/Azure/AzurePublicDataset, CC-BY): log-normal
fits to its two services, whose arrivals have coefficients of variation of 1.09 and 13. "sharegpt"
has the mean lengths of vLLM's benchmark on that data, for every request.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from npusim.errors import Error

_SHORTEST = 1


@dataclass(frozen=True)
class Distribution:
    """Lengths of a kind of traffic, in tokens.

    Attributes:
        prompt, answer: (µ, σ) of the logarithm.
        burstiness: shape of the Gamma distribution of the times between arrivals, 1 / CV².
    """

    prompt: tuple[float, float]
    answer: tuple[float, float]
    burstiness: float


TRACES = {
    "azure-conversation": Distribution((6.63, 0.99), (5.02, 0.86), 1 / 1.09**2),
    "azure-code": Distribution((7.00, 1.36), (2.79, 0.85), 1 / 13.0**2),
    "sharegpt": Distribution((np.log(161), 0.0), (np.log(338), 0.0), 1.0),
}


@dataclass(frozen=True)
class Trace:
    """The requests of a load test.

    Attributes:
        prompts: token ids, an array a request.
        answers: int64[n], how many tokens each answer has.
        delays: float64[n], seconds from the beginning until each request comes.
        cut: requests that were shortened to fit into the context.
    """

    prompts: list[NDArray[np.int64]]
    answers: NDArray[np.int64]
    delays: NDArray[np.float64]
    cut: int


def make_trace(
    count: int,
    lengths: Distribution,
    *,
    request_rate: float,
    burstiness: float,
    max_context: int,
    vocab_size: int,
    seed: int,
) -> Trace:
    """Returns seeded requests.

    Args:
        count: how many.
        lengths: of prompts and answers.
        request_rate: a second, on average; infinity: all at once.
        burstiness: shape of the Gamma distribution between arrivals; 1: Poisson.
        max_context: what a prompt and its answer have together, at most.
        vocab_size: tokens are below it.
        seed: the same seed gives the same requests.

    Raises:
        Error: a number is out of its range.
    """
    if count < 1 or max_context < 2 or vocab_size < 1:
        raise Error("A load test needs a request, two tokens of context and a vocabulary.")
    if not request_rate > 0 or not 0 < burstiness < np.inf:
        raise Error("The request rate and the burstiness must be above 0.")
    numbers = np.random.default_rng(seed)
    prompt, answer = (_drawn(numbers, fit, count) for fit in (lengths.prompt, lengths.answer))
    fits_prompt = np.minimum(prompt, max_context - 1)
    fits_answer = np.minimum(answer, max_context - fits_prompt)
    cut = int(((fits_prompt < prompt) | (fits_answer < answer)).sum())
    prompts = [numbers.integers(0, vocab_size, length) for length in fits_prompt]
    return Trace(prompts, fits_answer, _delays(numbers, count, request_rate, burstiness), cut)


def _drawn(numbers: np.random.Generator, fit: tuple[float, float], count: int) -> NDArray[np.int64]:
    lengths = np.rint(numbers.lognormal(*fit, count)).astype(np.int64)
    return np.maximum(lengths, _SHORTEST)


def _delays(
    numbers: np.random.Generator, count: int, rate: float, burstiness: float
) -> NDArray[np.float64]:
    """As vLLM's benchmark: sums of Gamma gaps, stretched so that the last is at count / rate."""
    if np.isinf(rate):
        return np.zeros(count)
    delays = np.cumsum(numbers.gamma(burstiness, 1 / (rate * burstiness), count))
    last = delays[-1]
    return delays * (count / rate / last) if last > 0 else np.zeros(count)
