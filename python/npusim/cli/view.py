"""`npusim view`: a graph as a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from npusim.cli.answer import Answer, Verb, amount
from npusim.cli.artifact import open_graph
from npusim.errors import Error
from npusim.files import write_atomic
from npusim.ir.graph import Graph
from npusim.ir.visualize import to_html, to_mermaid, to_svg

_FORMATS: dict[str, Callable[[Graph], str]] = {
    ".mmd": to_mermaid,
    ".svg": to_svg,
    ".html": to_html,
}


@click.command(cls=Verb)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help=f"The picture; its ending chooses the format: {', '.join(_FORMATS)}.",
)
def view(file: Path, output: Path) -> Answer:
    """Draw a graph, or the lowered graph inside a program."""
    draw = _FORMATS.get(output.suffix.lower())
    if draw is None:
        raise Error(
            f"{output.name} does not say which format to draw.",
            hint=f"Let it end in one of {', '.join(_FORMATS)}.",
        )
    graph = open_graph(file)
    image = draw(graph).encode()
    write_atomic(output, image)
    data = {"output": str(output), "bytes": len(image), "nodes": len(graph.nodes)}
    return Answer(data, [f"{output}: {len(graph.nodes)} nodes, {amount(len(image))}"])
