"""`npusim export-onnx`: a graph becomes an ONNX model."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import click

from npusim.cli.answer import Answer, Verb, amount
from npusim.cli.artifact import beside, open_ir
from npusim.cli.progress import progress
from npusim.cli.weights import Weights, weights_options
from npusim.errors import Error
from npusim.ir.graph import Graph
from npusim.ir.module import Module


@click.command("export-onnx", cls=Verb)
@click.argument("graph", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Default: GRAPH's name with .onnx."
)
@weights_options("-w", "--weights")
@click.option("--graph-only", is_flag=True, help="Leave weights out: they become inputs.")
@click.option("--opset", type=int, help="Version of ONNX's operators, 18 or newer; default 23.")
@click.option(
    "--external/--inline",
    default=None,
    help="Weights in a file beside the model, or inside; default: beside when over 1 GiB.",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    metavar="NAME",
    help="A method of a module; default: every one that has a form in ONNX.",
)
def export_onnx(
    graph: Path,
    output: Path | None,
    weights: Weights,
    graph_only: bool,
    opset: int | None,
    external: bool | None,
    methods: tuple[str, ...],
) -> Answer:
    """Turn a graph into an ONNX model, for Netron and other tools."""
    for package in ("onnx", "torch"):
        if importlib.util.find_spec(package) is None:
            raise Error(
                f"Exporting to ONNX needs the package {package}.", hint="pip install 'npusim[onnx]'"
            )
    from npusim.exporters.onnx import DEFAULT_OPSET
    from npusim.exporters.onnx import export_onnx as export

    with progress("Exporting") as report:
        report("reading the graph")
        ir = open_ir(graph)
        report("translating")
        written = export(
            ir,
            output or beside(graph, ".onnx"),
            weights,
            opset=DEFAULT_OPSET if opset is None else opset,
            external=external,
            graph_only=graph_only,
            methods=methods or None,
        )
    sizes = {str(path): path.stat().st_size for path in written}
    lines = [f"{path}: {amount(size)}" for path, size in sizes.items()]
    left = _left_out(ir, written) if not methods else []
    lines += [f"{name}: no form in ONNX (--method {name} says why)" for name in left]
    data = {"files": [{"path": p, "bytes": s} for p, s in sizes.items()], "left_out": left}
    return Answer(data, lines)


def _left_out(ir: Graph | Module, written: Sequence[Path]) -> list[str]:
    """Returns the methods that no file was written for."""
    names = {path.stem.rpartition(".")[2] for path in written}
    return [] if isinstance(ir, Graph) else [name for name in ir.methods if name not in names]
