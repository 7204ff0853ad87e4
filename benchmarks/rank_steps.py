"""A step over pages of a model that ranks share, beside one rank with as many threads.

    PYTHONPATH=python:. python -m benchmarks.rank_steps [--rounds 40]

A decoder of 6 layers, 27 million seeded weights in float32 (107 MB). Each request has 64 tokens
behind it and gets one. Scores are held to those of one rank first; then calls take turns, medians
over rounds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

import npusim
from npusim.frontends.step_method import StepSizes

REQUESTS = (1, 8)
WAYS = {  # ranks, threads in all
    "1 rank, 1 thread": (1, 1),
    "2 ranks, in turn on 1 thread": (2, 1),
    "1 rank, 2 threads": (1, 2),
    "2 ranks of 1 thread": (2, 2),
}
PAGES = 2  # a request's, of 64 tokens
BEHIND = 64


def model() -> torch.nn.Module:
    """Returns the decoder."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=8192,
        hidden_size=512,
        intermediate_size=2048,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).eval()


def calls() -> dict[tuple[str, int], Callable[[], np.ndarray]]:
    """Returns a step by the way it is run and the number of requests, which gives its scores."""
    decoder = model()
    sizes = StepSizes(max_step_tokens=64, max_requests=8, pages=8 * PAGES)
    module = npusim.extract_llm(decoder, max_context=128, prefill_chunk=16, serve=sizes)
    programs = {n: npusim.compile(module, tensor_parallel=n) for n in (1, 2)}
    made = {}
    for name, (ranks, threads) in WAYS.items():
        session = npusim.load(
            programs[ranks], weights=decoder.state_dict(), threads=threads, method="step"
        )
        for requests in REQUESTS:
            made[name, requests] = _step(session, requests)
    return made


def _step(session: npusim.Session, requests: int) -> Callable[[], np.ndarray]:
    rows = np.arange(requests)
    tables = np.arange(requests * PAGES).reshape(requests, PAGES)
    positions, tokens = np.full(requests, BEHIND), np.ones((1, requests), np.int64)
    return lambda: np.asarray(session(tokens, positions, rows, tables, rows)[0])


def check(made: dict[tuple[str, int], Callable[[], np.ndarray]]) -> None:
    """Holds the scores of all ways to those of one rank."""
    for requests in REQUESTS:
        whole, *others = (made[name, requests]().copy() for name in WAYS)
        for scores in others:
            bound = 1e-5 * float(np.abs(whole).max())
            np.testing.assert_allclose(scores, whole, rtol=0, atol=bound)


def main() -> None:
    """Parses the command line and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    made = calls()
    check(made)
    seconds: dict[tuple[str, int], list[float]] = {each: [] for each in made}
    for turn in range(args.rounds + 2):
        for each, call in made.items():
            start = time.perf_counter()
            call()
            if turn > 1:
                seconds[each].append(time.perf_counter() - start)
    print("ms a step: median (10th – 90th percentile), least\n")
    for (name, requests), found in seconds.items():
        tenths = [1e3 * each for each in statistics.quantiles(found, n=10)]
        median, least = 1e3 * statistics.median(found), 1e3 * min(found)
        spread = f"{tenths[0]:.2f} – {tenths[-1]:.2f}"
        print(f"| {name} | {requests} requests | {median:.2f} ({spread}) | {least:.2f} |")


if __name__ == "__main__":
    main()
