"""Where a language model's time goes on the CPU: the best time of each command, by kernel.

    python benchmarks/llm_commands.py PROGRAM WEIGHTS [--threads 2]

Runs each method one command at a time, several times, and keeps each command's best; for products
also how fast they ran, by shape. The sum of the best is what a run would take if nothing disturbed
it.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import numpy as np

import npusim
from npusim.ops.kernels import KERNELS

RUNS = {"prefill": 4, "decode": 12}


def best_times(executor: npusim.Executor, weights: npusim.Weights, method: str) -> np.ndarray:
    """Returns the best time of each command, in seconds."""
    chunk = executor.inputs(method)[0].shape[-1]
    buffers = {}
    for spec in executor.inputs(method):
        array = np.full(spec.shape, chunk if spec.name == "length" else 5, np.int64)
        buffers[spec.name] = npusim.DeviceBuffer.from_numpy(array, executor.device)
    best: np.ndarray | None = None
    for _ in range(RUNS[method]):
        moments = [time.perf_counter()]

        def note(_: int, moments: list[float] = moments) -> None:
            moments.append(time.perf_counter())

        executor.observe(note, buffers, weights, method)
        took = np.diff(moments)
        best = took if best is None else np.minimum(best, took)
    assert best is not None
    return best


def report(program: npusim.CompiledProgram, method: str, best: np.ndarray) -> None:
    """Prints the times by kernel and op, and the rates of products by shape."""
    print(f"{method}: {1e3 * best.sum():.1f} ms in {len(best)} commands")
    kinds, shapes = defaultdict(list), defaultdict(list)
    for command, seconds in zip(program.method(method).commands, best, strict=True):
        kernel = program.kernels[command.kernel].name
        kinds[kernel, program.nodes[command.node].op].append(seconds)
        if kernel.endswith("linear"):
            p = KERNELS[kernel].unpack(command.params)
            rows = sum(p["rows"][: p["segments"]])
            shapes[p["m"], rows, p["k"]].append(seconds)
    for (kernel, op), times in sorted(kinds.items(), key=lambda item: -sum(item[1])):
        print(f"  {kernel:18} {op:34} {len(times):4} {1e3 * sum(times):9.2f} ms")
    for (m, rows, k), times in shapes.items():
        mean = float(np.mean(times))
        print(
            f"  {m} x {k} by {rows}: {1e3 * mean:.3f} ms, {2e-9 * m * rows * k / mean:.0f} GFLOP/s"
        )


def main() -> None:
    """Parses the command line, measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("program")
    parser.add_argument("weights")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    program = npusim.CompiledProgram.load(args.program)
    device = npusim.Device("cpu", threads=args.threads)
    executor = npusim.Executor(program, device)
    weights = npusim.load_weights(args.weights, program, device)
    for method in RUNS:
        report(program, method, best_times(executor, weights, method))


if __name__ == "__main__":
    main()
