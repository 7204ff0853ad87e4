"""Writing a model's initialisers as a `.safetensors` file, one after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from npusim.files import write_parts
from npusim.frontends.onnx.kinds import Array

_NAMES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64",
    "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def save_weights(weights: Mapping[str, Array], path: str | Path) -> int:
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
