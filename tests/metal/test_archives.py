"""Pipelines in binary archives: who finds them, what they depend on, what damage costs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import npusim
from tests.metal.programs import diamonds, image, one_command, unary
from tests.metal.test_running import expected_diamonds
from tests.softmetal import metal

X = np.arange(16, dtype=np.float32)
PIPELINES = 3  # distinct texts of a program of diamonds
CHILD = """
import json, sys
from tests.softmetal.build import use_metal_runtime
use_metal_runtime()
import numpy as np, npusim
from tests.metal.programs import diamonds
from tests.softmetal import metal
session = npusim.load(diamonds(16, 2), device="metal")
(y,) = session(np.arange(16, dtype=np.float32))
counts = [metal.counted(name + " pipelines") for name in ("compiled", "found")]
print(json.dumps([counts, y.tolist()]))
"""


def archives(tmp_path: Path) -> list[Path]:
    """All files below the folder of pipelines."""
    folder = tmp_path / "cache" / "metal" / "pipelines"
    return sorted(p for p in folder.rglob("*") if p.is_file()) if folder.is_dir() else []


def load_once(device: npusim.Device | None = None) -> tuple[int, int]:
    """Loads on a device of its own and runs; returns how many were compiled, and were found."""
    before = [metal.counted(name + " pipelines") for name in ("compiled", "found")]
    session = npusim.load(diamonds(16, 2), device=device or npusim.Device("metal"))
    np.testing.assert_array_equal(session(X)[0], expected_diamonds(X, 2))
    after = [metal.counted(name + " pipelines") for name in ("compiled", "found")]
    # What is compiled for an archive is then found there.
    return after[0] - before[0], after[1] - before[1] - (after[0] - before[0])


def start() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD],
        cwd=Path(__file__).resolve().parents[2],
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> list[int]:
    """Waits; returns how many were compiled, and found there."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    (compiled, found), y = json.loads(out)
    np.testing.assert_array_equal(np.asarray(y, np.float32), expected_diamonds(X, 2))
    return [compiled, found - compiled]


def test_another_process_compiles_nothing(device: npusim.Device, tmp_path: Path) -> None:
    assert device
    assert ended(start()) == [PIPELINES, 0]
    kept = {path: path.read_bytes() for path in archives(tmp_path)}
    assert len(kept) == PIPELINES
    assert ended(start()) == [0, PIPELINES]
    assert {path: path.read_bytes() for path in archives(tmp_path)} == kept
    assert load_once() == (0, PIPELINES)


def test_processes_at_once(device: npusim.Device, tmp_path: Path) -> None:
    assert device
    for process in [start() for _ in range(4)]:
        compiled, found = ended(process)
        assert compiled + found == PIPELINES
    assert len(archives(tmp_path)) == PIPELINES
    assert load_once() == (0, PIPELINES)


@pytest.mark.parametrize(
    ("name", "value"),
    [("OS", "Version 15.0 (Build 24A336)"), ("NAME", "Another device"), ("FAMILY", 8)],
)
def test_what_they_depend_on(
    device: npusim.Device, tmp_path: Path, name: str, value: object
) -> None:
    assert load_once(device) == (PIPELINES, 0)
    metal.set_option(name, value)
    assert load_once() == (PIPELINES, 0)
    assert len(archives(tmp_path)) == 2 * PIPELINES, "each has its own"
    assert load_once() == (0, PIPELINES)
    metal.set_option("NAME", "Software Metal device")
    metal.set_option("OS", "Version 15.0 (Build 24A335)")
    metal.set_option("FAMILY", 9)
    assert load_once() == (0, PIPELINES)


def test_direct_and_indirect_pipelines_are_two(device: npusim.Device, tmp_path: Path) -> None:
    assert load_once(device) == (PIPELINES, 0)
    direct = npusim.Device("metal", indirect_commands="off")
    assert load_once(direct) == (PIPELINES, 0)
    assert load_once(npusim.Device("metal", indirect_commands="off")) == (0, PIPELINES)
    assert load_once() == (0, PIPELINES), "they are not in each other's place"
    assert len(archives(tmp_path)) == 2 * PIPELINES


def test_the_text_and_its_entries_tell_archives_apart(
    device: npusim.Device, tmp_path: Path
) -> None:
    source = """#include <metal_stdlib>
kernel void one(device const float* x [[buffer(0)]], device float* y [[buffer(1)]]) {
  y[0] = x[0] + 1.0f;
}
kernel void two(device const float* x [[buffer(0)]], device float* y [[buffer(1)]]) {
  y[0] = x[0] + 2.0f;
}
"""
    for entries, wanted in ((("one",), 1), (("two",), 2), (("one", "two"), 2), (("one",), 1)):
        session = npusim.load(
            one_command(image(source, entries=entries), 1), device=npusim.Device("metal")
        )
        assert session(np.zeros(1, np.float32))[0][0] == wanted
    assert len(archives(tmp_path)) == 3
    npusim.load(one_command(unary("x[i]", 1), 1), device=device)
    assert len(archives(tmp_path)) == 4


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def named(path: Path, content: bytes) -> None:
    """Puts content under the name that it has when it is whole: cache_key of cache_folder.h."""

    def fnv(text: bytes, value: int) -> int:
        for byte in text:
            value = ((value ^ byte) * 0x100000001B3) % (1 << 64)
        return value

    text = b"%d:%s" % (len(content), content)
    first = fnv(text, 0xCBF29CE484222325)
    second = fnv(text, first ^ 0x9E3779B97F4A7C15)
    path.unlink()
    (path.parent / f"{first:016x}{second:016x}.archive").write_bytes(content)


def hostile(path: Path) -> None:
    named(path, b"\x00\xff what Metal does not take")


def outdated(path: Path) -> None:
    key, total = b"of another driver", 0
    for byte in key:
        total = (total * 31 + byte) % (1 << 32)
    named(path, b"softmetal binary archive 1\n%s\nend %d\n" % (key, total))


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "file").write_bytes(b"x")


@pytest.mark.parametrize(
    "damage", [truncated, changed, emptied, hostile, outdated, a_pipe, a_folder]
)
def test_damaged_archives_are_made_anew(
    device: npusim.Device, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    assert load_once(device) == (PIPELINES, 0)
    whole = {path: path.read_bytes() for path in archives(tmp_path)}
    first = next(iter(whole))
    damage(first)
    if damage is a_folder:  # nothing is lost that may be somebody's, and nothing kept in its place
        assert load_once() == (1, PIPELINES - 1)
        assert (first / "file").read_bytes() == b"x"
        return
    # Of the outdated one, Metal is asked: what is not there is compiled.
    assert load_once() == (1, PIPELINES - 1)
    assert {path: path.read_bytes() for path in archives(tmp_path)} == whole
    assert load_once() == (0, PIPELINES)


def test_a_folder_that_cannot_be_written_costs_compilations(
    device: npusim.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NPUSIM_CACHE_DIR", str(tmp_path / "file"))
    assert load_once(device) == (PIPELINES, 0)
    assert load_once() == (PIPELINES, 0)
    for name in ("NPUSIM_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    assert load_once()[0] == PIPELINES
