"""`npusim bench`: how long a program or a plan takes to load and to run, and in what memory."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
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
from npusim.cli.bench_serve import LoadOptions, bench_server, load_options
from npusim.cli.finite import Finite
from npusim.cli.progress import Report, progress
from npusim.cli.running import Running, running_options
from npusim.cli.sizes import call_sizes, call_sizes_option
from npusim.cli.timing import measure, spread
from npusim.cli.weights import Weights, weights_options
from npusim.ir.symbolic import symbols_of
from npusim.partition.plan import PartitionPlan
from npusim.peers.runtimes import RUNTIMES
from npusim.profile.inputs import sample
from npusim.profile.memory import peak_rss
from npusim.program.program import CompiledProgram


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path), required=False)
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
@click.option(
    "--plot", type=click.Path(path_type=Path), help="With --llm, --serve: draw it (.png, .svg)."
)
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
@load_options
def bench(
    program: Path | None,
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
    load: LoadOptions,
) -> Answer:
    """Time a program, or a plan: load, then calls from Python with NumPy arrays.

    Without --input, floating-point inputs are seeded normal numbers and all others are zero, of the
    greatest sizes where calls choose some, or of --sizes.

    With --serve URL, a load test of a server: options and report are those of `vllm bench serve`.
    """
    if load.url is not None:
        if program is not None:
            raise click.UsageError("--serve tests a server; leave the program out.")
        with progress("Benchmarking") as report:
            return bench_server(load, plot, report)
    if program is None:
        raise click.UsageError("Give a program, or --serve and the URL of a server.")
    if model is not None and not against:
        raise click.UsageError("--model is what --against compares with.")
    if llm and against:
        raise click.UsageError("--against compares single calls; language models are for --llm.")
    if llm:
        with progress("Benchmarking") as report:
            language_model = _language_model(program, weights, running, report)
            return bench_language_model(language_model, contexts, runs or 3, plot, report)
    opened = open_runnable(program)
    plan = isinstance(opened, PartitionPlan)
    specs = plan_specs(opened) if isinstance(opened, PartitionPlan) else opened.input_specs
    symbols = symbols_of(tuple(s.shape for s in specs))
    chosen, told = call_sizes(sizes, sorted(symbols, key=lambda s: s.name), bool(inputs))
    arrays = read_inputs(inputs, specs) if inputs else {s.name: sample(s, chosen) for s in specs}
    with progress("Benchmarking") as report:
        if against:
            rounds = runs or rounds_in(seconds)
            return bench_against(
                program, weights, arrays, running, against, model, rounds, plan, report
            )
        report("loading")
        start = time.perf_counter()
        call = _loaded(program, opened, weights, running, arrays, report)
        loading = time.perf_counter() - start
        report("running")
        times = measure(call, warmup, runs, seconds)
    facts = {
        "load_s": loading,
        **spread(times),
        "peak_rss_bytes": peak_rss(),
        "threads": running.threads,
        "sizes": {} if inputs else chosen,
    }
    return Answer(facts, [_shown(facts), *told])


def _language_model(
    program: Path, weights: Weights, running: Running, report: Report
) -> npusim.LanguageModel:
    compiled = open_program(program)
    report("loading")
    return npusim.LanguageModel.load(
        compiled,
        weights,
        device=running.open(compiled.target),
        copy=running.copy_weights,
        progress=report,
    )


def _loaded(
    program: Path,
    opened: CompiledProgram | PartitionPlan,
    weights: Weights,
    running: Running,
    arrays: Mapping[str, np.ndarray],
    report: Report,
) -> Callable[[], object]:
    """Returns a call of a program, or of a plan."""
    copy = running.copy_weights
    if isinstance(opened, PartitionPlan):
        executor = npusim.DAGExecutor(opened, running.open(opened.device))
        executor.load_weights(weights, copy=copy, progress=report)
        return functools.partial(executor.execute, arrays)
    on = running.open(opened.target)
    session = npusim.load(program, weights, on, copy=copy, progress=report)
    return functools.partial(session, *arrays.values())


def _shown(facts: Mapping[str, Any]) -> str:
    return table(
        [
            ("load", duration(facts["load_s"])),
            ("median", duration(facts["median_s"])),
            ("10 % … 90 %", f"{duration(facts['p10_s'])} … {duration(facts['p90_s'])}"),
            ("fastest", duration(facts["min_s"])),
            ("runs", str(facts["runs"])),
            ("peak memory of the process", amount(facts["peak_rss_bytes"])),
        ]
    )
