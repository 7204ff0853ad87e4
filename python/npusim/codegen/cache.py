"""Compiled kernels on disk, so that compiling a model again, or one like it, compiles no kernel.

Owns the key: source, options and the compiler's version. The folder is also the runtime's
(`cpp/cuda/kernel_cache.cpp`). Entries are never wrong, so nothing ever needs to be cleared but for
room; a folder that cannot be written is no error.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from npusim.errors import Error
from npusim.files import write_atomic

_DIGEST = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class KernelCache:
    """The compiled kernels of one kind of device.

    Attributes:
        name: the folder beside those of other kinds, such as "cuda".
        magic: how device code begins.
    """

    name: str
    magic: bytes

    def folder(self) -> Path:
        """Returns the folder of compiled kernels; it may not exist yet."""
        chosen = os.environ.get("NPUSIM_CACHE_DIR")
        if chosen:
            return Path(chosen) / self.name
        base = os.environ.get("XDG_CACHE_HOME")
        return (Path(base) if base else Path.home() / ".cache") / "npusim" / self.name

    def read(self, key: str) -> bytes | None:
        """Returns stored device code, or None; a damaged entry counts as none."""
        try:
            data = (self.folder() / key[:2] / key).read_bytes()
        except OSError:
            return None
        digest, code = data[:_DIGEST], data[_DIGEST:]
        whole = code.startswith(self.magic) and hashlib.sha256(code).digest() == digest
        return code if whole else None

    def write(self, key: str, code: bytes) -> None:
        """Stores device code."""
        path = self.folder() / key[:2] / key
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, hashlib.sha256(code).digest() + code)
        except (Error, OSError):
            return  # a read-only home: the kernel is compiled again next time


def key(source: str, options: Sequence[str], version: tuple[int, int]) -> str:
    """Returns the name of an entry."""
    text = "\0".join((f"{version[0]}.{version[1]}", *options, source))
    return hashlib.sha256(text.encode()).hexdigest()
