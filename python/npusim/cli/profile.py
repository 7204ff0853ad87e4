"""`npusim profile`: where a program's time goes, command by command, as a table and a trace."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from pathlib import Path

import click

import npusim
from npusim.cli.answer import Answer, Verb, amount, duration, table
from npusim.cli.arrays import INPUT_HELP, read_inputs
from npusim.cli.artifact import open_runnable, plan_specs
from npusim.cli.finite import Finite
from npusim.cli.progress import progress
from npusim.cli.running import Running, running_options
from npusim.cli.sizes import call_sizes, call_sizes_option
from npusim.cli.timing import measure
from npusim.cli.weights import Weights, weights_options
from npusim.partition.plan import Partition, PartitionPlan, TransferOp
from npusim.profile.inputs import sample
from npusim.profile.profile import KEYS, Group, Profile
from npusim.profile.roofline import limits_text, share_of
from npusim.profile.saved import profile_facts
from npusim.program.program import method_named


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@weights_options()
@click.option("--method", help="Default: the program's first.")
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=INPUT_HELP)
@call_sizes_option
@click.option(
    "--context",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="A language model: how many tokens the cache holds before each run.",
)
@running_options
@click.option("--by", type=click.Choice(KEYS), default="op", show_default=True)
@click.option("--top", type=click.IntRange(min=1), default=30, show_default=True, help="Rows.")
@click.option("--repeats", type=click.IntRange(min=1), help="Default: what fits in --seconds.")
@click.option("--seconds", type=Finite(min=0), default=3.0, show_default=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write a Chrome trace, for ui.perfetto.dev.",
)
@click.option(
    "--roofline",
    type=click.Path(path_type=Path),
    help="Measure what the CPU reaches at best, and draw the commands below it: .svg, .png, .html.",
)
def profile(
    program: Path,
    weights: Weights,
    method: str | None,
    inputs: tuple[str, ...],
    sizes: tuple[str, ...],
    context: int,
    running: Running,
    by: str,
    top: int,
    repeats: int | None,
    seconds: float,
    output: Path | None,
    roofline: Path | None,
) -> Answer:
    """Time every command of a method, and what it moves and computes a second.

    Without --input, floating-point inputs are seeded normal numbers and all others are zero, of the
    greatest sizes where calls choose some, or of --sizes; a language model gets seeded tokens. Of a
    plan, every step is timed: a partition's program, operators in PyTorch, or a transfer.
    """
    opened = open_runnable(program)
    if isinstance(opened, PartitionPlan):
        if method or context or output or roofline:
            raise click.UsageError("A plan has no --method, --context, --output or --roofline.")
        return _of_plan(opened, weights, inputs, sizes, running, repeats, seconds)
    compiled = opened
    entry = method_named(compiled, method)
    specs = entry.inputs
    chosen, told = call_sizes(sizes, entry.symbols, bool(inputs))
    arrays = read_inputs(inputs, specs) if inputs else None
    if chosen and not inputs:
        arrays = {spec.name: sample(spec, chosen) for spec in specs}
    with progress("Profiling") as report:
        report("loading")
        on = running.open(compiled.target)
        copy = running.copy_weights
        loaded = npusim.load_weights(weights, compiled, on, copy=copy, progress=report)
        report("running")
        found = npusim.profile_program(
            compiled,
            loaded,
            method=method,
            inputs=arrays,
            context=context,
            device=on,
            repeats=repeats,
            seconds=seconds,
            limits=roofline is not None,
        )
    if output is not None:
        found.save_trace(output)
    if roofline is not None:
        found.save_roofline(roofline)
    written = [("trace", output), ("roofline", roofline)]
    files = [f"{what}: {path}" for what, path in written if path is not None]
    return Answer(_facts(found, by), [*_text(found, by, top), *files, *told])


def _of_plan(
    plan: PartitionPlan,
    weights: Weights,
    inputs: tuple[str, ...],
    sizes: tuple[str, ...],
    running: Running,
    repeats: int | None,
    seconds: float,
) -> Answer:
    """Times the steps of a plan: medians over whole runs."""
    specs = plan_specs(plan)
    chosen, told = call_sizes(sizes, plan.graph.symbols, bool(inputs))
    arrays = read_inputs(inputs, specs) if inputs else {s.name: sample(s, chosen) for s in specs}
    with progress("Profiling") as report:
        report("loading")
        on, copy = running.open(plan.device), running.copy_weights
        executor = npusim.DAGExecutor(plan, on).load_weights(weights, copy=copy, progress=report)
        report("running")
        rows: list[list[float]] = []
        measure(lambda: executor.execute(arrays, seconds=rows), 0, repeats, seconds)
    medians = [statistics.median(times) for times in zip(*rows, strict=True)]
    steps = [s for s in plan.steps if not s.at_load]
    total = sum(medians)
    shown = [
        (*_step(step), duration(s), f"{100 * s / total if total > 0 else 0:.1f} %")
        for step, s in zip(steps, medians, strict=True)
    ]
    facts = {
        "steps": [
            {"step": name, "runs": runs, "seconds": s}
            for (name, runs), s in zip(map(_step, steps), medians, strict=True)
        ],
        "steps_s": total,
        "repeats": len(rows),
        "sizes": {} if inputs else chosen,
    }
    line = f"{plan.graph.name} on {on.description}; medians of {len(rows)} runs, {duration(total)}"
    return Answer(facts, [table(shown, "step", "runs", "time", "share"), line, *told])


def _step(step: Partition | TransferOp) -> tuple[str, str]:
    """Returns what a step is and what it runs or moves."""
    if isinstance(step, TransferOp):
        return f"transfer to {step.to}", f"{step.value}, up to {amount(step.nbytes)}"
    operators = Counter(node.op for node in step.graph.nodes)
    most = ", ".join(f"{count} {op}" for op, count in operators.most_common(2))
    return f"{step.index} {step.executor}", f"{len(step.graph.nodes)} nodes: {most}"


def _facts(found: Profile, by: str) -> dict[str, object]:
    groups = [dataclasses.asdict(group) for group in found.groups(by)]
    return {**profile_facts(found), "groups": groups}


def _text(found: Profile, by: str, top: int) -> list[str]:
    groups, total = found.groups(by), found.commands_seconds
    rows = [_row(found, by, group, total) for group in groups[:top]]
    heads = ["count", "time", "share", "moved", "GB/s", "TFLOP/s"]
    if found.limits:
        heads.append("of limit")
    if by == "command":
        heads += ["kernel", "source"]
    lines = [table(rows, by, *heads)]
    if len(groups) > top:
        rest = sum(group.seconds for group in groups[top:])
        lines.append(f"… and {len(groups) - top} more, {duration(rest)} together (--top).")
    share = total / found.run_seconds if found.run_seconds > 0 else 0.0
    lines += [
        f"{found.model or 'program'}, method {found.method}, on {found.device}; medians of "
        f"{found.repeats}",
        f"the {len(found.commands)} commands, each timed by itself: {duration(total)}; a whole run "
        f"that nobody observes: {duration(found.run_seconds)} (the sum is {100 * share:.0f} % of "
        "it)",
    ]
    return [*lines, limits_text(dict(found.limits))] if found.limits else lines


def _row(found: Profile, by: str, group: Group, total: float) -> tuple[object, ...]:
    row: tuple[object, ...] = (
        group.name,
        group.count,
        duration(group.seconds),
        f"{100 * group.seconds / total if total > 0 else 0:.1f} %",
        amount(group.bytes),
        f"{1e-9 * group.bytes_per_second:.1f}",
        f"{1e-12 * group.operations_per_second:.3f}",
    )
    if found.limits:
        share = share_of(found.commands_of(group.name, by), dict(found.limits))
        row = (*row, f"{100 * share:.0f} %")
    if by != "command":
        return row
    command = found.commands[int(group.name.split()[0])]
    return (*row, command.kernel, command.source or command.module)
