"""Finding checkpoints and handing their tensors to the runtime.

Owns which forms of checkpoint are accepted. Matching names, checking shapes and preparing weights
is the runtime's; `.safetensors` files are read there too, `.pt` files need PyTorch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from npusim import _runtime
from npusim.errors import Error, ShapeError, WeightMismatchError
from npusim.files import written_beside
from npusim.runtime.checkpoint import Checkpoint
from npusim.runtime.gguf import SUFFIX as GGUF
from npusim.runtime.gguf import GgufCheckpoint
from npusim.runtime.host import dtype_of, is_torch
from npusim.runtime.native import ProgramLike, native_device, native_program
from npusim.runtime.pickling import origin, remember
from npusim.runtime.plain_tensors import plain

if TYPE_CHECKING:
    from torch import nn

logger = logging.getLogger(__name__)

Weights = _runtime.Weights
"""The weights of a program on a device; may serve several executors at once."""

Progress: TypeAlias = "Callable[[str, int, int], object]"
WeightSource: TypeAlias = "str | os.PathLike[str] | Mapping[str, Any] | nn.Module | Checkpoint"

# name -> dtype, shape, address of dense elements, and the object that owns them
_HeldTensor: TypeAlias = "tuple[str, tuple[int, ...], int, object]"

PICKLES = {".pt", ".pth", ".bin"}


def load_weights(
    source: WeightSource | None,
    program: ProgramLike,
    device: _runtime.Device,
    *,
    check_nan: bool = False,
    copy: bool = False,
    progress: Progress | None = None,
) -> Weights:
    """Loads a checkpoint for a program onto a device, and runs the program's weight recipe.

    Float tensors of another float dtype than the program's are converted once. Tensors the program
    does not use are listed in `extra` of the result.

    Safetensors are mapped into memory, and what needs no preparation is used where it lies: loading
    takes no time, and processes share the memory. Whoever changes such a file in place changes the
    weights. That is noticed: at once where the file is cut short, else when an executor or a
    session first uses the weights and by calls at most a second later; it raises Error. Replace
    files by renaming, or copy. Tensors of a mapping are used where they lie as well.

    Args:
        source: a `.safetensors` file, a `*.safetensors.index.json`, a folder that holds either, a
            `.pt`/`.pth`/`.bin` state dict (read with `weights_only=True`), a `.gguf` file, a
            mapping from names to torch or NumPy tensors, or the PyTorch model itself, which also
            has what its `state_dict()` leaves out (buffers that are not persistent, tensors that
            are plain attributes); a `Checkpoint` of one of these gives its tensors other names.
            Or a file of `pack_weights`, which is mapped as it is; where that is for another device
            or program, the weights are prepared anew from the checkpoint it names, and the log
            says so. None for a program without weights.
        program: a CompiledProgram or the path of one.
        device: where they go.
        check_nan: refuse NaN. Infinities have uses, in masks for one.
        copy: use nothing where it lies: neither the file nor the tensors matter after loading.
        progress: called as ("weights", done, total), in bytes of weights, whenever one is ready.

    Raises:
        WeightMismatchError: tensors are missing or do not fit; all are listed at once.
        ProgramFormatError: a `.safetensors` file is malformed.
        Error: a file cannot be read, or was changed while it was.
    """
    native, device = native_program(program), native_device(device)
    checkpoint = (
        source if isinstance(source, Checkpoint) else Checkpoint({} if source is None else source)
    )
    path, names = checkpoint.source, checkpoint.names
    told = None if progress is None else partial(progress, "weights")
    if isinstance(path, Mapping):
        weights = _from_tensors(path, native, device, check_nan, copy, names, told)
        _log(weights, native, "tensors in memory")
        return remember(weights, native, device, None, check_nan, copy)
    if not isinstance(path, (str, os.PathLike)):
        raise Error(
            "Weights are a path, a model or a mapping from names to tensors, "
            f"not a {type(path).__name__}."
        )
    path = Path(path)
    if path.suffix in PICKLES or path.suffix == GGUF:
        held = GgufCheckpoint(path) if path.suffix == GGUF else read_state_dict(path)
        weights = _from_tensors(held, native, device, check_nan, copy, names, told)
    else:
        weights = Weights.from_file(native, device, path, check_nan, copy, names, told)
    if weights.note:
        logger.warning("%s", weights.note)
    _log(weights, native, str(path))
    found = Checkpoint(str(path.absolute()), checkpoint.rename)
    return remember(weights, native, device, found, check_nan, copy)


def pack_weights(weights: Weights, path: str | os.PathLike[str]) -> None:
    """Writes weights as a program's preparation left them; `load_weights` maps such a file.

    Loading it takes no time but for what is touched, and processes share the memory. It serves
    programs with the same preparation, on devices of the same kind and instruction set, in this
    build of npusim; it is a checkpoint of its own, and does not follow the one it was made of.

    Args:
        weights: of `load_weights`.
        path: what is written, such as `model.npuw`; whole or not at all.

    Raises:
        Error: the file cannot be written, or the checkpoint was changed in place meanwhile.
    """
    checkpoint, checked = origin(weights)
    source = None if checkpoint is None else Path(str(checkpoint.source))
    if source is not None and source.suffix in {*PICKLES, GGUF}:
        source = None  # the runtime itself could not read it again
    names = [] if checkpoint is None else checkpoint.names
    with written_beside(path) as temporary:
        weights.pack(temporary, source, names, checked)


def _from_tensors(
    source: Mapping[str, Any],
    program: _runtime.Program,
    device: _runtime.Device,
    check_nan: bool,
    copy: bool,
    names: list[tuple[str, str]],
    progress: Callable[[int, int], object] | None,
) -> Weights:
    tensors = {name: _held(name, tensor) for name, tensor in source.items() if _is_tensor(tensor)}
    return Weights.from_memory(program, device, tensors, check_nan, copy, names, progress)


def _log(weights: Weights, program: _runtime.Program, source: str) -> None:
    how = "some used where they lie" if weights.in_place else "none used where it lies"
    logger.info(
        "%d weights from %s, %s; %d bytes prepared; %d tensors not used",
        *(len(program.weights), source, how, program.persistent_bytes, len(weights.extra)),
    )


def read_state_dict(path: Path) -> Mapping[str, Any]:
    """Reads a file of torch.save, mapped into memory, without running code; needs PyTorch."""
    try:
        import torch
    except ImportError:
        raise Error(
            f"{path}: this form of checkpoint needs PyTorch.",
            hint="Install npusim[torch], or convert the file to .safetensors.",
        ) from None
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except OSError as error:
        raise Error(f"{path}: {error.strerror or error}.") from error
    except Exception as error:  # a damaged archive raises whatever its parser meets
        raise WeightMismatchError(
            f"{path} is not a state dict that PyTorch can read safely ({type(error).__name__}).",
            hint="Save it again with torch.save(model.state_dict(), path).",
        ) from error
    if not isinstance(state, Mapping):
        raise WeightMismatchError(f"{path} holds a {type(state).__name__}, not a state dict.")
    return state


def _is_tensor(value: object) -> bool:
    return isinstance(value, (np.ndarray, np.generic)) or is_torch(value)


def plain_weight(name: str, tensor: Any) -> Any:
    """Returns a tensor whose bits are its values; WeightMismatchError for one without any."""
    try:
        return plain(tensor, name)
    except ShapeError as error:
        raise WeightMismatchError(f"weight {error}") from None


def _held(name: str, tensor: Any) -> _HeldTensor:
    tensor = plain_weight(name, tensor)
    if is_torch(tensor):
        tensor = tensor.cpu().contiguous()
        if str(tensor.dtype) == "torch.float8_e4m3fn":  # by its bits, as files are read
            import torch

            tensor = tensor.view(torch.uint8)
        return dtype_of(tensor), tuple(tensor.shape), tensor.data_ptr(), tensor
    array = np.asarray(tensor)
    # ascontiguousarray would make a scalar one-dimensional.
    array = np.array(array, array.dtype.newbyteorder("="), order="C", copy=None)
    return dtype_of(array), array.shape, array.ctypes.data, array
