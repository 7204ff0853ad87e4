"""A step over pages by the number of requests in it, beside a session's token.

    PYTHONPATH=python:. python -m benchmarks.step_rows [--dtypes bfloat16 float32 int8 int4-g32]
        [--threads 2]

A decoder of Qwen2.5-0.5B's layers, 12 of them, with a vocabulary of 32,768 and seeded weights. Each
request has 256 tokens behind it and gets one. Calls take turns; medians over rounds. int8 and
int4-g32 are kinds of weights, over a model in bfloat16.
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

REQUESTS = (1, 2, 4, 8, 16)
PAGES = 8  # a request's, of 64 tokens
BEHIND = 256


def model(dtype: str) -> torch.nn.Module:
    """Returns the decoder."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=32_768,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=12,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).to(getattr(torch, dtype)).eval()


def calls(dtype: str, threads: int) -> dict[str, Callable[[], object]]:
    """Returns a call of a session's `decode`, and of a step with each number of requests."""
    quantize = dtype if dtype.startswith("int") else "none"
    decoder = model("bfloat16" if quantize == dtype else dtype)
    sizes = StepSizes(max_step_tokens=128, max_requests=16, pages=16 * PAGES)
    module = npusim.extract_llm(decoder, max_context=512, prefill_chunk=64, serve=sizes)
    program = npusim.compile(module, quantize=quantize)
    device = npusim.Device("cpu", threads=threads)
    weights = npusim.load_weights(decoder.state_dict(), program, device)
    step = npusim.load(program, weights=weights, device=device, method="step")
    decode = npusim.load(program, weights=weights, device=device, method="decode")

    def of(requests: int) -> Callable[[], object]:
        rows = np.arange(requests)
        tables = np.arange(requests * PAGES).reshape(requests, PAGES)
        positions = np.full(requests, BEHIND)
        tokens = np.ones((1, requests), np.int64)
        return lambda: step(tokens, positions, rows, tables, rows)

    token = np.ones((1, 1), np.int64)
    return {"a session": lambda: decode(token)} | {f"{n}": of(n) for n in REQUESTS}


def main() -> None:
    """Parses the command line and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=25)
    args = parser.parse_args()
    for dtype in args.dtypes:
        timed = calls(dtype, args.threads)
        seconds: dict[str, list[float]] = {name: [] for name in timed}
        for turn in range(args.rounds + 2):
            for name, call in timed.items():
                start = time.perf_counter()
                call()
                if turn > 1:
                    seconds[name].append(time.perf_counter() - start)
        print(f"\n{dtype}, {args.threads} threads: ms a step, median (10th – 90th percentile)\n")
        for name, found in seconds.items():
            tenths = statistics.quantiles(found, n=10)
            spread = f"{1e3 * tenths[0]:.1f} – {1e3 * tenths[-1]:.1f}"
            print(f"| {name} | {1e3 * statistics.median(found):.1f} ({spread}) |")


if __name__ == "__main__":
    main()
