"""Steps of many requests to a language model on a GPU, by how many there are; and an engine's.

    PYTHONPATH=python:. python -m benchmarks.llm_batches [--model 1.5b|8b] [--quantize int8]
        [--graphs FILE] [--program FILE] [--without KERNEL …] [--rows 1 8 …] [--engine 1 32 …]
        [--check] [--serving]
        [--peers [eager|compiled|batches ...]]

Weights are seeded. Each request has 1,024 tokens behind it and gets one: `step` is the method
alone, its inputs on the device, with its kernels one by one if --kernels; `engine` the time between
tokens of requests whose prompts have 960 tokens, that the native engine serves, host work included.
Beside them the floor (weights at 4.3 TB/s or products at 700 TFLOP/s, whichever takes longer, and
keys and values at 4.3 TB/s). --serving is benchmarks/llm_serving.py, --peers transformers with a
static cache, its forward compiled, and its continuous batching. Milliseconds: median (10th to 90th
percentile). --graphs and --program read what was extracted and compiled from files, or write it
there; --without leaves out kernels that others can stand for, such as linear_rope_append.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import npusim
from benchmarks import llm_serving, served_peers
from benchmarks.served_models import (
    CONTEXT,
    PAGE,
    REQUESTS,
    Floor,
    compiled,
    configuration,
    seeded_weights,
    timed,
)
from npusim import _runtime
from npusim.runtime.native import native_program
from npusim.runtime.session import as_buffer

BEHIND = 1024
ROUNDS = 30
_HOST = ("plan_seconds", "start_seconds", "fill_seconds", "send_seconds", "launch_seconds",
         "runner_seconds", "choice_seconds", "desk_seconds")  # fmt: skip
BYTES = {None: 2.0, "int8": 1.0, "int4-g32": 0.5 + 2 / 32}  # of a weight


def spread(seconds: list[float]) -> str:
    """Returns median, 10th and 90th percentile in ms."""
    if len(seconds) < 2:
        return "-"
    tenths = statistics.quantiles(seconds, n=10)
    return (f"{1e3 * statistics.median(seconds):7.3f} ({1e3 * tenths[0]:.3f} - "
            f"{1e3 * tenths[-1]:.3f})")  # fmt: skip


class Steps:
    """The method `step` of the program, called with what an engine would give it."""

    def __init__(
        self,
        name: str,
        quantize: str | None,
        graphs: Path | None,
        program: Path | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self.config = configuration(name)
        self.most = REQUESTS
        self.program = compiled(name, graphs, program, quantize, without)
        self.state = timed("weights made", lambda: seeded_weights(self.config))
        self.native = native_program(self.program)
        self.device = npusim.Device("cuda")
        self.weights = timed(
            "weights loaded", lambda: npusim.load_weights(self.state, self.program, self.device)
        )
        self.session: Any = npusim.load(
            self.program, weights=self.weights, device=self.device, method="step"
        )

    def buffers(self, given: list[np.ndarray]) -> dict[str, Any]:
        """Returns inputs on the device, by name."""
        names = self.session.input_names
        shapes = [array.shape for array in given]
        specs = self.session.executor.specs_for(shapes, "step")[0]
        return {
            name: as_buffer(array, self.device, spec)
            for name, array, spec in zip(names, given, specs, strict=True)
        }


def inputs_of(rows: int, tables: int, seed: int = 0) -> list[np.ndarray]:
    """Returns what a step of so many requests takes."""
    chance = np.random.default_rng(seed)
    used = BEHIND // PAGE + 1
    pages = np.full((rows, tables), -1)
    pages[:, :used] = chance.permutation(rows * used).reshape(rows, used)
    own = np.arange(rows)
    return [chance.integers(10, 30000, (1, rows)), np.full(rows, BEHIND), own, pages, own]


def stepped(steps: Steps, rows: int, kernels: bool) -> tuple[list[float], dict[str, float]]:
    """Times steps by the host's clock, and, if asked, commands one by one, added up by kernel."""
    executor = steps.session.executor
    given = steps.buffers(inputs_of(rows, CONTEXT // PAGE))
    results = executor.run(given, steps.weights, "step")
    found = [executor.time_run(given, steps.weights, "step", results) for _ in range(ROUNDS + 3)]
    stems: dict[str, float] = {}
    if not kernels:
        return found[3:], stems
    each = executor.time(given, steps.weights, "step", results)
    for (stem, _, _), seconds in zip(executor.commands("step"), each, strict=True):
        stems[stem] = stems.get(stem, 0) + seconds
    return found[3:], stems


def agreement(steps: Steps) -> None:
    """Holds prompts in one step to transformers, and to the bits of each alone and in chunks."""
    model = served_peers.transformers_model(steps.config, steps.state)
    chance = np.random.default_rng(3)
    texts = [chance.integers(10, 30000, length) for length in (1, 17, 70)]
    tables = CONTEXT // PAGE
    pages = [np.array([5, 9, *[-1] * (tables - 2)]), np.array([0, *[-1] * (tables - 1)]),
             np.array([7, 3, *[-1] * (tables - 2)])]  # fmt: skip

    def step(parts: list[tuple[int, int, int]], padding: int = 0) -> np.ndarray:
        """Runs rows [first, last) of texts; returns the logits of the last ones."""
        rows = [(texts[i][at], at, n) for n, (i, first, last) in enumerate(parts)
                for at in range(first, last)]  # fmt: skip
        tokens, positions, own = (np.array(column) for column in zip(*rows, strict=True))
        last = np.cumsum([b - a for _, a, b in parts]) - 1
        count = 1 << (len(rows) + padding - 1).bit_length()  # for which there is code
        requests = min(count, steps.most)

        def filled(array: np.ndarray, size: int, value: int) -> np.ndarray:
            more = [(0, size - len(array)), *[(0, 0)] * (array.ndim - 1)]
            return np.pad(array, more, constant_values=value)

        named = np.stack([pages[i] for i, _, _ in parts])
        given = [
            filled(tokens, count, 0)[None],
            filled(positions, count, 0),
            filled(own, count, -1),
            filled(named, requests, -1),
            filled(last, requests, -1),
        ]
        return np.asarray(steps.session(*given)[0], np.float32)

    whole = [(i, 0, len(text)) for i, text in enumerate(texts)]
    together = step(whole, padding=128 - sum(map(len, texts)))
    for i, text in enumerate(texts):
        want = model(torch.tensor(text, device="cuda")[None]).logits[0, -1].float().cpu().numpy()
        got = together[i]
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        token = "the same" if got.argmax() == want.argmax() else "ANOTHER"
        print(f"{len(text)} tokens: logits against transformers {error:.1e}, token {token}")
    same = {}
    for size in (1, 2, 8, 32, 64):
        for first in range(0, 70, size):
            alone = step([(2, first, min(first + size, 70))])
        same[size] = bool(np.array_equal(alone[0], together[2]))
    print(f"the same bits in chunks of: {same}", flush=True)


def served(steps: Steps, rows: int, prompt: int = 960, new: int = 128) -> tuple[list[float], str]:
    """Times the engine between tokens, when all requests generate."""
    engine = _runtime.Engine(steps.native, steps.device, steps.weights, prefix_cache=False)
    chance = np.random.default_rng(1)
    asked = {"max_tokens": new + rows // 8, "ignore_eos": True, "temperature": 0.0}
    made = {engine.submit(chance.integers(10, 30000, prompt).tolist(), asked): 0
            for _ in range(rows)}  # fmt: skip
    ended, stamps, before = 0, [], {}
    while ended < rows:
        for number, tokens, _, _, ending, error, _ in engine.poll(10):
            assert error is None, error
            made[number] += len(tokens)
            ended += ending is not None
        if min(made.values()) > 0 and not ended:
            stamps.append((time.perf_counter(), sum(made.values())))
            before = before or engine.stats()
    stats = engine.stats()
    engine.close()
    if len(stamps) < 12:
        return [], f"{len(stamps)} polls with all requests generating"
    pairs = itertools.pairwise(stamps[4:-3])
    gaps = [(b[0] - a[0]) * rows / max(b[1] - a[1], 1) for a, b in pairs]
    count = stats["steps"] - before["steps"]
    each = [1e6 * (stats[name] - before[name]) / count for name in _HOST]
    return gaps, "us a step: " + ", ".join(
        f"{name.removesuffix('_seconds')} {of:.0f}" for name, of in zip(_HOST, each, strict=True)
    )


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", choices=("0.5b", "1.5b", "8b"), default="1.5b")
    parser.add_argument("--quantize", choices=("int8", "int4-g32"))
    parser.add_argument("--graphs", type=Path)
    parser.add_argument("--program", type=Path)
    parser.add_argument("--without", nargs="*", default=[])
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--engine", type=int, nargs="*", default=[1, 32, 256])
    parser.add_argument("--kernels", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--serving", action="store_true")
    parser.add_argument("--peers", nargs="*", choices=served_peers.WAYS)
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    print(f"{args.model} {args.quantize or 'bfloat16'}", flush=True)
    steps = Steps(args.model, args.quantize, args.graphs, args.program, args.without)
    floor = Floor(steps.config, BYTES[args.quantize])
    for rows in args.rows:
        found, stems = stepped(steps, rows, args.kernels)
        parts = [f"{k} {1e3 * v:.3f}" for k, v in sorted(stems.items(), key=lambda i: -i[1])]
        alone = f"; alone: {', '.join(parts)}" if parts else ""
        print(f"step, {rows:4}: {spread(found)}, floor {floor.ms(rows, BEHIND):.2f}{alone}",
              flush=True)  # fmt: skip
    if args.check:
        agreement(steps)
    steps.session = None  # its pools, before an engine has others
    for rows in args.engine:
        gaps, each = served(steps, rows)
        print(f"engine, {rows:4}: {spread(gaps)}; {each}", flush=True)
    if args.serving:
        engine = _runtime.Engine(steps.native, steps.device, steps.weights, prefix_cache=False,
                                 step_seconds=llm_serving.STEP,
                                 max_waiting=llm_serving.ASKED)  # fmt: skip
        llm_serving.report(engine)
        engine.close()
    if args.peers is not None:
        served_peers.report(steps.config, steps.state, args.rows, args.peers or served_peers.WAYS)


if __name__ == "__main__":
    main()
