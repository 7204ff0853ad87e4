"""Checkpoints of safetensors: which files one is made of, and writing one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.errors import Error, ProgramFormatError
from npusim.files import write_parts

_NAMES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def safetensors_files(path: Path) -> list[Path]:
    """Returns the safetensors files of a checkpoint: a file, an index, or a folder of either."""
    if path.is_dir():
        names = ("model.safetensors.index.json", "model.safetensors")
        known = [path / name for name in names if (path / name).exists()]
        found = known[:1] or sorted(path.glob("*.safetensors"))
        if len(found) != 1:
            raise Error(f"Cannot read {path}: the folder has no or several .safetensors files.")
        path = found[0]
    if path.suffix != ".json":
        return [path]
    try:
        shards = sorted(set(json.loads(path.read_bytes())["weight_map"].values()))
        if all(Path(shard).name == shard for shard in shards):
            return [path.parent / shard for shard in shards]
    except OSError as error:
        raise Error(f"Cannot read {path}: {error.strerror or error}.") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    raise ProgramFormatError(f"{path} is not an index of safetensors files.")


def save_safetensors(weights: Mapping[str, NDArray[Any]], path: str | Path) -> int:
    """Writes arrays by name and returns the bytes written; mapped ones are read as they go.

    Raises:
        Error: the file cannot be written.
    """
    header: dict[str, object] = {}
    end = 0
    for name, array in weights.items():
        start, end = end, end + array.nbytes
        entry = {"dtype": _NAMES[array.dtype.name], "shape": list(array.shape)}
        header[name] = {**entry, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def parts() -> Iterator[bytes | memoryview]:
        yield len(text).to_bytes(8, "little") + text
        for array in weights.values():
            yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    write_parts(path, parts())
    return 8 + len(text) + end
