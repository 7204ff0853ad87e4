"""`npusim extract`: a PyTorch model becomes a weight-free graph, and its weights a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

import npusim
from npusim.cli.answer import Answer, Verb, amount
from npusim.cli.checkpoint import save_checkpoint
from npusim.cli.dynamic import dynamic_shapes
from npusim.cli.factory import FACTORY_HELP, make
from npusim.cli.language import LanguageOptions, is_language_model, language_options
from npusim.cli.progress import progress
from npusim.cli.summary import graph_facts
from npusim.errors import Error


@click.command(cls=Verb, epilog=FACTORY_HELP)
@click.argument("factory", metavar="MODULE:FACTORY|FOLDER")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="JSON file.")
@click.option(
    "--weights", type=click.Path(path_type=Path), help="Write the weights here as safetensors."
)
@click.option("--name", help="The model's name; default: the factory's.")
@click.option(
    "--dynamic",
    multiple=True,
    metavar="INPUT:AXIS=SIZE:MAX",
    help="A dimension that calls may choose, from 1 to MAX: ids:0=batch:8, x:1=4*seq:64 (MAX is "
    "that of the name). SIZE:MIN:MAX gives a minimum. Can be repeated.",
)
@language_options(serving=False)
def extract(
    factory: str,
    output: Path,
    weights: Path | None,
    name: str | None,
    dynamic: tuple[str, ...],
    language: LanguageOptions,
) -> Answer:
    """Turn a PyTorch model into a graph without weights.

    FOLDER is a language model of Hugging Face transformers, or a .gguf file; its weights stay.

    Build the model under `torch.device("meta")` to keep its weights out of memory altogether;
    with --weights it must be a real one.
    """
    if is_language_model(factory):
        for option, given in (("--weights", weights), ("--name", name), ("--dynamic", dynamic)):
            if given:
                raise Error(f"{option} is about a factory's model, and {factory} is a folder's.")
        return _extract_language_model(Path(factory), output, language)
    language.refuse(factory)
    with progress("Extracting") as report:
        report("building the model")
        made = make(factory)
        graph = npusim.extract_ir(
            made.model,
            made.args,
            made.kwargs or None,
            model_name=name or made.name,
            dynamic_shapes=dynamic_shapes(dynamic, made) if dynamic else None,
            progress=report,
        )
        report("writing")
        graph.save(output)
        written = save_checkpoint(graph, made.model, weights) if weights else None
    facts = graph_facts(graph)
    parameters = facts["parameters"]
    lines = [
        f"{output}: {facts['nodes']} nodes, {parameters['tensors']} weights "
        f"({parameters['elements']:,} elements, {amount(parameters['bytes'])})"
    ]
    data: dict[str, Any] = {"output": str(output), "graph": facts}
    if weights is not None and written is not None:
        lines.append(f"{weights}: {amount(written)}")
        data["weights"] = {"path": str(weights), "bytes": written}
    data["remarks"] = made.remarks()
    lines += data["remarks"]
    return Answer(data, lines)


def _extract_language_model(source: Path, output: Path, language: LanguageOptions) -> Answer:
    with progress("Extracting") as report:
        module = language.extract(source, report)
        report("writing")
        module.save(output)
    methods = {name: len(graph.nodes) for name, graph in module.methods.items()}
    shown = ", ".join(f"{name} ({nodes} nodes)" for name, nodes in methods.items())
    data = {"output": str(output), "methods": methods, "facts": module.facts["language_model"]}
    return Answer(data, [f"{output}: {shown}"])
