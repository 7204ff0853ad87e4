"""`npusim profile`: where a program's time goes, command by command, as a table and a trace."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

import npusim
from npusim.cli.answer import Answer, Verb, amount, duration, table
from npusim.cli.arrays import INPUT_HELP, read_inputs
from npusim.cli.artifact import open_program
from npusim.cli.progress import progress
from npusim.errors import Error
from npusim.profile.profile import KEYS, Group, Profile
from npusim.program.program import CompiledProgram, TensorSpec


@click.command(cls=Verb)
@click.argument("program", type=click.Path(path_type=Path))
@click.option(
    "--weights",
    type=click.Path(path_type=Path),
    help=".safetensors, its index, a folder of them, or .pt.",
)
@click.option("--method", help="Default: the program's first.")
@click.option("--input", "inputs", multiple=True, metavar="[NAME=]FILE", help=INPUT_HELP)
@click.option(
    "--context",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="A language model: how many tokens the cache holds in front of each run.",
)
@click.option("--device", help="Default: the device of the program's target.")
@click.option("--threads", type=click.IntRange(min=1), help="Default: one a core.")
@click.option("--by", type=click.Choice(KEYS), default="op", show_default=True)
@click.option("--top", type=click.IntRange(min=1), default=30, show_default=True, help="Rows.")
@click.option("--repeats", type=click.IntRange(min=1), help="Default: what fits in --seconds.")
@click.option("--seconds", type=click.FloatRange(min=0), default=3.0, show_default=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write a Chrome trace, for ui.perfetto.dev.",
)
def profile(
    program: Path,
    weights: Path | None,
    method: str | None,
    inputs: tuple[str, ...],
    context: int,
    device: str | None,
    threads: int | None,
    by: str,
    top: int,
    repeats: int | None,
    seconds: float,
    output: Path | None,
) -> Answer:
    """Time every command of a method, and what it moves and computes a second.

    Without --input, floating-point inputs are seeded normal numbers and all others are zero; a
    language model gets seeded tokens.
    """
    compiled = open_program(program)
    arrays = read_inputs(inputs, _specs(compiled, method)) if inputs else None
    with progress("Profiling") as report:
        report("running")
        found = npusim.profile_program(
            compiled,
            weights,
            method=method,
            inputs=arrays,
            context=context,
            device=device,
            threads=threads,
            repeats=repeats,
            seconds=seconds,
        )
    if output is not None:
        found.save_trace(output)
    return Answer(_facts(found, by), _text(found, by, top, output))


def _specs(program: CompiledProgram, method: str | None) -> tuple[TensorSpec, ...]:
    try:
        return program.method(method).inputs
    except KeyError:
        raise Error(f"The program has no method '{method}'.") from None


def _facts(found: Profile, by: str) -> dict[str, object]:
    return {
        "model": found.model,
        "method": found.method,
        "device": found.device,
        "context": found.context,
        "repeats": found.repeats,
        "run_s": found.run_seconds,
        "commands_s": found.commands_seconds,
        "groups": [dataclasses.asdict(group) for group in found.groups(by)],
        "commands": [dataclasses.asdict(command) for command in found.commands],
    }


def _text(found: Profile, by: str, top: int, output: Path | None) -> list[str]:
    groups, total = found.groups(by), found.commands_seconds
    rows = [_row(found, by, group, total) for group in groups[:top]]
    heads = ["count", "time", "share", "moved", "GB/s", "TFLOP/s"]
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
    return [*lines, f"trace: {output}"] if output is not None else lines


def _row(found: Profile, by: str, group: Group, total: float) -> tuple[object, ...]:
    row = (
        group.name,
        group.count,
        duration(group.seconds),
        f"{100 * group.seconds / total if total > 0 else 0:.1f} %",
        amount(group.bytes),
        f"{1e-9 * group.bytes_per_second:.1f}",
        f"{1e-12 * group.operations_per_second:.3f}",
    )
    if by != "command":
        return row
    command = found.commands[int(group.name.split()[0])]
    return (*row, command.kernel, command.source or command.module)
