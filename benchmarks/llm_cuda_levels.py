"""What a decoded token takes on a GPU by itself: the graph of `decode`, without copies of logits.

    PYTHONPATH=python:. python benchmarks/llm_cuda_levels.py FOLDER PROGRAM [PROGRAM ...]

Programs come from `npusim compile` of one extracted language model; FOLDER has its weights. Prints
for each program, with launches that overlap and with launches one behind the other, the median time
behind 128, 1,024 and 4,000 tokens, and a digest of the logits: the two must have the same.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import time
from pathlib import Path

import numpy as np

import npusim
from npusim.runtime import DeviceBuffer, Executor, State, load_weights

POSITIONS, REPEATS = (128, 1024, 4000), 40


def median_ms(executor: Executor, state: State, weights: npusim.Weights, position: int) -> float:
    """Returns the median time of a call behind `position` tokens, the first four not counted."""
    state.set("position", np.array([position], np.int64))
    tokens = np.full((1, 1), 5, np.int64)
    inputs = {"tokens": DeviceBuffer.from_numpy(tokens, executor.device)}
    outputs = executor.run(inputs, weights, "decode", state=state)
    took = []
    for _ in range(REPEATS + 4):
        start = time.perf_counter()
        executor.run(inputs, weights, "decode", outputs=outputs, state=state)
        took.append(time.perf_counter() - start)
    return 1e3 * statistics.median(took[4:])


def digest(executor: Executor, state: State, weights: npusim.Weights) -> str:
    """Returns a digest of the logits behind each position."""
    found = hashlib.sha256()
    for position in POSITIONS:
        state.set("position", np.array([position], np.int64))
        tokens = DeviceBuffer.from_numpy(np.full((1, 1), 5, np.int64), executor.device)
        outputs = executor.run({"tokens": tokens}, weights, "decode", state=state)
        found.update(outputs["logits"].to_numpy().tobytes())
    return found.hexdigest()[:8]


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("programs", type=Path, nargs="+")
    args = parser.parse_args()
    for program in args.programs:
        for overlapping in (True, False):
            os.environ["NPUSIM_CUDA_DEPENDENT_LAUNCH"] = str(int(overlapping))
            executor = Executor(program, npusim.Device("cuda"))
            weights = load_weights(args.folder, program, executor.device)
            state = State(program, executor.device)
            logits = digest(executor, state, weights)
            times = [f"{median_ms(executor, state, weights, p):.3f}" for p in POSITIONS]
            how = "overlapping" if overlapping else "one behind the other"
            print(f"{program.name:24} {how:22} {logits} {' '.join(times)} ms", flush=True)


if __name__ == "__main__":
    main()
