"""Files are written whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from npusim.errors import Error
from npusim.files import write_atomic


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomic(path, b"one")
    assert path.read_bytes() == b"one"
    write_atomic(str(path), memoryview(b"two"))
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["a"]


def test_permissions(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomic(tmp_path / "new", b"")
        (tmp_path / "old").touch()
        (tmp_path / "old").chmod(0o604)
        write_atomic(tmp_path / "old", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o604


def test_follows_links(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_longest_name(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    write_atomic(path, b"x")
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("missing/a", "the folder .* does not exist"),
        (".", "it is a folder"),
        ("file/a", "does not exist"),
        ("x" * 300, "name too long"),
        ("a\0b", "NUL"),
    ],
)
def test_refusals(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Error, match=f"Cannot write.*{words}"):
        write_atomic(tmp_path / name, b"x")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail(_: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises((KeyboardInterrupt, Error)) as caught:
        write_atomic(path, b"new")
    assert caught.value is error or "no space left on device" in str(caught.value)
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]
