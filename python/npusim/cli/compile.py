"""`npusim compile`: a graph becomes a program for a target."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

import npusim
from npusim.cli.answer import Answer, Verb, amount
from npusim.cli.artifact import beside
from npusim.cli.language import LanguageOptions, is_language_model, language_options
from npusim.cli.onnx_model import open_to_compile, weights_of_onnx_option
from npusim.cli.precision import precision_option, quantize_option
from npusim.cli.progress import Report, progress
from npusim.cli.sizes import combinations, prepared_line, sizes_option
from npusim.cli.summary import program_facts
from npusim.errors import Error
from npusim.ir.graph import Graph
from npusim.ir.module import Module
from npusim.program.program import CompiledProgram


@click.command("compile", cls=Verb)
@click.argument("graph", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Default: GRAPH's .npubin.")
@click.option("--target", default="cpu", show_default=True, help="A target's name or .toml file.")
@quantize_option
@precision_option
@weights_of_onnx_option
@sizes_option
@language_options(serving=False)
@click.option(
    "--tensor-parallel",
    type=int,
    default=1,
    show_default=True,
    metavar="RANKS",
    help="Split the model among so many ranks, which run it together.",
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
    precision: str | None,
    weights_out: Path | None,
    sizes: Sequence[str],
    tensor_parallel: int,
    dump_passes: Path | None,
    language: LanguageOptions,
) -> Answer:
    """Compile a graph, an ONNX model or a language model to a .npubin file.

    A language model is a folder of Hugging Face transformers or a .gguf file, extracted first.
    """
    if output is None:
        of_folder = graph.parent / f"{graph.resolve().name}.npubin"
        output = of_folder if graph.is_dir() else beside(graph, ".npubin")
    with progress("Compiling") as report:
        report("reading the graph")
        ir: Module | Graph
        told: list[str] = []
        if is_language_model(graph):
            ir = _language_model(graph, weights_out, language, report)
        else:
            language.refuse(graph)
            ir, told = open_to_compile(graph, weights_out, "compile")
        program = npusim.compile(
            ir,
            target=target,
            quantize=quantize,
            precision=precision,
            sizes=combinations(sizes),
            tensor_parallel=tensor_parallel,
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
    lines += [*prepared_line(facts), *_ranks(program), *told]
    if dump_passes is not None:
        lines.append(f"graphs after each pass: {dump_passes}")
    return Answer({"output": str(output), "bytes": size, "program": facts}, lines)


def _ranks(program: CompiledProgram) -> list[str]:
    """Says how the weights are split among ranks, and why others are not."""
    facts: Any = program.metadata.get("tensor_parallel")
    if facts is None:
        return []
    split, whole = facts["split"], facts["whole"]
    counts = ", ".join(f"{n} by {how}" for how, n in sorted(Counter(split.values()).items()))
    lines = [f"{facts['ranks']} ranks: matrices split {counts}; whole {len(whole)}"]
    reasons = Counter(whole.values())
    return lines + [f"whole on every rank ({n}): {why}" for why, n in reasons.most_common(4)]


def _language_model(
    source: Path, weights_out: Path | None, language: LanguageOptions, report: Report
) -> Module | Graph:
    if weights_out is not None:
        raise Error(f"The weights of {source} stay where they are.", hint="Leave --weights out.")
    return language.extract(source, report)
