"""Writing a model's weights as safetensors, exactly those its graph asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npusim.errors import ExportError, WeightMismatchError
from npusim.files import write_atomic
from npusim.ir.graph import Graph


def save_checkpoint(graph: Graph, model: Any, path: Path) -> int:
    """Writes every weight of `graph` from the torch module `model`; returns the bytes written.

    Tied weights are written once, under the graph's key; buffers that `state_dict()` leaves out
    are included, so that the file alone is enough to run the graph.

    Raises:
        ExportError: the model is on the meta device, or the safetensors package is missing.
        WeightMismatchError: the model lacks a tensor that the graph names.
    """
    try:
        from safetensors.torch import save
    except ModuleNotFoundError as error:
        raise ExportError(
            "Writing weights needs the safetensors package.", hint="pip install 'npusim[torch]'"
        ) from error
    image = save(_tensors(graph, model), metadata={"format": "pt"})
    write_atomic(path, image)
    return len(image)


def _tensors(graph: Graph, model: Any) -> dict[str, Any]:
    held = dict(model.named_parameters(remove_duplicate=False))
    held.update(model.named_buffers(remove_duplicate=False))
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
