"""Compiled kernels on disk, so that compiling a model again, or one like it, compiles no kernel.

Owns the key: source, options and the compiler's version. The folder is also the runtime's
(`cpp/cuda/kernel_cache.cpp`). Entries are never wrong, so nothing ever needs to be cleared but for
room; a folder that cannot be written is no error.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

from npusim.errors import Error
from npusim.files import write_atomic

_ELF = b"\x7fELF"
_DIGEST = hashlib.sha256().digest_size


def folder() -> Path:
    """Returns the folder of compiled kernels; it may not exist yet."""
    chosen = os.environ.get("NPUSIM_CACHE_DIR")
    if chosen:
        return Path(chosen) / "cuda"
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "npusim" / "cuda"


def key(source: str, options: Sequence[str], version: tuple[int, int]) -> str:
    """Returns the name of an entry."""
    text = "\0".join((f"{version[0]}.{version[1]}", *options, source))
    return hashlib.sha256(text.encode()).hexdigest()


def read(name: str) -> bytes | None:
    """Returns a stored cubin, or None; a damaged entry counts as none."""
    try:
        data = (folder() / name[:2] / name).read_bytes()
    except OSError:
        return None
    digest, cubin = data[:_DIGEST], data[_DIGEST:]
    whole = cubin.startswith(_ELF) and hashlib.sha256(cubin).digest() == digest
    return cubin if whole else None


def write(name: str, cubin: bytes) -> None:
    """Stores a cubin."""
    path = folder() / name[:2] / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, hashlib.sha256(cubin).digest() + cubin)
    except (Error, OSError):
        return  # a read-only home: the kernel is compiled again next time
