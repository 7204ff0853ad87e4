"""The weights that PyTorch reads, from the same checkpoints that native programs take.

Owns finding a graph's weights in a checkpoint as torch tensors on the CPU. Files are mapped, so
what native programs map as well lies in memory once. Imports torch; only the executor imports this
file, and only for a plan that needs PyTorch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npusim import _runtime
from npusim.errors import Error, ProgramFormatError, WeightMismatchError, first_line
from npusim.ir.graph import Weight
from npusim.runtime.checkpoint import Checkpoint
from npusim.runtime.host import is_torch
from npusim.runtime.safetensors_files import safetensors_files
from npusim.runtime.weights import PICKLES, WeightSource, plain_weight, read_state_dict

_Reader = Callable[[str], Any]


def host_tensors(
    source: WeightSource | None, weights: Iterable[Weight], copy: bool = False
) -> dict[str, Tensor]:
    """Returns weights as tensors, by their names in the graph.

    A float tensor of another float dtype than the graph's is converted once.

    Args:
        source: as `npusim.load_weights` takes it.
        weights: those to find.
        copy: use none where it lies.

    Raises:
        WeightMismatchError: tensors are missing or do not fit; all are listed at once.
        ProgramFormatError: a `.safetensors` file is malformed.
        Error: a file cannot be read, or the safetensors package is missing.
    """
    wanted = list(weights)
    if not wanted:
        return {}
    checkpoint = source if isinstance(source, Checkpoint) else Checkpoint(source or {})
    readers = _readers(checkpoint.source)
    found: dict[str, Tensor] = {}
    problems, missing = [], list[str]()
    for weight in wanted:
        names = map(checkpoint.name_of, (weight.key, *weight.aliases))
        key = next((name for name in names if name in readers), None)
        if key is None:
            problems.append(f"{weight.key}, {weight.type}, is missing")
            missing.append(weight.key)
            continue
        tensor = _tensor(key, readers[key](key))
        if tensor.dtype is torch.float8_e4m3fn and weight.type.dtype == "uint8":
            tensor = tensor.view(torch.uint8)  # by its bits, as native programs read it
        problem = _misfit(tensor, weight)
        if problem:
            problems.append(f"{key} {problem}")
        else:
            dtype = getattr(torch, weight.type.dtype)
            found[weight.name] = tensor.to(dtype, copy=copy)
    if problems:
        raise WeightMismatchError(
            "The checkpoint does not fit: " + "; ".join(problems) + ".",
            hint=_runtime.renaming_hint(missing, list(readers)),
        )
    return found


def _misfit(tensor: Tensor, weight: Weight) -> str:
    shape, dtype = tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    if shape != weight.type.shape:
        return f"has shape {list(shape)}, expected {list(weight.type.shape)}"
    wanted = getattr(torch, weight.type.dtype)
    if dtype != weight.type.dtype and not (wanted.is_floating_point and tensor.is_floating_point()):
        return f"has dtype {dtype}, expected {weight.type.dtype}"
    return ""


def _tensor(key: str, value: Any) -> Tensor:
    value = plain_weight(key, value)
    if not is_torch(value):
        array = np.asarray(value)
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    tensor: Tensor = value.cpu()
    return tensor


def _readers(source: str | os.PathLike[str] | Mapping[str, Any]) -> Mapping[str, _Reader]:
    """Returns, by key, what gives the tensor under it."""
    if isinstance(source, Mapping):
        return dict.fromkeys(source, lambda key: source[key])
    path = Path(source)
    if path.suffix in PICKLES:
        state = read_state_dict(path)
        return dict.fromkeys(state, lambda key: state[key])
    readers: dict[str, _Reader] = {}
    for file in safetensors_files(path):
        opened = _open(file)
        readers.update(dict.fromkeys(opened.keys(), opened.get_tensor))
    return readers


def _open(path: Path) -> Any:
    try:
        from safetensors import safe_open
    except ImportError:
        raise Error(
            "Weights that PyTorch reads need the safetensors package.",
            hint="pip install 'npusim[torch]'",
        ) from None
    try:
        return safe_open(path, framework="pt")
    except OSError as error:
        raise Error(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # SafetensorError, which is no public base of anything
        raise ProgramFormatError(f"{path}: {first_line(error)}") from error
