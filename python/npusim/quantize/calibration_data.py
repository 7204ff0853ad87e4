"""Calibration data: arrays by the names of a graph's inputs, as calls of the graph.

Owns what data may look like, and every refusal of data that does not. An array has its samples
along a new first dimension, or along the graph's own first one.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.typing import NDArray

from npusim.errors import Error, ShapeError
from npusim.ir.graph import Graph, Value
from npusim.ir.symbolic import bounds, is_symbolic, lower, upper

Array = NDArray[Any]
Data: TypeAlias = Union["str | os.PathLike[str]", Mapping[str, Any], Sequence[Mapping[str, Any]]]

_ROWS = 32  # of a batch that calls choose, at most


class CalibrationData:
    """Calls of a graph: each has an array for every input. Iterating gives them, in order.

    Args:
        graph: whose inputs they are.
        data: the path of an `.npz` archive, or arrays by name, which hold samples along their first
            dimension; or a sequence of calls, each with arrays by name in the inputs' own shapes.

    Raises:
        ShapeError: a name, shape or dtype that is not the graph's, or no sample.
        Error: the file cannot be read, or numbers are NaN or infinite.
    """

    def __init__(self, graph: Graph, data: Data) -> None:
        self._inputs = graph.inputs
        if not graph.inputs:
            raise ShapeError("The graph has no inputs: there is nothing to calibrate it with.")
        if isinstance(data, (str, os.PathLike)):
            data = _archive(Path(data))
        if isinstance(data, Mapping):
            self._calls = self._split(self._arrays(data))
        else:
            self._calls = [self._whole(self._arrays(call)) for call in data]
        if not self._calls:
            raise ShapeError("The calibration data is empty.", hint="Give some tens of samples.")
        for call in self._calls:
            self._check_sizes(call)

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[tuple[Array, ...]]:
        return iter(self._calls)

    def _arrays(self, data: Mapping[str, Any]) -> dict[str, Array]:
        if not isinstance(data, Mapping):
            raise ShapeError(
                f"A call of calibration data is a {type(data).__name__}.",
                hint="Give arrays by the names of the graph's inputs.",
            )
        wanted = [value.name for value in self._inputs]
        missing, unknown = sorted(set(wanted) - set(data)), sorted(set(data) - set(wanted))
        if missing or unknown:
            found = [f"missing: {', '.join(missing)}"] if missing else []
            found += [f"unknown: {', '.join(map(str, unknown))}"] if unknown else []
            raise ShapeError(
                f"The calibration data does not have the graph's inputs ({'; '.join(found)}).",
                hint=f"Inputs: {', '.join(f'{v.name} ({v.type})' for v in self._inputs)}.",
            )
        return {value.name: _checked(value, data[value.name]) for value in self._inputs}

    def _whole(self, arrays: Mapping[str, Array]) -> tuple[Array, ...]:
        for value in self._inputs:
            if arrays[value.name].ndim != value.type.rank:
                raise _misshapen(value, arrays[value.name])
        return tuple(arrays[value.name] for value in self._inputs)

    def _split(self, arrays: Mapping[str, Array]) -> list[tuple[Array, ...]]:
        parts = [_calls(value, arrays[value.name]) for value in self._inputs]
        counts = [len(part) for part in parts]
        if len(set(counts)) != 1:
            shown = ", ".join(f"{v.name} {n}" for v, n in zip(self._inputs, counts, strict=True))
            raise ShapeError(
                f"The inputs of the calibration data have different numbers of samples: {shown}."
            )
        return list(zip(*parts, strict=True))

    def _check_sizes(self, call: tuple[Array, ...]) -> None:
        """Refuses a call whose shapes the inputs do not take, where no name says another size."""
        sizes: dict[str, int] = {}
        for value, array in zip(self._inputs, call, strict=True):
            fits = _within(value.type.shape, array.shape)
            for own, given in zip(value.type.shape, array.shape, strict=True):
                fits &= not is_symbolic(own) or sizes.setdefault(str(own), given) == given
            if not fits:
                raise _misshapen(value, array)


def _archive(path: Path) -> dict[str, Array]:
    try:
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            raise Error(
                f"{path} is one array.", hint="Calibration data is an .npz of arrays by name."
            )
        with found as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise Error(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise Error(f"{path} is no .npz archive of numbers.") from error


def _checked(value: Value, given: Any) -> Array:
    array = np.asarray(given)
    if array.dtype.name != value.type.dtype:
        raise ShapeError(
            f"The calibration data of '{value.name}' is of {array.dtype.name}, expected "
            f"{value.type.dtype}.",
            hint=f"Convert it: data['{value.name}'].astype('{value.type.dtype}').",
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        bad = int(np.flatnonzero(~np.isfinite(array))[0])
        raise Error(
            f"The calibration data of '{value.name}' holds NaN or infinities (element {bad} is "
            f"{array.reshape(-1)[bad]}), from which no range follows."
        )
    return array


def _calls(value: Value, array: Array) -> list[Array]:
    """Returns what each call takes of an array of samples."""
    shape = value.type.shape
    if array.ndim == len(shape) + 1 and _within(shape, array.shape[1:]):
        return list(array)
    if array.ndim != len(shape) or not shape or not _within(shape[1:], array.shape[1:]):
        raise _misshapen(value, array)
    rows = len(array)
    if not is_symbolic(shape[0]):
        if rows % shape[0] if shape[0] else rows:
            raise ShapeError(
                f"The calibration data of '{value.name}' has {rows} rows, and calls take "
                f"{shape[0]} at once.",
                hint=f"Give a multiple of {shape[0]}.",
            )
        return list(array.reshape(-1, *shape[:1], *array.shape[1:])) if shape[0] else []
    step = max(1, min(_ROWS, upper(shape[0])))
    cuts = list(range(0, rows, step))
    if len(cuts) > 1 and rows - cuts[-1] < lower(shape[0]):
        cuts.pop()  # the rest joins the call before it, where that may be so large
    return [array[a:b] for a, b in zip(cuts, [*cuts[1:], rows], strict=True)]


def _within(own: Sequence[int], given: Sequence[int]) -> bool:
    """Tells whether each size is one that the graph takes there."""
    pairs = zip(map(bounds, own), given, strict=True)
    return all(low <= size <= high for (low, high), size in pairs)


def _misshapen(value: Value, array: Array) -> ShapeError:
    rest = "".join(f", {n}" for n in value.type.shape)
    own = ", ".join(map(str, value.type.shape))
    return ShapeError(
        f"The calibration data of '{value.name}' has shape {list(array.shape)}; the graph takes "
        f"[{own}].",
        hint=f"Samples lie along the first dimension: [samples{rest}], or several times [{own}].",
    )
