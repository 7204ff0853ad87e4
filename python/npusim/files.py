"""Writing files whole or not at all. Owns the one way npusim puts bytes at a path.

A reader of the path sees the old content or the new, never a part: the bytes go to a temporary
name in the same folder, reach the disk, and take the path's place in one step. Whatever happens on
the way (a full disk, Ctrl-C) removes the temporary name again. Also owns `transaction`: several
files of one command, all of them or none, and none in the place of what somebody still wants.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from itertools import chain
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
    """Writes parts one after another to `path`, as `write_atomic`; they are made one by one."""
    if "\0" in os.fspath(path):
        raise Error("Cannot write to a path that holds a NUL character.", hint="Name another.")
    target = Path(os.path.realpath(path))
    under_way = _under_way.get()
    try:
        mode = _mode(target)
        if mode is None or stat.S_ISREG(mode):
            if under_way is not None:
                parts = under_way.admit(target, Path(path), parts)
            _replace(target, parts, mode)
        elif stat.S_ISDIR(mode):
            raise IsADirectoryError(None, "it is a folder")
        else:
            target.write_bytes(b"".join(parts))
    except OSError as error:
        reason, hint = _explain(error, target)
        raise Error(f"Cannot write {printable_path(path)}: {reason}.", hint=hint) from error


@contextlib.contextmanager
def written_beside(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields the name of a file in the same folder, for native code to write; it then takes the
    place of `path`, unless the block ended with an exception.

    Raises:
        Error: as `write_atomic`.
    """
    target = Path(os.path.realpath(path))
    under_way = _under_way.get()
    try:
        with _temporary_beside(target) as temporary:
            if target.is_dir():
                raise IsADirectoryError(None, "it is a folder")
            yield temporary
            if under_way is not None:
                with temporary.open("rb") as file:
                    under_way.admit(target, Path(path), (file.read(64),))
            temporary.replace(target)
        _sync_folder(target.parent)
    except OSError as error:
        reason, hint = _explain(error, target)
        raise Error(f"Cannot write {printable_path(path)}: {reason}.", hint=hint) from error


def read_whole(path: str | os.PathLike[str]) -> bytes:
    """Returns a file's content; OSError when it cannot be read, or is a device without an end."""
    file = Path(path)
    if stat.S_ISCHR(file.stat().st_mode) and not file.samefile(os.devnull):
        raise OSError(None, "it is a device, not a file")
    return file.read_bytes()


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Makes a folder, and those it lies in, where they are missing; Error when that fails."""
    folder = Path(path)
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise Error(
            f"Cannot make the folder {printable_path(folder)}: {reason.rstrip('.').lower()}.",
            hint="Choose a place that can be written.",
        ) from error
    under_way = _under_way.get()
    if under_way is not None:
        under_way.made.extend(reversed(missing))
    return folder


def printable_path(path: str | os.PathLike[str]) -> str:
    """Returns a path as text that every stream takes: bytes that are no UTF-8 become `?`."""
    return os.fsencode(path).decode("utf-8", "replace")


def reads(path: str | os.PathLike[str]) -> None:
    """Notes that the command under way reads a file, which it then does not write over."""
    under_way = _under_way.get()
    if under_way is not None:
        with contextlib.suppress(OSError, ValueError):
            found = Path(path).stat()
            under_way.read[found.st_dev, found.st_ino] = Path(path)


@contextlib.contextmanager
def transaction(*, force: bool = False) -> Iterator[None]:
    """While the block runs, files written by this module belong together.

    When it ends with an exception, whatever it is, files that are new are removed again, those
    that were replaced have their old content back, and folders that were made are gone. A file that
    the block reads (`reads`) is not written over, nor one that holds something of another kind,
    unless `force` says so.
    """
    own = _Transaction(force)
    token = _under_way.set(own)
    try:
        yield
    except BaseException:
        own.undo()
        raise
    else:
        own.forget()
    finally:
        _under_way.reset(token)


class _Transaction:
    """What was written so far, and how to take it back."""

    def __init__(self, force: bool) -> None:
        self.force = force
        self.read: dict[tuple[int, int], Path] = {}
        self.written: dict[Path, Path | None] = {}  # and where the content before it is
        self.made: list[Path] = []  # folders, outer ones first

    def admit(
        self, target: Path, named: Path, parts: Iterable[bytes | bytearray | memoryview]
    ) -> Iterable[bytes | bytearray | memoryview]:
        """Checks that a file may be written, and keeps what it replaces; returns the parts."""
        if not target.exists():
            self.written[target] = None
            return parts
        found = target.stat()
        if (found.st_dev, found.st_ino) in self.read:
            raise Error(
                f"{printable_path(named)} is read by this command, and would be overwritten.",
                hint="Name another output.",
            )
        rest = iter(parts)
        first = next(rest, b"")
        old, new = _kind_of_file(target), kind_of(bytes(memoryview(first).cast("B")[:64]))
        if target in self.written:
            if old != new:
                raise Error(
                    f"{printable_path(named)} cannot hold {old} and {new}.",
                    hint="Name two outputs.",
                )
            return chain((first,), rest)
        if not self.force and old not in ("nothing", new):
            raise Error(
                f"{printable_path(named)} is there and holds {old}, not {new}.",
                hint="Name another output, or replace it with --force.",
            )
        kept = _temporary_name(target)
        _keep(target, kept)
        self.written[target] = kept
        return chain((first,), rest)

    def undo(self) -> None:
        """Brings back what was there before."""
        for target, kept in self.written.items():
            with contextlib.suppress(OSError):
                if kept is None:
                    target.unlink()
                elif target.exists() and kept.samefile(target):  # it was not replaced yet
                    kept.unlink()
                else:
                    kept.replace(target)
        for folder in reversed(self.made):
            with contextlib.suppress(OSError):  # not empty: somebody else's by now
                folder.rmdir()

    def forget(self) -> None:
        """Drops what was kept."""
        for kept in self.written.values():
            if kept is not None:
                with contextlib.suppress(OSError):
                    kept.unlink()


_under_way: ContextVar[_Transaction | None] = ContextVar("npusim_transaction", default=None)


def _keep(target: Path, kept: Path) -> None:
    """Gives a file a second name, or, where the system has no such, copies it."""
    try:
        os.link(target, kept)
    except OSError:
        shutil.copy2(target, kept)


# How files begin, and what to call them.
_KINDS = (
    (b"\x89NPUB", "a program"),
    (b"\x89NPLN", "a partition plan"),
    (b"\x93NUMPY", "an array"),
    (b"PK\x03\x04", "an archive"),
    (b"\x89PNG", "a picture"),
    (b"<svg", "a picture"),
    (b"<?xml", "a picture"),
    (b"<!doctype", "a page"),
)


def kind_of(start: bytes) -> str:
    """Returns what a file holds, from its first bytes: "a program", "JSON", "text" …"""
    if not start:
        return "nothing"
    for magic, kind in _KINDS:
        if start[: len(magic)].lower() == magic.lower():
            return kind
    if start[8:9] == b"{" and start[7:8] == b"\0":
        return "safetensors"
    if start.lstrip()[:1] in (b"{", b"["):
        return "JSON"
    if start[:1] == b"\x08":
        return "an ONNX model"
    # Cut anywhere, so perhaps within a character.
    text = start.decode("utf-8", "ignore")
    plain = all(c.isprintable() or c in "\n\r\t\f" for c in text)
    return "text" if plain and len(text.encode()) >= len(start) - 3 else "other data"


def _kind_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return kind_of(file.read(64))


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
    temporary = _temporary_name(target)
    try:
        yield temporary
    except BaseException:  # KeyboardInterrupt too
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _temporary_name(target: Path) -> Path:
    # Cut: names have at most 255 bytes, and a character takes up to four.
    return target.with_name(f".{target.name[:48]}.{secrets.token_hex(6)}.tmp")


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
        missing = printable_path(target.parent)
        return f"the folder {missing} does not exist", "Create it first."
    if isinstance(error, IsADirectoryError):
        return "it is a folder", "Give a file name."
    return reason[:1].lower() + reason[1:], "Choose a place that can be written."
