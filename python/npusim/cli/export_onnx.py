"""`npusim export-onnx`: a graph becomes an ONNX model."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from npusim.cli.answer import Answer, Verb, amount
from npusim.cli.artifact import open_ir, readable
from npusim.cli.progress import progress
from npusim.errors import Error


@click.command("export-onnx", cls=Verb)
@click.argument("graph", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Default: GRAPH's name with .onnx."
)
@click.option(
    "-w",
    "--weights",
    type=click.Path(path_type=Path),
    help="A checkpoint: .safetensors, .pt, or a folder of shards.",
)
@click.option("--graph-only", is_flag=True, help="Leave weights out: they become inputs.")
@click.option("--opset", type=int, help="Version of ONNX's operators, 18 or newer; default 23.")
@click.option(
    "--external/--inline",
    default=None,
    help="Weights in a file beside the model, or inside; default: beside when over 1 GiB.",
)
def export_onnx(
    graph: Path,
    output: Path | None,
    weights: Path | None,
    graph_only: bool,
    opset: int | None,
    external: bool | None,
) -> Answer:
    """Turn a graph into an ONNX model, for Netron and other tools."""
    for package in ("onnx", "torch"):
        if importlib.util.find_spec(package) is None:
            raise Error(
                f"Exporting to ONNX needs the package {package}.", hint="pip install 'npusim[onnx]'"
            )
    from npusim.exporters.onnx import DEFAULT_OPSET
    from npusim.exporters.onnx import export_onnx as export

    if weights is not None and not weights.is_dir():
        readable(weights)
    with progress("Exporting") as report:
        report("reading the graph")
        ir = open_ir(graph)
        report("translating")
        written = export(
            ir,
            output or graph.with_suffix(".onnx"),
            weights,
            opset=DEFAULT_OPSET if opset is None else opset,
            external=external,
            graph_only=graph_only,
        )
    sizes = {str(path): path.stat().st_size for path in written}
    data = {"files": [{"path": path, "bytes": size} for path, size in sizes.items()]}
    return Answer(data, [f"{path}: {amount(size)}" for path, size in sizes.items()])
