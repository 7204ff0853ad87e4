"""Workers of the CPU device: how a call's time follows their number, a busy machine, and sharing.

    PYTHONPATH=python:. python -m benchmarks.threads [--models resnet18 bert_base] [--rounds 9]

Three tables: calls with 1 to 64 workers; the same with a process beside that keeps one core busy;
and two threads of a program that each call a model, with a pool each or one pool for both. Turns of
a tenth of a second, medians over rounds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from tests.models import build

import npusim

WORKERS = (1, 2, 3, 4, 8, 16, 64)
TURN_SECONDS = 0.1


def session(model: str, device: npusim.Device) -> Callable[[], object]:
    """Returns a call of a model on a device."""
    network, inputs = build(model)
    graph = npusim.extract_ir(network, tuple(inputs))
    weights = {key: value.numpy() for key, value in network.state_dict().items()}
    loaded = npusim.load(npusim.compile(graph), weights, device)
    arrays = [x.numpy() for x in inputs]
    return lambda: loaded(*arrays)


def burst(call: Callable[[], object]) -> list[float]:
    """Times calls for a turn."""
    seconds: list[float] = []
    call()
    end = time.perf_counter() + TURN_SECONDS
    while not seconds or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds


def in_turns(calls: Mapping[int, Callable[[], object]], rounds: int) -> dict[int, list[float]]:
    """Returns seconds of calls by key; the round before the timed ones is left out."""
    times: dict[int, list[float]] = {key: [] for key in calls}
    for turn in range(rounds + 1):
        for key, call in calls.items():
            seconds = burst(call)
            if turn:
                times[key] += seconds
    return times


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy_core() -> Iterator[None]:
    """A process that computes as long as the block runs."""
    process = multiprocessing.get_context("spawn").Process(target=_spin, daemon=True)
    process.start()
    time.sleep(0.5)
    try:
        yield
    finally:
        process.kill()
        process.join()


def together(calls: list[Callable[[], object]], seconds: float) -> float:
    """Returns calls a second of threads that call at the same time."""
    counts = [0] * len(calls)
    end = time.perf_counter() + seconds

    def repeat(index: int) -> None:
        while time.perf_counter() < end:
            calls[index]()
            counts[index] += 1

    threads = [threading.Thread(target=repeat, args=(i,)) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def spread(seconds: list[float]) -> str:
    """Returns median and 10th to 90th percentile in milliseconds."""
    tenths = statistics.quantiles(seconds, n=10)
    return (
        f"{1e3 * statistics.median(seconds):.4g} ({1e3 * tenths[0]:.4g} – {1e3 * tenths[-1]:.4g})"
    )


def measure(model: str, rounds: int) -> None:
    """Prints the three tables of a model."""
    calls = {n: session(model, npusim.Device("cpu", threads=n)) for n in WORKERS}
    alone = in_turns(calls, rounds)
    with busy_core():
        beside = in_turns(calls, rounds)
    print(f"\n{model}, ms a call: median (10th – 90th percentile)\n")
    print("| workers | alone | a busy core beside |\n|---:|---:|---:|")
    for n in WORKERS:
        print(f"| {n} | {spread(alone[n])} | {spread(beside[n])} |")
    cores = os.cpu_count() or 1
    own = [session(model, npusim.Device("cpu", threads=cores)) for _ in range(2)]
    shared = npusim.Device("cpu", threads=cores)
    one = [session(model, shared) for _ in range(2)]
    halves = [session(model, npusim.Device("cpu", threads=max(cores // 2, 1))) for _ in range(2)]
    kinds = {"a pool each": own, "one pool for both": one, "half a pool each": halves}
    rates: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(rounds):
        for name, pair in kinds.items():
            rates[name].append(together(pair, 5 * TURN_SECONDS))
    print(f"\ntwo threads that call at once, {cores} cores: calls a second\n")
    for name, found in rates.items():
        print(f"{name}: {statistics.median(found):.4g} ({min(found):.4g} – {max(found):.4g})")


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=["resnet18", "bert_base", "mlp"])
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    for model in args.models:
        measure(model, args.rounds)


if __name__ == "__main__":
    main()
