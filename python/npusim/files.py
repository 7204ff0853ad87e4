"""Writing files whole or not at all. Owns the one way npusim puts bytes at a path.

A reader of the path sees the old content or the new, never a part: the bytes go to a temporary
name in the same folder, reach the disk, and take the path's place in one step. Whatever happens on
the way (a full disk, Ctrl-C) removes the temporary name again.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from npusim.errors import Error


def write_atomic(path: str | os.PathLike[str], data: bytes | bytearray | memoryview) -> None:
    """Writes `data` to `path`, replacing what is there; a symbolic link keeps pointing.

    A path that is neither a file nor free (`/dev/null`, a pipe) is written to directly.

    Raises:
        Error: the folder is missing, the path is a folder, or the system refuses to write.
    """
    write_parts(path, (data,))


def write_parts(
    path: str | os.PathLike[str], parts: Iterable[bytes | bytearray | memoryview]
) -> None:
    """Writes parts one behind the other to `path`, as `write_atomic`; they are made one by one."""
    if "\0" in os.fspath(path):
        raise Error("Cannot write to a path that holds a NUL character.", hint="Name another.")
    target = Path(os.path.realpath(path))
    try:
        mode = _mode(target)
        if mode is None or stat.S_ISREG(mode):
            _replace(target, parts, mode)
        elif stat.S_ISDIR(mode):
            raise IsADirectoryError(None, "it is a folder")
        else:
            target.write_bytes(b"".join(parts))
    except OSError as error:
        reason, hint = _explain(error, target)
        raise Error(f"Cannot write {os.fspath(path)}: {reason}.", hint=hint) from error


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _replace(
    target: Path, parts: Iterable[bytes | bytearray | memoryview], mode: int | None
) -> None:
    with _temporary_beside(target) as temporary:
        # 0o666 under the umask, as an ordinary open() would give; a replaced file keeps its mode.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as f:
            if mode is not None:
                temporary.chmod(stat.S_IMODE(mode))
            for part in parts:
                f.write(memoryview(part).cast("B"))
            f.flush()
            os.fsync(f.fileno())
        temporary.replace(target)
    _sync_folder(target.parent)


@contextlib.contextmanager
def _temporary_beside(target: Path) -> Iterator[Path]:
    # Cut: names have at most 255 bytes, and a character takes up to four.
    temporary = target.with_name(f".{target.name[:48]}.{secrets.token_hex(6)}.tmp")
    try:
        yield temporary
    except BaseException:  # KeyboardInterrupt too
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    """Makes the rename itself durable, where the system can (it is written either way)."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _explain(error: OSError, target: Path) -> tuple[str, str]:
    reason = (error.strerror or str(error)).rstrip(".")
    if not target.parent.is_dir():
        return f"the folder {target.parent} does not exist", "Create it first."
    if isinstance(error, IsADirectoryError):
        return "it is a folder", "Give a file name."
    return reason[:1].lower() + reason[1:], "Choose a place that can be written."
