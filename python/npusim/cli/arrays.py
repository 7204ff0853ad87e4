"""Arrays on disk: `--input` files in, outputs out, both as `.npy`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from npusim.cli.artifact import readable
from npusim.errors import Error, ShapeError
from npusim.files import make_folder, write_atomic
from npusim.program.program import TensorSpec

INPUT_HELP = "NAME=FILE.npy, or FILE.npy for the next input in order. Repeat it for every input."


def read_inputs(items: Sequence[str], specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """Reads `--input` items into arrays by input name.

    Raises:
        ShapeError: a name the program does not have, given twice, or left without a value.
        Error: a file is missing or is not a .npy file.
    """
    files: dict[str, str] = {}
    unnamed: list[str] = []
    for item in items:
        name, equals, file = item.partition("=")
        if not equals or Path(item).exists():  # a file may have a '=' in its name
            unnamed.append(item)
        elif name in files:
            raise ShapeError(f"Input '{name}' is given twice.")
        elif name not in {spec.name for spec in specs}:
            raise ShapeError(f"The program has no input '{name}'.", hint=_known(specs))
        else:
            files[name] = file
    free = [spec.name for spec in specs if spec.name not in files]
    if len(unnamed) != len(free):
        raise ShapeError(
            f"The program takes {_count(len(specs))}, {len(items)} given.", hint=_known(specs)
        )
    files.update(zip(free, unnamed, strict=True))
    return {spec.name: _read(Path(files[spec.name])) for spec in specs}


def write_outputs(folder: Path, outputs: Mapping[str, np.ndarray]) -> list[Path]:
    """Writes every output to `folder`/NAME.npy and returns the paths.

    Raises:
        Error: the folder cannot be made or written, or an output's name, which comes from the
            program's file, would lead out of it.
    """
    for name in outputs:
        if Path(name).name != name:
            raise Error(f"The output name '{name}' is not a file name: nothing was written.")
    make_folder(folder)
    paths = []
    for name, array in outputs.items():
        image = io.BytesIO()
        np.save(image, array, allow_pickle=False)
        paths.append(folder / f"{name}.npy")
        write_atomic(paths[-1], image.getbuffer())
    return paths


def _read(path: Path) -> np.ndarray:
    try:
        array = np.load(readable(path), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise Error(f"{path} is not a .npy file of numbers.") from error
    if not isinstance(array, np.ndarray):
        raise Error(f"{path} is an archive (.npz), not a .npy file.")
    return array


def _known(specs: Sequence[TensorSpec]) -> str:
    shown = ", ".join(f"{s.name} ({s.dtype}{list(s.shape)})" for s in specs)
    return f"Inputs: {shown}."


def _count(number: int) -> str:
    return "1 input" if number == 1 else f"{number} inputs"
