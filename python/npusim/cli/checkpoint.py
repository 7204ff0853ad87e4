"""Checkpoints as torch tensors: writing exactly what a graph asks for, reading one back, and
which weights a verb computes with."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from npusim.cli.factory import Made
from npusim.cli.finite import Finite
from npusim.cli.weights import Weights
from npusim.errors import Error, ExportError, WeightMismatchError, first_line
from npusim.files import write_atomic
from npusim.ir.graph import Graph
from npusim.module_tensors import module_tensors

if TYPE_CHECKING:
    from npusim.runtime.checkpoint import Checkpoint

# Of verbs that compare a model with PyTorch.
tolerance_option = click.option(
    "--tolerance",
    type=Finite(min=0),
    help="Largest difference allowed, relative to the largest magnitude; default: by dtype.",
)


def save_checkpoint(graph: Graph, model: Any, path: Path) -> int:
    """Writes every weight of `graph` from the torch module `model`; returns the bytes written.

    Tied weights are written once, under the graph's key; buffers that `state_dict()` leaves out
    are included, so that the file alone is enough to run the graph.

    Raises:
        ExportError: the model is on the meta device, or the safetensors package is missing.
        WeightMismatchError: the model lacks a tensor that the graph names.
    """
    image: bytes = _safetensors().save(_tensors(graph, model), metadata={"format": "pt"})
    write_atomic(path, image)
    return len(image)


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Reads safetensors (a file, an index, a folder of either) or a state_dict of torch.save.

    No code of the file runs.

    Raises:
        WeightMismatchError: the file is damaged, or holds something else than named tensors.
    """
    import torch

    from npusim.runtime.safetensors_files import safetensors_files

    try:
        if path.is_dir() or path.suffix in (".safetensors", ".json"):
            state = {}
            for file in safetensors_files(path):
                state.update(_safetensors().load_file(file))
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, Error):
        raise
    except Exception as error:  # each format has its own ways to be wrong
        reason = _reason(error)
        raise WeightMismatchError(f"{path} cannot be read as a checkpoint: {reason}") from error
    if not isinstance(state, dict) or not all(torch.is_tensor(t) for t in state.values()):
        raise WeightMismatchError(f"{path} is not a state_dict: names and their tensors.")
    return state


def _reason(error: Exception) -> str:
    """Returns why a checkpoint cannot be read, without PyTorch's advice to run its code."""
    if isinstance(error, pickle.UnpicklingError):
        return "it holds something else than tensors, which would have to run code of the file."
    return first_line(error)


def weights_of(made: Made, weights: Weights) -> dict[str, Any]:
    """Returns the weights to compute with, by the model's keys: a checkpoint's, or its own.

    Raises:
        ExportError: the model or its arguments are on the meta device: there is no data.
    """
    if any(getattr(value, "is_meta", False) for value in (*made.args, *made.kwargs.values())):
        raise ExportError(
            "The example arguments are on the meta device: they have no values to compute with.",
            hint="Make them outside torch.device('meta').",
        )
    if isinstance(weights, Path):
        return read_checkpoint(weights)
    if weights is not None:
        return _by_own_keys(made.model, weights)
    state = dict(made.model.state_dict())
    if any(tensor.is_meta for tensor in state.values()):
        raise ExportError(
            "The model is on the meta device: it has no weights to compute with.",
            hint="Build it without torch.device('meta'), or pass --weights.",
        )
    return state


def _by_own_keys(model: Any, checkpoint: Checkpoint) -> dict[str, Any]:
    read = read_checkpoint(Path(str(checkpoint.source)))
    own = module_tensors(model)
    names = {key: checkpoint.name_of(key) for key, *_ in own}
    found = {key: read[name] for key, name in names.items() if name in read}
    used = {names[key] for key in found}
    return found | {name: tensor for name, tensor in read.items() if name not in used | set(found)}


def require_weights(graph: Graph, state: Mapping[str, Any]) -> None:
    """Raises WeightMismatchError when a checkpoint lacks a weight of the graph, before anything
    completes it by the model's own."""
    missing = [
        weight.key
        for weight in graph.weights
        if weight.persistent and not {weight.key, *weight.aliases} & set(state)
    ]
    if missing:
        from npusim import _runtime

        raise WeightMismatchError(
            f"The checkpoint lacks {', '.join(missing)}.",
            hint=_runtime.renaming_hint(missing, list(state)),
        )


def _safetensors() -> ModuleType:
    try:
        return importlib.import_module("safetensors.torch")
    except ModuleNotFoundError as error:
        raise ExportError(
            "Checkpoints need the safetensors package.", hint="pip install 'npusim[torch]'"
        ) from error


def _tensors(graph: Graph, model: Any) -> dict[str, Any]:
    held = {path: tensor for path, tensor, _ in module_tensors(model)}
    tensors = {}
    for weight in graph.weights:
        tensor = held.get(weight.key)
        if tensor is None:
            raise WeightMismatchError(f"The model has no tensor '{weight.key}'.")
        if tensor.is_meta:
            raise ExportError(
                f"The model is on the meta device: '{weight.key}' has no data to write.",
                hint="Build it without torch.device('meta'), or leave --weights out.",
            )
        # A copy of its own: safetensors refuses views that share storage.
        tensors[weight.key] = tensor.detach().cpu().contiguous().clone()
    return tensors
