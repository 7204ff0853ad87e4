"""Arrays on disk: `--input` files in (`.npy`, `.npz`), outputs out as `.npy`, or told in a line."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from npusim.cli.artifact import readable
from npusim.errors import Error, ShapeError
from npusim.files import make_folder, write_atomic
from npusim.program.program import TensorSpec

INPUT_HELP = (
    "NAME=FILE.npy, or FILE.npy for the next input in order; repeat it for every input. "
    "Or FILE.npz, an archive of arrays by the inputs' names."
)


def read_inputs(items: Sequence[str], specs: Sequence[TensorSpec]) -> dict[str, np.ndarray]:
    """Reads `--input` items into arrays by input name.

    Raises:
        ShapeError: a name the program does not have, given twice, or left without a value.
        Error: a file is missing or is neither a .npy nor an .npz file.
    """
    found: dict[str, np.ndarray] = {}

    def give(name: str, array: np.ndarray) -> None:
        if name in found:
            raise ShapeError(f"Input '{name}' is given twice.")
        if name not in {spec.name for spec in specs}:
            raise ShapeError(f"The program has no input '{name}'.", hint=_known(specs))
        found[name] = array

    unnamed: list[np.ndarray] = []
    for item in items:
        name, equals, file = item.partition("=")
        named = equals and not Path(item).exists()  # a file may have a '=' in its name
        read = _read(Path(file if named else item))
        if isinstance(read, np.ndarray):
            give(name, read) if named else unnamed.append(read)
            continue
        if named:
            raise Error(
                f"{file} is an archive (.npz) of {', '.join(read)}, not one array.",
                hint=f"Give it without a name: --input {file}",
            )
        for key, array in read.items():
            give(key, array)
    free = [spec for spec in specs if spec.name not in found]
    if len(unnamed) > len(free):
        raise ShapeError(
            f"The program takes {_count(len(specs))}, {len(found) + len(unnamed)} given.",
            hint=_known(specs),
        )
    found.update({spec.name: array for spec, array in zip(free, unnamed, strict=False)})
    missing = free[len(unnamed) :]
    if missing:
        names = ", ".join(f"'{spec.name}'" for spec in missing)
        what = "Input" if len(missing) == 1 else "Inputs"
        raise ShapeError(f"{what} {names} missing: give --input NAME=FILE.", hint=_known(specs))
    return {spec.name: found[spec.name] for spec in specs}


def summary(array: np.ndarray) -> str:
    """Returns what a glance at an array tells: its values where few, their range where many."""
    if array.size == 0:
        return "empty"
    if array.size <= 8:
        return np.array2string(array, precision=5, separator=", ").replace("\n", "")
    if array.dtype == np.bool_:
        return f"{int(array.sum())} of {array.size} true"
    finite = array[np.isfinite(array)]
    if not finite.size:
        return "nothing finite"
    text = f"{finite.min():.5g} … {finite.max():.5g}, mean {finite.astype(np.float64).mean():.5g}"
    odd = array.size - finite.size
    return f"{text}; {odd} infinite or NaN" if odd else text


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


def _read(path: Path) -> np.ndarray | dict[str, np.ndarray]:
    """Returns a .npy file's array, or those of an .npz by name."""
    try:
        array = np.load(readable(path), allow_pickle=False)
        if isinstance(array, np.ndarray):
            return array
        with array as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise Error(f"{path} is no .npy or .npz file of numbers.") from error


def _known(specs: Sequence[TensorSpec]) -> str:
    shown = ", ".join(f"{s.name} ({s.dtype}{list(s.shape)})" for s in specs)
    return f"Inputs: {shown}."


def _count(number: int) -> str:
    return "1 input" if number == 1 else f"{number} inputs"
