"""`npusim bench`: how long a program takes to load and to run, and what memory it needs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

import npusim
from npusim.cli.answer import Answer, Verb, amount, duration, table
from npusim.cli.arrays import INPUT_HELP, read_inputs
from npusim.cli.artifact import open_program, readable
from npusim.cli.bench_llm import LENGTHS, Lengths, bench_language_model
from npusim.cli.memory import peak_rss
from npusim.cli.progress import progress
from npusim.profile.inputs import sample


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    help=".safetensors, its index, or .pt; with --llm also a folder.",
)
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=INPUT_HELP)
@click.option("--device", help="Default: the device of the program's target.")
@click.option("--threads", type=click.IntRange(min=1), help="Default: one a core.")
@click.option("--warmup", type=click.IntRange(min=0), default=5, show_default=True)
@click.option("--runs", type=click.IntRange(min=1), help="Default: as many as fit in --seconds.")
@click.option("--seconds", type=click.FloatRange(min=0), default=3.0, show_default=True)
@click.option("--llm", is_flag=True, help="A language model: first token and tokens/s by context.")
@click.option(
    "--contexts",
    type=Lengths(),
    default=LENGTHS,
    metavar="1,128,…",
    help="With --llm; those beyond the program's context are left out.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="With --llm: draw it (.png, .svg).")
def bench(
    program: Path,
    weights: Path | None,
    inputs: tuple[str, ...],
    device: str | None,
    threads: int | None,
    warmup: int,
    runs: int | None,
    seconds: float,
    llm: bool,
    contexts: tuple[int, ...],
    plot: Path | None,
) -> Answer:
    """Time a program: load, then calls from Python with NumPy arrays.

    Without --input, floating-point inputs are seeded normal numbers and all others are zero.
    """
    compiled = open_program(program)
    if llm:
        with progress("Benchmarking") as report:
            report("loading")
            model = npusim.LanguageModel.load(
                compiled,
                weights,
                device=device or compiled.target,
                threads=threads or 0,
            )
            return bench_language_model(model, contexts, runs or 3, plot, report)
    specs = compiled.input_specs
    arrays = read_inputs(inputs, specs) if inputs else {s.name: sample(s) for s in specs}
    with progress("Benchmarking") as report:
        report("loading")
        start = time.perf_counter()
        session = npusim.load(
            program,
            weights=readable(weights) if weights else None,
            device=device or compiled.target,
            threads=threads,
        )
        load = time.perf_counter() - start
        report("running")
        times = measure(lambda: session(*arrays.values()), warmup, runs, seconds)
    facts: dict[str, Any] = {
        "load_s": load,
        **spread(times),
        "peak_rss_bytes": peak_rss(),
        "threads": threads,
    }
    low, high = facts["p10_s"], facts["p90_s"]
    rows = [
        ("load", duration(load)),
        ("median", duration(facts["median_s"])),
        ("10 % … 90 %", f"{duration(low)} … {duration(high)}"),
        ("fastest", duration(facts["min_s"])),
        ("runs", str(len(times))),
        ("peak memory of the process", amount(facts["peak_rss_bytes"])),
    ]
    return Answer(facts, [table(rows)])


def measure(
    call: Callable[[], object], warmup: int, runs: int | None, seconds: float
) -> list[float]:
    """Times `call` after `warmup` calls: `runs` times, or for `seconds`, but never under three."""
    for _ in range(warmup):
        call()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < runs if runs else len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def spread(times: list[float]) -> dict[str, float]:
    """Returns median, extremes and the 10th and 90th percentile, in seconds."""
    low, high = np.percentile(times, [10, 90])
    return {
        "runs": len(times),
        "median_s": statistics.median(times),
        "min_s": min(times),
        "max_s": max(times),
        "p10_s": float(low),
        "p90_s": float(high),
    }
