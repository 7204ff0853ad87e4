"""`npusim compile`: a graph becomes a program for a target."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import click

import npusim
from npusim.cli.answer import Answer, Verb, amount
from npusim.cli.artifact import readable
from npusim.cli.progress import progress
from npusim.cli.summary import program_facts


@click.command("compile", cls=Verb)
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: GRAPH's .npubin.")
@click.option("--target", default="cpu", show_default=True, help="A target's name or .json file.")
@click.option(
    "--quantize",
    metavar="SCHEME",
    help="Weights of linears: int8, int4-g32, int4-g64, int4-g128 (int4 also -asymmetric).",
)
@click.option(
    "--sizes",
    multiple=True,
    metavar="SYMBOL=SIZE,…",
    help="Bring device code for these values of a symbolic size, beside its greatest; of several "
    "symbols, for all combinations.",
)
@click.option(
    "--dump-passes",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write the graph after every pass to this folder.",
)
def compile_model(
    graph: Path,
    output: Path | None,
    target: str,
    quantize: str | None,
    sizes: Sequence[str],
    dump_passes: Path | None,
) -> Answer:
    """Compile a graph to a .npubin file."""
    output = output or graph.with_suffix(".npubin")
    with progress("Compiling") as report:
        program = npusim.compile(
            readable(graph),
            target=target,
            quantize=quantize,
            sizes=_combinations(sizes),
            dump_passes=dump_passes,
            progress=report,
        )
        report("writing")
        program.save(output)
    facts = program_facts(program)
    memory, first = facts["memory"], facts["methods"][0]
    size = output.stat().st_size
    lines = [
        f"{output} ({amount(size)}) for {facts['target']}: {first['commands']} commands, "
        f"{facts['init_commands']} at load, {sum(b['count'] for b in facts['buffers'].values())} "
        f"buffers, {len(facts['kernels'])} kernels",
        f"memory: weights {amount(memory['weights'])}, prepared weights "
        f"{amount(memory['persistent'])}, arena {amount(memory['arena'])}",
    ]
    if "prepared_sizes" in facts:
        rows = (", ".join(f"{k} = {v}" for k, v in row.items()) for row in facts["prepared_sizes"])
        lines.append(f"device code for {'; '.join(rows)}")
    if dump_passes is not None:
        lines.append(f"graphs after each pass: {dump_passes}")
    return Answer({"output": str(output), "bytes": size, "program": facts}, lines)


def _combinations(options: Sequence[str]) -> list[dict[str, int]]:
    """Returns every combination of what `--sizes` lists."""
    chosen: dict[str, list[int]] = {}
    for option in options:
        name, equals, values = option.partition("=")
        numbers = values.split(",")
        if not name or not equals or not all(n.isascii() and n.isdigit() for n in numbers):
            raise click.UsageError(
                f"--sizes {option}: expected SYMBOL=SIZE,SIZE,…, such as batch=1,8."
            )
        chosen.setdefault(name, []).extend(map(int, numbers))
    rows = product(*chosen.values()) if chosen else ()
    return [dict(zip(chosen, row, strict=True)) for row in rows]
