"""`npusim bench`: how long a program or a plan takes to load and to run, and in what memory."""

from __future__ import annotations

import functools
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
from npusim.cli.artifact import open_program, open_runnable, plan_specs
from npusim.cli.bench_against import Peers, bench_against, rounds_in
from npusim.cli.bench_llm import LENGTHS, Lengths, bench_language_model
from npusim.cli.finite import Finite
from npusim.cli.progress import progress
from npusim.cli.running import Running, running_options
from npusim.cli.sizes import call_sizes, call_sizes_option
from npusim.cli.weights import Weights, weights_options
from npusim.ir.symbolic import symbols_of
from npusim.partition.plan import PartitionPlan
from npusim.peers.runtimes import RUNTIMES
from npusim.profile.inputs import sample
from npusim.profile.memory import peak_rss


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@weights_options()
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=INPUT_HELP)
@call_sizes_option
@running_options
@click.option("--warmup", type=click.IntRange(min=0), default=5, show_default=True)
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    help="Default: as many as fit in --seconds. With --against: rounds.",
)
@click.option("--seconds", type=Finite(min=0), default=3.0, show_default=True)
@click.option("--llm", is_flag=True, help="A language model: first token and tokens/s by context.")
@click.option(
    "--contexts",
    type=Lengths(),
    default=LENGTHS,
    metavar="1,128,…",
    help="With --llm; those beyond the program's context are left out.",
)
@click.option("--plot", type=click.Path(path_type=Path), help="With --llm: draw it (.png, .svg).")
@click.option(
    "--against",
    type=Peers(),
    metavar="NAME,…",
    help="Take turns with other runtimes on the CPU: " + ", ".join(RUNTIMES) + ".",
)
@click.option(
    "--model",
    type=click.Path(path_type=Path),
    help="With --against: the graph that PROGRAM was compiled from, or its .onnx.",
)
def bench(
    program: Path,
    weights: Weights,
    inputs: tuple[str, ...],
    sizes: tuple[str, ...],
    running: Running,
    warmup: int,
    runs: int | None,
    seconds: float,
    llm: bool,
    contexts: tuple[int, ...],
    plot: Path | None,
    against: tuple[str, ...] | None,
    model: Path | None,
) -> Answer:
    """Time a program, or a plan: load, then calls from Python with NumPy arrays.

    Without --input, floating-point inputs are seeded normal numbers and all others are zero, of the
    greatest sizes where calls choose some, or of --sizes.
    """
    if model is not None and not against:
        raise click.UsageError("--model is what --against compares with.")
    if llm and against:
        raise click.UsageError("--against compares single calls; language models are for --llm.")
    if llm:
        compiled = open_program(program)
        with progress("Benchmarking") as report:
            report("loading")
            language_model = npusim.LanguageModel.load(
                compiled,
                weights,
                device=running.open(compiled.target),
                copy=running.copy_weights,
                progress=report,
            )
            return bench_language_model(language_model, contexts, runs or 3, plot, report)
    opened = open_runnable(program)
    plan = opened if isinstance(opened, PartitionPlan) else None
    specs = plan_specs(opened) if isinstance(opened, PartitionPlan) else opened.input_specs
    symbols = symbols_of(tuple(s.shape for s in specs))
    chosen, told = call_sizes(sizes, sorted(symbols, key=lambda s: s.name), bool(inputs))
    arrays = read_inputs(inputs, specs) if inputs else {s.name: sample(s, chosen) for s in specs}
    with progress("Benchmarking") as report:
        if against:
            rounds = runs or rounds_in(seconds)
            return bench_against(
                program, weights, arrays, running, against, model, rounds, plan is not None, report
            )
        report("loading")
        start = time.perf_counter()
        call: Callable[[], object]
        if plan is not None:
            on, copy = running.open(plan.device), running.copy_weights
            executor = npusim.DAGExecutor(plan, on).load_weights(
                weights, copy=copy, progress=report
            )
            call = functools.partial(executor.execute, arrays)
        else:
            on, copy = running.open(opened.target), running.copy_weights
            session = npusim.load(program, weights, on, copy=copy, progress=report)
            call = functools.partial(session, *arrays.values())
        load = time.perf_counter() - start
        report("running")
        times = measure(call, warmup, runs, seconds)
    facts: dict[str, Any] = {
        "load_s": load,
        **spread(times),
        "peak_rss_bytes": peak_rss(),
        "threads": running.threads,
        "sizes": {} if inputs else chosen,
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
    return Answer(facts, [table(rows), *told])


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
