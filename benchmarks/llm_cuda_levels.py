"""What a decoded token takes on a GPU by itself: the graph of `decode`, without copies of logits.

    PYTHONPATH=python:. python benchmarks/llm_cuda_levels.py FOLDER PROGRAM [PROGRAM ...]

Programs come from `npusim compile` of one extracted language model; FOLDER has its weights. Caches
hold seeded random rows. Prints for each program, with launches that overlap and with launches one
after the other, the median time after 128, 1,024 and 4,000 tokens with its 10th and 90th
percentile, a digest of the logits, which the two must share, and how far the logits are from the
first program's, relative to the largest, after each of the three.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import npusim
from npusim.runtime import DeviceBuffer, Executor, State, load_weights

POSITIONS, REPEATS = (128, 1024, 4000), 60


def filled_state(program: npusim.CompiledProgram, executor: Executor) -> State:
    """Returns a state whose caches hold random rows, the same for every layer."""
    state = State(program, executor.device)
    rng = np.random.default_rng(0)
    rows: dict[tuple[str, tuple[int, ...]], NDArray[np.float32]] = {}
    for name in state.names:
        if not name.startswith("cache."):
            continue
        key = (name.rsplit(".", 1)[1], state.get(name).shape)
        if key not in rows:
            rows[key] = rng.standard_normal(key[1], np.float32)
        state.set(name, rows[key])
    return state


def tokens_of(executor: Executor) -> dict[str, DeviceBuffer]:
    return {"tokens": DeviceBuffer.from_numpy(np.full((1, 1), 5, np.int64), executor.device)}


def times_ms(
    executor: Executor, state: State, weights: npusim.Weights, position: int
) -> tuple[float, float, float]:
    """Returns the 10th percentile, the median and the 90th of calls, the first four not counted."""
    state.set("position", np.array([position], np.int64))
    inputs = tokens_of(executor)
    outputs = executor.run(inputs, weights, "decode", state=state)
    took = []
    for _ in range(REPEATS + 4):
        start = time.perf_counter()
        executor.run(inputs, weights, "decode", outputs=outputs, state=state)
        took.append(1e3 * (time.perf_counter() - start))
    tenths = statistics.quantiles(took[4:], n=10)
    return tenths[0], statistics.median(took[4:]), tenths[-1]


def logits_of(
    executor: Executor, state: State, weights: npusim.Weights
) -> list[NDArray[np.float32]]:
    """Returns the logits after each position."""
    found = []
    for position in POSITIONS:
        state.set("position", np.array([position], np.int64))
        outputs = executor.run(tokens_of(executor), weights, "decode", state=state)
        found.append(np.asarray(outputs["logits"].to_numpy(), np.float32))
    return found


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("programs", type=Path, nargs="+")
    args = parser.parse_args()
    first: list[NDArray[np.float32]] = []
    for path in args.programs:
        program = npusim.CompiledProgram.load(path)
        for overlapping in (True, False):
            os.environ["NPUSIM_CUDA_DEPENDENT_LAUNCH"] = str(int(overlapping))
            executor = Executor(program, npusim.Device("cuda"))
            weights = load_weights(args.folder, program, executor.device)
            state = filled_state(program, executor)
            logits = logits_of(executor, state, weights)
            first = first or logits
            far = [
                f"{np.abs(a - b).max() / np.abs(a).max():.1e}"
                for a, b in zip(first, logits, strict=True)
            ]
            digest = hashlib.sha256(b"".join(a.tobytes() for a in logits)).hexdigest()[:8]
            times = [times_ms(executor, state, weights, p) for p in POSITIONS]
            shown = " ".join(f"{mid:.3f} ({low:.3f}-{high:.3f})" for low, mid, high in times)
            how = "overlap" if overlapping else "in a row"
            print(f"{path.stem:12} {how:8} {digest} {shown} ms, {' '.join(far)}", flush=True)


if __name__ == "__main__":
    main()
