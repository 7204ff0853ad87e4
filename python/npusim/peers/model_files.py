"""What the runtimes load: the user's ONNX file as it is, or a graph that is translated for them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from npusim.errors import Error
from npusim.files import printable_path
from npusim.ir.graph import Graph
from npusim.ir.module import Module, load_ir
from npusim.ir.specialize import at_shapes


def write_models(
    model: Path,
    weights: Any,
    shapes: Sequence[Sequence[int]],
    forms: Collection[str],
    folder: Path,
) -> dict[str, Path]:
    """Returns the file that each form of runtime loads.

    Args:
        model: `.onnx`, taken as it is; or a graph (JSON).
        weights: as `npusim.load_weights` takes them; of a graph.
        shapes: of the inputs; a graph's symbolic sizes become these.
        forms: "onnx" and "torch", those that are wanted.
        folder: where files are written.

    Raises:
        UnsupportedOpError: operators have no form in ONNX.
        Error: PyTorch is asked to run an `.onnx`, or the file holds no graph, or several methods.
    """
    if model.suffix == ".onnx":
        if "torch" in forms:
            raise Error(
                f"PyTorch does not run {printable_path(model)}.",
                hint="Give the graph that `npusim extract` or `npusim import` wrote (--model).",
            )
        return {"onnx": model.absolute()}
    ir = load_ir(model)
    if isinstance(ir, Module):
        raise Error(
            f"{printable_path(model)} has several methods: {', '.join(ir.methods)}.",
            hint="Language models are timed with `npusim bench --llm`.",
        )
    if len(ir.inputs) != len(shapes):
        raise Error(
            f"{printable_path(model)} takes {len(ir.inputs)} inputs, the program {len(shapes)}.",
            hint="--model is what the program was compiled from.",
        )
    graph = at_shapes(ir, shapes)
    return {form: _write(graph, weights, form, folder) for form in forms}


def _write(graph: Graph, weights: Any, form: str, folder: Path) -> Path:
    if form == "torch":
        path = folder / "graph.json"
        graph.save(path)
        return path
    from npusim.exporters.onnx import export_onnx

    return export_onnx(graph, folder / "model.onnx", weights)[0]
