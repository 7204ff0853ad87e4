"""`npusim verify`: does npusim compute what PyTorch computes?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import npusim
from npusim.abi.precision import PRECISIONS
from npusim.cli.answer import Answer, Verb
from npusim.cli.artifact import readable
from npusim.cli.checkpoint import (
    require_weights,
    tolerance_option,
    weights_of,
)
from npusim.cli.factory import FACTORY_HELP, make
from npusim.cli.precision import precision_errors
from npusim.cli.progress import Report, progress
from npusim.cli.quality import layer_quality, perplexities
from npusim.cli.weights import INSTEAD, Weights, weights_options
from npusim.errors import Error


@click.command(cls=Verb, epilog=FACTORY_HELP)
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option("--target", default="cpu", show_default=True, help="A target's name or .toml file.")
@weights_options(help=INSTEAD)
@tolerance_option
@click.option("--threads", type=click.IntRange(min=1), help="Default: one a core.")
@click.option(
    "--program",
    "stored",
    type=click.Path(path_type=Path),
    help="A .npubin file to compare, instead of compiling the model.",
)
@click.option(
    "--fallback",
    is_flag=True,
    help="Let PyTorch run what the target lacks, and look into the partitions.",
)
@click.option(
    "--bisect",
    is_flag=True,
    help="Name the first command that diverges even when the outputs agree.",
)
@click.option(
    "--edges/--no-edges",
    default=True,
    show_default=True,
    help="Try zeros, NaN, empty and full masks, and extremes as well.",
)
@click.option(
    "--quant",
    metavar="SCHEME",
    help="Measure what a quantization of the weights costs instead: int8, fp8, int4-g32 …",
)
@click.option(
    "--precision",
    type=click.Choice(PRECISIONS[1:]),
    help="Measure what a precision costs instead, by product and by output, and compare the "
    "program compiled in it.",
)
@click.option(
    "--text",
    type=click.Path(path_type=Path),
    help="With --quant and a language model's folder: score this text.",
)
@click.option(
    "--max-context",
    type=click.IntRange(min=2),
    help="With --text: score so many tokens of it. [512, or the positions the model knows]",
)
@click.option("--tokenizer", type=click.Path(path_type=Path), help="Default: in the folder.")
def verify(
    factory: str,
    target: str,
    weights: Weights,
    tolerance: float | None,
    threads: int | None,
    stored: Path | None,
    fallback: bool,
    bisect: bool,
    edges: bool,
    quant: str | None,
    precision: str | None,
    text: Path | None,
    max_context: int | None,
    tokenizer: Path | None,
) -> Answer:
    """Compare a model's graph, and the program compiled from it, with PyTorch.

    The model needs weights and the example arguments need values. The answer is no when an output
    is out of tolerance, on the example arguments or on edge inputs made of them; then the pass that
    changes the results is named, or the first command that diverges, with what it was given, and
    whether it is wrong by itself or its inputs were.

    With --quant, the noise that quantized weights bring into every layer is measured; with --text
    as well, MODULE:FACTORY is the folder of a language model, and its perplexity is compared.
    With --precision, the error that 16 bits bring into every product and every output is.
    """
    with progress("Verifying") as report:
        if text is not None:
            if quant is None or not Path(factory).is_dir():
                raise Error("--text needs --quant and the folder of a language model.")
            common: dict[str, Any] = {"weights": weights, "tokenizer": tokenizer, "target": target}
            common["max_context"] = max_context
            return perplexities(
                Path(factory), quant, text, threads=threads, report=report, **common
            )
        report("building the model")
        made = make(factory)
        state = weights_of(made, weights)
        if quant is not None:
            return layer_quality(made, state, quant, report)
        if precision is not None:
            return precision_errors(made, state, precision, target, threads, report)
        graph = npusim.extract_ir(
            made.model, made.args, made.kwargs or None, model_name=made.name, progress=report
        )
        common = {
            "state_dict": state,
            "original_model": made.model,
            "test_inputs": made.args,
            "test_kwargs": made.kwargs,
            "tolerance": tolerance,
        }
        require_weights(graph, state)
        report("running the model")
        _, of_graph = npusim.verify_ir_with_state_dict(ir=graph, progress=report, **common)
        common |= {"threads": threads, "bisect": bisect, "edges": edges, "progress": report}
        if fallback:
            report("partitioning")
            plan = npusim.partition(graph, target=target)
            report("running the partitions")
            _, of_program = npusim.verify_plan(plan, device=plan.device, **common)
        else:
            report("compiling")
            program = _program(stored, graph, target, report)
            report("running the model")
            common |= {"source": graph, "device": program.target}
            _, of_program = npusim.verify_program(program, **common)
    data = {"graph": of_graph.to_json(), "program": of_program.to_json()}
    return Answer(data, [str(of_graph), str(of_program)], ok=of_graph.ok and of_program.ok)


def _program(
    stored: Path | None, graph: npusim.IR, target: str, report: Report
) -> npusim.CompiledProgram:
    if stored is not None:
        return npusim.CompiledProgram.load(readable(stored))
    return npusim.compile(graph, target=target, progress=report)
