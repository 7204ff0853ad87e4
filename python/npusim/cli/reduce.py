"""`npusim reduce`: a failing model becomes the smallest part that fails, in a folder to send."""

from __future__ import annotations

from pathlib import Path

import click

import npusim
from npusim.cli.answer import Answer, Verb
from npusim.cli.checkpoint import (
    require_weights,
    tolerance_option,
    weights_of,
)
from npusim.cli.factory import FACTORY_HELP, make
from npusim.cli.progress import progress
from npusim.cli.weights import INSTEAD, Weights, weights_options


@click.command(cls=Verb, epilog=FACTORY_HELP)
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The folder to write.",
)
@click.option("--target", default="cpu", show_default=True, help="Where the model fails.")
@weights_options(help=INSTEAD)
@tolerance_option
@click.option("--seed", default=0, show_default=True, help="Of the data that replace yours.")
@click.option("--isolate", is_flag=True, help="Run every candidate in a process of its own.")
def reduce(
    factory: str,
    output: Path,
    target: str,
    weights: Weights,
    tolerance: float | None,
    seed: int,
    isolate: bool,
) -> Answer:
    """Shrink a model that fails to the smallest part that fails in the same way.

    Failing is: not to compile, not to run, to give other results than PyTorch, or to take the
    process down. The folder holds the part as a graph, the target, a seed and measures of the
    data, but no weights and no inputs: `npusim reproduce FOLDER` runs it anywhere.
    """
    from npusim.verify import all_weights, tensor_leaves
    from npusim.verify.reduce import reduce as smallest

    with progress("Reducing") as report:
        report("building the model")
        made = make(factory)
        state = weights_of(made, weights)
        graph = npusim.extract_ir(
            made.model, made.args, made.kwargs or None, model_name=made.name, progress=report
        )
        require_weights(graph, state)
        inputs = tensor_leaves(made.args, made.kwargs)
        repro, failure = smallest(
            graph,
            inputs,
            all_weights(graph, state, made.model),
            target=target,
            seed=seed,
            tolerance=tolerance,
            isolate=isolate,
            report=report,
        )
        repro.save(output)
    nodes = [f"{node.name} {node.op}" for node in repro.graph.nodes]
    data = {
        "output": str(output),
        "nodes": len(nodes),
        "of": len(graph.nodes),
        "failure": {"kind": failure.kind, "message": failure.message},
    }
    lines = [
        f"{output}: {len(nodes)} of {len(graph.nodes)} nodes still fail ({failure.kind})",
        *(f"  {node}" for node in nodes),
        failure.message,
        f"Run it with: npusim reproduce {output}",
    ]
    return Answer(data, lines)
