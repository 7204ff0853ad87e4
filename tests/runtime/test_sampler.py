"""The choice of the next token, against the same pipeline written in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npusim import Error, _runtime

SIZES = [1, 7, 64, 1000, 5000]


def reference(
    logits: np.ndarray,
    history: list[int],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
) -> np.ndarray:
    """The probability of each token; sorts where the sampler selects."""
    scores = logits.astype(np.float32).copy()
    for token in set(history):
        s, penalty = scores[token], np.float32(repetition_penalty)
        scores[token] = s / penalty if s > 0 else s * penalty
    scores = scores.astype(np.float64) / temperature
    scores[np.isnan(scores)] = -np.inf
    if 0 < top_k < scores.size:
        scores[scores < np.sort(scores)[-top_k]] = -np.inf
    probabilities = np.exp(scores - scores.max())
    probabilities /= probabilities.sum()
    order = np.argsort(-probabilities, kind="stable")
    before = np.cumsum(probabilities[order]) - probabilities[order]
    keep = np.zeros(scores.size, bool)
    keep[order[before < top_p]] = True
    keep[order[0]] = True
    keep &= probabilities >= min_p * probabilities.max()
    return np.where(keep, probabilities, 0) / probabilities[keep].sum()


class _SplitMix64:
    """The documented source of draws."""

    def __init__(self, seed: int) -> None:
        self.state = seed

    def unit(self) -> float:
        mask = 2**64 - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return ((z ^ (z >> 31)) >> 11) * 2.0**-53


OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.3},
    {"temperature": 5.0},
    {"top_k": 1},
    {"top_k": 20},
    {"top_k": 700},
    {"top_p": 0.5},
    {"top_p": 0.9999},
    {"top_p": 1e-9},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"repetition_penalty": 1.5},
    {"repetition_penalty": 0.5},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "min_p": 0.05, "repetition_penalty": 1.1},
]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_draw_is_that_of_the_reference(options: dict[str, Any], size: int) -> None:
    rng = np.random.default_rng(size)
    history = rng.integers(0, size, 10).tolist()
    sampler = _runtime.Sampler(**{"temperature": 1.0, **options}, seed=99)
    draws = _SplitMix64(99)
    for _ in range(20):
        logits = (rng.standard_normal(size) * 4).astype(np.float32)
        probabilities = reference(logits, history, **options)
        ends = np.cumsum(probabilities)
        at = draws.unit()
        token = sampler.sample(logits, history)
        assert probabilities[token] > 0
        assert ends[token] - probabilities[token] - 1e-6 <= at <= ends[token] + 1e-6


@pytest.mark.parametrize("options", [{"top_k": 3}, {"top_p": 0.6}, {"min_p": 0.2}, {}], ids=str)
def test_frequencies_are_the_probabilities(options: dict[str, Any]) -> None:
    logits = np.array([1.0, 3.0, 2.0, -1.0, 2.5, 0.0], np.float32)
    sampler = _runtime.Sampler(temperature=1.0, **options, seed=1)
    count = 20_000
    counts = np.bincount([sampler.sample(logits) for _ in range(count)], minlength=6)
    expected = reference(logits, [], **options) * count
    assert (counts[expected == 0] == 0).all()
    assert (np.abs(counts - expected) <= 5 * np.sqrt(expected) + 1e-9).all()


def test_equal_scores_count_in_the_order_of_their_tokens() -> None:
    flat = np.zeros(1000, np.float32)
    nucleus = _runtime.Sampler(temperature=1.0, top_p=0.1, seed=3)
    assert max(nucleus.sample(flat) for _ in range(500)) == 99
    assert _runtime.Sampler().sample(flat) == 0
    every = _runtime.Sampler(temperature=1.0, top_k=5, seed=3)  # all equal the fifth highest
    assert max(every.sample(flat) for _ in range(500)) > 900


def test_greedy_is_the_first_highest() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 63, 64, 65, 151_936):
        logits = rng.integers(0, 50, size).astype(np.float32)
        assert _runtime.Sampler().sample(logits) == int(logits.argmax())


def test_the_penalty_counts_a_token_once() -> None:
    logits = np.array([4.0, 3.0, -1.0, -1.2], np.float32)
    sampler = _runtime.Sampler(repetition_penalty=1.25)
    assert sampler.sample(logits, [0, 0, 0]) == 0  # 3.2, not 2.05
    sampler = _runtime.Sampler(repetition_penalty=1.5)
    assert sampler.sample(logits, [0]) == 1
    assert sampler.sample(-logits[2:] * -1, [0]) == 1  # a negative score becomes lower
    assert sampler.sample(logits, [99, -1]) == 0  # tokens of no score


def test_the_same_seed_draws_the_same_and_another_does_not() -> None:
    logits = np.random.default_rng(0).standard_normal(500).astype(np.float32)
    one, same, other = (_runtime.Sampler(temperature=1.0, seed=seed) for seed in (7, 7, 8))
    draws = [[s.sample(logits) for _ in range(50)] for s in (one, same, other)]
    assert draws[0] == draws[1] != draws[2]
    assert draws[0][:5] == [203, 8, 443, 277, 219]


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1.0, 1e30])
def test_odd_scores(temperature: float) -> None:
    sampler = _runtime.Sampler(temperature=temperature, top_k=50, top_p=0.9, seed=1)
    nan, inf = np.nan, np.inf
    one = np.full(200, nan, np.float32)
    one[77] = -3.0e38
    assert sampler.sample(one) == 77
    high = np.array([1, nan, inf, 5, inf, -inf], np.float32)
    assert {sampler.sample(high) for _ in range(50)} <= {2, 4}
    with pytest.raises(Error, match="all 3 scores are NaN or -inf"):
        sampler.sample(np.array([nan, -inf, nan], np.float32))
    with pytest.raises(Error, match="all 0 scores"):
        sampler.sample(np.zeros(0, np.float32))


def test_all_wrong_options_are_named_at_once() -> None:
    with pytest.raises(Error) as caught:
        _runtime.Sampler(temperature=-1, top_k=-2, top_p=1.5, min_p=-0.5, repetition_penalty=0)
    for word in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty"):
        assert word in str(caught.value)


def test_the_order_of_operations_is_that_of_transformers() -> None:
    torch = pytest.importorskip("torch")
    process = pytest.importorskip("transformers.generation.logits_process")
    rng = np.random.default_rng(4)
    history = rng.integers(0, 300, 20).tolist()
    chain = [
        process.RepetitionPenaltyLogitsProcessor(1.3),
        process.TemperatureLogitsWarper(0.7),
        process.TopKLogitsWarper(40),
        process.TopPLogitsWarper(0.9),
        process.MinPLogitsWarper(0.05),
    ]
    options: dict[str, Any] = {
        "temperature": 0.7, "top_k": 40, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.3,
    }  # fmt: skip
    for _ in range(10):
        logits = (rng.standard_normal(300) * 2).astype(np.float32)
        scores = torch.from_numpy(logits)[None]
        for step in chain:
            scores = step(torch.tensor([history]), scores)
        expected = torch.softmax(scores, -1)[0].numpy()
        np.testing.assert_allclose(reference(logits, history, **options), expected, atol=1e-5)
