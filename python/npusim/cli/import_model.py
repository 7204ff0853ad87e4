"""`npusim import`: an ONNX model becomes a weight-free graph, and its weights a checkpoint."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from npusim.cli.answer import Answer, Verb, amount
from npusim.cli.artifact import readable
from npusim.cli.onnx_model import imported, save_imported
from npusim.cli.progress import progress
from npusim.cli.summary import graph_facts
from npusim.errors import Error


@click.command("import", cls=Verb)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL.onnx")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="JSON file.")
@click.option(
    "--weights", type=click.Path(path_type=Path), help="Write the weights here as safetensors."
)
@click.option(
    "--shape", "shapes", multiple=True, metavar="NAME=1x3x224x224", help="An input's shape."
)
@click.option(
    "--value",
    "values",
    multiple=True,
    metavar="NAME=FILE.npy",
    help="An input's value, fixed: one that shapes depend on.",
)
@click.option(
    "--dynamic",
    multiple=True,
    metavar="DIM=MAX",
    help="A dimension the model leaves open, from 1 to MAX as calls choose: batch=8. DIM=MIN:MAX "
    "gives a minimum. Can be repeated.",
)
@click.option("--name", help="The model's name; default: the file's.")
def import_model(
    model: Path,
    output: Path,
    weights: Path | None,
    shapes: tuple[str, ...],
    values: tuple[str, ...],
    dynamic: tuple[str, ...],
    name: str | None,
) -> Answer:
    """Turn an ONNX model into a graph without weights."""
    with progress("Importing") as report:
        report("reading the model")
        made = imported(
            model,
            shapes=dict(_shape(text) for text in shapes),
            values=dict(_value(text) for text in values),
            dynamic_shapes=dict(_bounds(text) for text in dynamic),
            name=name,
        )
        report("writing")
        made.graph.save(output)
        written = save_imported(made.weights, weights) if weights else None
    facts = graph_facts(made.graph)
    parameters = facts["parameters"]
    lines = [
        f"{output}: {facts['nodes']} nodes, {parameters['tensors']} weights "
        f"({parameters['elements']:,} elements, {amount(parameters['bytes'])})"
    ]
    data = {"output": str(output), "graph": facts}
    if weights is not None and written is not None:
        lines.append(f"{weights}: {amount(written)}")
        data["weights"] = {"path": str(weights), "bytes": written}
    return Answer(data, lines)


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, dims = text.rpartition("=")
    try:
        return name, tuple(int(d) for d in dims.split("x") if d)
    except ValueError:
        raise Error(f"--shape {text} is not of the form name=1x3x224x224.") from None


def _bounds(text: str) -> tuple[str, tuple[int, int]]:
    name, _, numbers = text.rpartition("=")
    try:
        low, high = map(int, numbers.split(":") if ":" in numbers else ("1", numbers))
        return name, (low, high)
    except ValueError:
        raise Error(f"--dynamic {text} is not of the form batch=8 or seq=1:128.") from None


def _value(text: str) -> tuple[str, np.ndarray]:
    name, _, path = text.partition("=")
    try:
        return name, np.load(readable(Path(path)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise Error(f"{path} is not a .npy file: {error}.") from None
