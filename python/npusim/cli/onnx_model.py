"""An ONNX model where a verb takes a graph: imported in memory, its weights written where a program
needs them beside it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from npusim.cli.answer import amount
from npusim.cli.artifact import readable
from npusim.errors import Error, ExportError
from npusim.files import kind_of
from npusim.ir.graph import Graph
from npusim.ir.module import Module, load_ir

if TYPE_CHECKING:
    from npusim.frontends.onnx.importer import Imported

# Of verbs that make programs, which hold no weights.
weights_of_onnx_option = click.option(
    "--weights",
    "weights_out",
    type=click.Path(path_type=Path),
    help="Of an ONNX model: write its weights here as safetensors.",
)


def is_onnx(path: Path) -> bool:
    """Tells whether a file is an ONNX model: by its first bytes, or by its name if they are odd."""
    with readable(path).open("rb") as file:
        kind = kind_of(file.read(64))
    return kind == "an ONNX model" or (kind in ("other data", "text") and path.suffix == ".onnx")


def imported(path: Path, **options: Any) -> Imported:
    """Imports an ONNX model; `options` are those of `from_onnx`.

    Raises:
        Error: a package is missing, or the model cannot be imported.
    """
    for package in ("onnx", "torch"):
        if importlib.util.find_spec(package) is None:
            raise Error(
                f"Importing ONNX models needs the package {package}.",
                hint="pip install 'npusim[onnx]'",
            )
    from npusim.frontends.onnx import from_onnx

    return from_onnx(readable(path), **options)


def as_it_is(path: Path) -> Imported:
    """Imports an ONNX model for a verb without options for that; errors as `imported`."""
    try:
        return imported(path)
    except ExportError as error:
        if "--shape" not in error.hint:
            raise
        raise ExportError(
            f"{error} Those are options of `npusim import {path} -o {path.with_suffix('.json')}`."
        ) from None


def save_imported(weights: Any, path: Path) -> int:
    """Writes imported weights as safetensors; returns the bytes written."""
    from npusim.runtime.safetensors_files import save_safetensors

    return save_safetensors(weights, path)


def open_model(path: Path) -> Graph | Module:
    """Loads a graph or a module from its file, or from an ONNX model."""
    return as_it_is(path).graph if is_onnx(path) else load_ir(readable(path))


def open_to_compile(
    path: Path, weights: Path | None, verb: str
) -> tuple[Graph | Module, list[str]]:
    """Loads what a verb makes a program of, and writes an ONNX model's weights.

    Returns:
        The graph or module, and the lines that tell what was written.

    Raises:
        Error: `weights` is not given for an ONNX model that has some, or given for a graph.
    """
    if not is_onnx(path):
        if weights is not None:
            raise Error(
                f"{path} is a graph, and holds no weights to write.",
                hint="Leave --weights out; `run` takes them.",
            )
        return load_ir(readable(path)), []
    found = as_it_is(path)
    if weights is None:
        if found.graph.weights:
            raise Error(
                f"{path} is an ONNX model, whose weights a program does not hold.",
                hint="Name a file for them: "
                f"npusim {verb} {path} --weights {path.with_suffix('.safetensors')}",
            )
        return found.graph, []
    return found.graph, [f"{weights}: {amount(save_imported(found.weights, weights))}"]
