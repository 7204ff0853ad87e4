"""Steps of many requests to Qwen2.5-1.5B on a GPU, by how many there are.

    PYTHONPATH=python:. python -m benchmarks.llm_batches FOLDER [--rows 1 8 32 64 128 256] [--peers]

FOLDER receives seeded weights in bfloat16. Each request has 1,024 tokens behind it and gets one:
`step` is the method alone, its inputs on the device; `engine` the time between tokens of requests
of 32 tokens that the native engine serves, host work included. Beside them the floor (weights at
4.3 TB/s or products at 700 TFLOP/s, whichever takes longer, and keys and values at 4.3 TB/s) and,
with --peers, transformers with a static cache, its forward compiled. Milliseconds: median (10th to
90th percentile).
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import npusim
from benchmarks.llm_peers import VOCAB, configuration, write_model
from npusim import _runtime
from npusim.frontends.step_method import StepSizes
from npusim.runtime.native import native_program
from npusim.runtime.session import as_buffer

BEHIND, PAGE, CONTEXT = 1024, 64, 2048
READ, PRODUCTS = 4.3e12, 700e12  # bytes and operations a second that an H200 reaches
WEIGHTS = 1.544e9  # of products; the embedding is one of them
KEYS = 28 * 2 * 2 * 128 * 2  # bytes of keys and values of a token
ROUNDS = 30


def floor_ms(rows: int) -> float:
    """Returns the least time of a step."""
    products = max(2 * WEIGHTS / READ, 2 * rows * WEIGHTS / PRODUCTS)
    return 1e3 * (products + rows * BEHIND * KEYS / READ)


def spread(seconds: list[float]) -> str:
    """Returns median, 10th and 90th percentile in ms."""
    if len(seconds) < 2:
        return "-"
    tenths = statistics.quantiles(seconds, n=10)
    return (f"{1e3 * statistics.median(seconds):7.3f} ({1e3 * tenths[0]:.3f} - "
            f"{1e3 * tenths[-1]:.3f})")  # fmt: skip


class Steps:
    """The method `step` of the program, called with what an engine would give it."""

    def __init__(self, folder: Path, counts: list[int]) -> None:
        writing = multiprocessing.get_context("spawn").Process(
            target=write_model, args=("1.5b", folder)
        )
        if not (folder / "model.safetensors").exists():
            folder.mkdir(parents=True, exist_ok=True)
            configuration("1.5b").save_pretrained(folder)
            writing.start()
        start = time.perf_counter()
        self.most = most = max(*counts, 2)
        sizes = StepSizes(max_step_tokens=max(most, 128), max_requests=most,
                          pages=most * (BEHIND // PAGE + 4))  # fmt: skip
        extracted = folder / "step.json"  # from elsewhere, where there is one
        module: Any = extracted
        if not extracted.exists():
            module = npusim.extract_llm(folder, max_context=CONTEXT, prefill_chunk=128, serve=sizes)
        made = time.perf_counter()
        program = npusim.compile(module, "cuda")
        done = time.perf_counter()
        print(f"extracted in {made - start:.1f} s, compiled in {done - made:.1f} s", flush=True)
        self.program = program
        self.native = native_program(program)
        self.device = npusim.Device("cuda")
        if writing.pid is not None:
            writing.join()
        start = time.perf_counter()
        self.weights = npusim.load_weights(folder, program, self.device)
        print(f"weights loaded in {time.perf_counter() - start:.1f} s", flush=True)

        self.session = npusim.load(program, weights=self.weights, device=self.device, method="step")

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
    return [chance.integers(10, VOCAB, (1, rows)), np.full(rows, BEHIND), own, pages, own]


def stepped(steps: Steps, rows: int) -> tuple[list[float], dict[str, float]]:
    """Times steps by the host's clock, and their commands one by one, added up by kernel."""
    executor = steps.session.executor
    given = steps.buffers(inputs_of(rows, CONTEXT // PAGE))
    results = executor.run(given, steps.weights, "step")
    found = [executor.time_run(given, steps.weights, "step", results) for _ in range(ROUNDS + 3)]
    stems: dict[str, float] = {}
    each = executor.time(given, steps.weights, "step", results)
    for (stem, _, _), seconds in zip(executor.commands("step"), each, strict=True):
        stems[stem] = stems.get(stem, 0) + seconds
    return found[3:], stems


def agreement(steps: Steps, folder: Path) -> None:
    """Holds prompts in one step to transformers, and to the bits of each alone and in chunks."""
    import transformers

    torch.set_grad_enabled(False)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = model.eval().cuda()
    chance = np.random.default_rng(3)
    texts = [chance.integers(10, VOCAB, length) for length in (1, 17, 70)]
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


def served(steps: Steps, rows: int, new: int = 200) -> tuple[list[float], str]:
    """Times the engine between tokens, when all requests generate."""
    engine = _runtime.Engine(steps.native, steps.device, steps.weights, prefix_cache=False)
    chance = np.random.default_rng(1)
    asked = {"max_tokens": new, "ignore_eos": True, "temperature": 0.0}
    made = {engine.submit(list(map(int, chance.integers(10, VOCAB, 32))), asked): 0
            for _ in range(rows)}  # fmt: skip
    ended, stamps = 0, []
    while ended < rows:
        for number, tokens, _, _, ending, error, _ in engine.poll(10):
            assert error is None, error
            made[number] += len(tokens)
            ended += ending is not None
        if min(made.values()) > 0 and not ended:
            stamps.append((time.perf_counter(), sum(made.values())))
    stats = engine.stats()
    engine.close()
    pairs = itertools.pairwise(stamps[4:-3])
    if len(stamps) < 12:
        return [], f"{len(stamps)} polls with all requests generating"
    gaps = [(b[0] - a[0]) * rows / max(b[1] - a[1], 1) for a, b in pairs]
    each = f"runner {1e3 * stats['runner_seconds'] / stats['steps']:.3f} ms a step, choice "
    each += f"{1e6 * stats['choice_seconds'] / stats['steps']:.0f} us"
    return gaps, each


def peers(folder: Path, counts: list[int]) -> None:
    """Times transformers' static cache, compiled and eager."""
    import transformers

    torch.set_grad_enabled(False)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    model = model.eval().cuda()

    def timed(forward: Callable[..., Any], rows: int) -> list[float]:
        cache = transformers.StaticCache(model.config, max_cache_len=BEHIND + 64)
        token = torch.full((rows, 1), 7, device="cuda")
        place = torch.full((rows, 1), BEHIND, device="cuda")
        given = {"past_key_values": cache, "use_cache": True, "position_ids": place}
        found = []
        for _ in range(ROUNDS // 2 + 3):
            torch.cuda.synchronize()
            start = time.perf_counter()
            forward(token, **given).logits.argmax(-1)
            torch.cuda.synchronize()
            found.append(time.perf_counter() - start)
        return found[3:]

    for rows in counts:
        print(f"peer, eager, {rows:4}: {spread(timed(model.forward, rows))}", flush=True)
    compiled = torch.compile(model.forward, mode="reduce-overhead", dynamic=False)
    for rows in (1, max(counts)):
        start = time.perf_counter()
        times = timed(compiled, rows)
        print(f"peer, compiled, {rows:4}: {spread(times)}; {time.perf_counter() - start:.0f} s "
              "with compiling", flush=True)  # fmt: skip


def main() -> None:
    """Parses the command line and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64, 128, 256])
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--engine", type=int, nargs="*", default=[1, 32, 256])
    args = parser.parse_args()
    steps = Steps(args.folder, args.rows)
    if args.check:
        agreement(steps, args.folder)
    for rows in args.rows:
        found, stems = stepped(steps, rows)
        parts = ", ".join(
            f"{k} {1e3 * v:.3f}" for k, v in sorted(stems.items(), key=lambda i: -i[1])
        )
        print(f"step, {rows:4}: {spread(found)}, floor {floor_ms(rows):.2f}; alone: {parts}",
              flush=True)  # fmt: skip
    for rows in args.engine:
        gaps, each = served(steps, rows)
        print(f"engine, {rows:4}: {spread(gaps)}; {each}", flush=True)
    if args.peers:
        peers(args.folder, args.rows)


if __name__ == "__main__":
    main()
