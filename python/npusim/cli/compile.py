"""`npusim compile`: a graph becomes a program for a target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

import npusim
from npusim.cli.answer import Answer, Verb, amount
from npusim.cli.artifact import beside
from npusim.cli.onnx_model import open_to_compile, weights_of_onnx_option
from npusim.cli.precision import precision_option, quantize_option
from npusim.cli.progress import progress
from npusim.cli.sizes import combinations, prepared_line, sizes_option
from npusim.cli.summary import program_facts


@click.command("compile", cls=Verb)
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: GRAPH's .npubin.")
@click.option("--target", default="cpu", show_default=True, help="A target's name or .toml file.")
@quantize_option
@precision_option
@weights_of_onnx_option
@sizes_option
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
    precision: str | None,
    weights_out: Path | None,
    sizes: Sequence[str],
    dump_passes: Path | None,
) -> Answer:
    """Compile a graph, or an ONNX model, to a .npubin file."""
    output = output or beside(graph, ".npubin")
    with progress("Compiling") as report:
        report("reading the graph")
        ir, told = open_to_compile(graph, weights_out, "compile")
        program = npusim.compile(
            ir,
            target=target,
            quantize=quantize,
            precision=precision,
            sizes=combinations(sizes),
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
    lines += [*prepared_line(facts), *told]
    if dump_passes is not None:
        lines.append(f"graphs after each pass: {dump_passes}")
    return Answer({"output": str(output), "bytes": size, "program": facts}, lines)
