"""GGUF files as named arrays: a block's fields each by itself.

A tensor of a GGUF file is rows of floats, or rows of blocks: a few numbers, and codes that they
scale. Under a tensor's name stand its floats; of blocks, `<name>.<field>` holds a field of all
blocks, [rows, blocks of a row] or [rows, blocks of a row, size].

The layouts of blocks are those of ggml (github.com/ggml-org/ggml, ggml-common.h). The package
`gguf` reads the file's header.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from npusim.errors import Error, ProgramFormatError, first_line

SUFFIX = ".gguf"

# Type of blocks -> (elements of a block, its fields: name, dtype, size; 1: one number).
BLOCKS: dict[str, tuple[int, tuple[tuple[str, str, int], ...]]] = {
    "Q4_0": (32, (("d", "<f2", 1), ("qs", "u1", 16))),
    "Q4_1": (32, (("d", "<f2", 1), ("m", "<f2", 1), ("qs", "u1", 16))),
    "Q5_0": (32, (("d", "<f2", 1), ("qh", "u1", 4), ("qs", "u1", 16))),
    "Q5_1": (32, (("d", "<f2", 1), ("m", "<f2", 1), ("qh", "u1", 4), ("qs", "u1", 16))),
    "Q8_0": (32, (("d", "<f2", 1), ("qs", "i1", 32))),
    "Q2_K": (256, (("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2", 1), ("dmin", "<f2", 1))),
    "Q3_K": (256, (("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2", 1))),
    "Q4_K": (256, (("d", "<f2", 1), ("dmin", "<f2", 1), ("scales", "u1", 12), ("qs", "u1", 128))),
    "Q5_K": (
        256,
        (
            *(("d", "<f2", 1), ("dmin", "<f2", 1), ("scales", "u1", 12)),
            *(("qh", "u1", 32), ("qs", "u1", 128)),
        ),
    ),
    "Q6_K": (256, (("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2", 1))),
}
FLOATS = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}  # bfloat16 by its bits


@dataclass(frozen=True)
class GgufTensor:
    """A tensor of a file.

    Attributes:
        kind: a key of `FLOATS` or `BLOCKS`, or what is neither.
        shape: as PyTorch has it, the longest strides first.
        data: its bytes, mapped.
    """

    kind: str
    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]

    def fields(self) -> dict[str, npt.NDArray[Any]]:
        """Returns views of the fields of its blocks, or "" and its floats.

        Raises:
            ProgramFormatError: its type is not read, or its bytes are not what its shape asks for.
        """
        if self.kind in FLOATS:
            return {"": self._bytes(FLOATS[self.kind], self.shape)}
        if self.kind not in BLOCKS:
            raise ProgramFormatError(
                f"Tensors of the type {self.kind} are not read.",
                hint=f"Read are {', '.join((*FLOATS, *BLOCKS))}.",
            )
        size, fields = BLOCKS[self.kind]
        if not self.shape or self.shape[-1] % size:
            raise ProgramFormatError(
                f"Rows of {list(self.shape)} are no whole blocks of {size} ({self.kind})."
            )
        block = np.dtype([(name, kind, () if n == 1 else (n,)) for name, kind, n in fields])
        blocks = self._bytes(block, (*self.shape[:-1], self.shape[-1] // size))
        return {f".{name}": blocks[name] for name, _, _ in fields}

    def _bytes(self, dtype: Any, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        flat = self.data.reshape(-1).view(np.uint8)
        wanted = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if flat.nbytes != wanted:
            raise ProgramFormatError(
                f"A tensor {list(self.shape)} of {self.kind} has {flat.nbytes} bytes, not {wanted}."
            )
        return flat.view(dtype).reshape(shape)


def gguf_tensors(path: str | os.PathLike[str]) -> dict[str, GgufTensor]:
    """Returns the tensors of a file by their names; nothing but the header is read.

    Raises:
        ProgramFormatError: it is no GGUF file, or it is damaged.
        Error: it cannot be read, or the package `gguf` is missing.
    """
    with _reading(path) as reader:
        return {
            tensor.name: GgufTensor(
                tensor.tensor_type.name,
                tuple(int(size) for size in reversed(tensor.shape.tolist())),
                tensor.data,
            )
            for tensor in reader.tensors
        }


def gguf_chat_template(path: str | os.PathLike[str]) -> tuple[str | None, dict[str, str]]:
    """Returns the chat template in a file, and the tokens it may name (`bos_token`, `eos_token`).

    Raises:
        ProgramFormatError, Error: as `gguf_tensors`.
    """
    with _reading(path) as reader:
        values = {
            name: field.contents()
            for name, field in reader.fields.items()
            if name in ("tokenizer.chat_template", "tokenizer.ggml.tokens")
            or name in ("tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id")
        }
        tokens = values.get("tokenizer.ggml.tokens", [])
        special = {
            f"{name}_token": str(tokens[values[f"tokenizer.ggml.{name}_token_id"]])
            for name in ("bos", "eos")
            if f"tokenizer.ggml.{name}_token_id" in values
        }
        template = values.get("tokenizer.chat_template")
        return (None if template is None else str(template)), special


def gguf_settings(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the settings of the file's architecture, by their keys without its name.

    Raises:
        ProgramFormatError, Error: as `gguf_tensors`.
    """
    with _reading(path) as reader:
        named = reader.fields.get("general.architecture")
        start = f"{named.contents() if named else ''}."
        return {
            name.removeprefix(start): field.contents()
            for name, field in reader.fields.items()
            if name.startswith(start)
        }


def gguf_context(path: str | os.PathLike[str]) -> int | None:
    """Returns how many tokens the model of a file knows positions for; None: it does not say.

    Raises:
        ProgramFormatError, Error: as `gguf_tensors`.
    """
    with _reading(path) as reader:
        found = (f for name, f in reader.fields.items() if name.endswith(".context_length"))
        field = next(found, None)
        return None if field is None else int(field.contents())


@contextmanager
def _reading(path: str | os.PathLike[str]) -> Iterator[Any]:
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise Error(
            f"{path}: this form of checkpoint needs the package gguf.",
            hint="pip install 'npusim[gguf]'",
        ) from None
    try:
        file = Path(path).resolve()
        status = file.stat()
        yield _reader(file, status.st_ino, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise Error(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # what the package meets in a damaged file
        raise ProgramFormatError(f"{path} is no whole GGUF file: {first_line(error)}") from error


@lru_cache(maxsize=1)
def _reader(path: Path, *version: int) -> Any:
    """Returns a file's header, which holds a vocabulary: read once while the file stays."""
    from gguf import GGUFReader

    return GGUFReader(path)


class GgufCheckpoint(Mapping[str, Any]):
    """A file as a mapping from names to arrays, as `load_weights` takes it.

    Args:
        path: the file.

    Raises:
        ProgramFormatError, Error: as `gguf_tensors`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        for name, tensor in gguf_tensors(path).items():
            if tensor.kind in FLOATS or tensor.kind in BLOCKS:
                for field, array in tensor.fields().items():
                    self._arrays[name + field] = _held(tensor.kind, array)

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


def _held(kind: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Returns floats as floats: bfloat16's bits are the upper half of a float32's."""
    if kind != "BF16":
        return array
    wide: npt.NDArray[Any] = (array.astype(np.uint32) << 16).view(np.float32)
    return wide
