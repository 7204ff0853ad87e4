"""`npusim view`: a graph, a program or a plan as a picture."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import click

from npusim.cli.answer import Answer, Verb, amount
from npusim.cli.artifact import open_artifact, open_ir, readable
from npusim.cli.onnx_model import as_it_is, is_onnx
from npusim.cli.schedules import schedule_marks
from npusim.errors import Error
from npusim.files import write_atomic
from npusim.ir.graph import Graph
from npusim.partition.plan import PartitionPlan
from npusim.pictures import Marks, to_html, to_mermaid, to_png, to_svg
from npusim.program.program import CompiledProgram

Graphs = Mapping[str, Graph]


@click.command(cls=Verb)
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The picture; its ending chooses the format: .html, .svg, .png or .mmd.",
)
@click.option(
    "--boxes",
    type=click.IntRange(min=1),
    help="Open modules, from the outside in, while no more boxes are seen. [60 in .html, else 150]",
)
@click.option("--method", help="Draw this method alone.")
@click.option("--load-time", is_flag=True, help="Draw what runs once, at load, too.")
@click.option(
    "--profile",
    type=click.Path(path_type=Path),
    help="Of a program: colour it by the times that `npusim profile --json` printed to this file.",
)
def view(
    file: Path,
    output: Path,
    boxes: int | None,
    method: str | None,
    load_time: bool,
    profile: Path | None,
) -> Answer:
    """Draw a graph, the lowered graphs inside a program, or a plan in the colours of its sides.

    A program for a described machine shows its schedule: which unit computes each node, in which
    tiles, and the share of the cycles by the estimate it was chosen by.
    """
    graphs, marks = _open(file)
    if method is not None:
        if method not in graphs:
            raise Error(f"{file} has no method '{method}'.", hint=f"It has: {', '.join(graphs)}.")
        graphs = {method: graphs[method]}
    if profile is not None:
        marks = {**marks, **_times(profile, graphs)}
    draw = _drawing(output.suffix.lower(), boxes, load_time)
    if draw is None:
        raise Error(
            f"{output.name} does not say which format to draw.",
            hint="Let it end in one of .html, .svg, .png, .mmd.",
        )
    if output.suffix.lower() == ".mmd" and len(graphs) > 1:
        raise Error(
            f"{file} has several methods, and mermaid text is of one.",
            hint=f"Choose: --method {' or '.join(graphs)}.",
        )
    image = draw(graphs, marks)
    write_atomic(output, image)
    nodes = sum(len(graph.nodes) for graph in graphs.values())
    data = {"output": str(output), "bytes": len(image), "nodes": nodes, "methods": list(graphs)}
    return Answer(data, [f"{output}: {nodes} nodes, {amount(len(image))}"])


def _drawing(
    suffix: str, boxes: int | None, load_time: bool
) -> Callable[[Graphs, Mapping[str, Marks]], bytes] | None:
    wide, page = boxes or 150, boxes or 60
    if suffix == ".html":
        return lambda g, m: to_html(g, m, max_boxes=page, load_time=load_time).encode()
    if suffix == ".svg":
        return lambda g, m: to_svg(g, m, max_boxes=wide, load_time=load_time).encode()
    if suffix == ".png":
        return lambda g, m: to_png(g, m, max_boxes=wide, load_time=load_time)
    if suffix == ".mmd":
        return lambda g, m: to_mermaid(next(iter(g.values())), wide).encode()
    return None


def _open(file: Path) -> tuple[Graphs, Mapping[str, Marks]]:
    """Returns the graphs of a file by method, and who runs which node of a plan or a machine."""
    if is_onnx(file):
        graph = as_it_is(file).graph
        return {graph.name: graph}, {}
    with readable(file).open("rb") as start:
        if start.read(64).lstrip().startswith(b"{"):
            model = open_ir(file)
            return ({model.name: model} if isinstance(model, Graph) else model.methods), {}
    artifact = open_artifact(file)
    if isinstance(artifact, CompiledProgram):
        graphs = artifact.graphs
        if not graphs:
            raise Error(f"{file} carries no graph.", hint="Give the graph it was compiled from.")
        return graphs, schedule_marks(artifact)
    assert isinstance(artifact, PartitionPlan)
    sides = {name: part.executor for part in artifact.partitions for name in part.nodes}
    return {artifact.graph.name: artifact.graph}, {artifact.graph.name: Marks(sides)}


def _times(profile: Path, graphs: Graphs) -> dict[str, Marks]:
    """Returns the seconds of each node, under the method that was profiled."""
    try:
        facts = json.loads(readable(profile).read_bytes())
        method, commands = facts["method"], facts["commands"]
        seconds: dict[str, float] = {}
        for command in commands:
            name = str(command["node"])
            seconds[name] = seconds.get(name, 0.0) + float(command["seconds"])
    except (ValueError, KeyError, TypeError):
        raise Error(
            f"{profile} is no profile.",
            hint="Write one: npusim profile PROGRAM --json > profile.json",
        ) from None
    known = {node.name for graph in graphs.values() for node in graph.nodes}
    if method not in graphs or not known & set(seconds):
        raise Error(
            f"{profile} is the profile of another program: it times method '{method}' and nodes "
            "that this file does not have."
        )
    return {method: Marks(seconds=seconds)}
