"""What releases rest on: one version, hooks that run what CI runs, docs that name every option."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import npusim
from npusim import _runtime

ROOT = Path(__file__).parents[1]
_CODE = ("python/npusim", "cpp", "include", "kernels")
_WHERE = (*_CODE, "Makefile", "*CMakeLists.txt", "*.cmake", "*.toml", "*.cfg", "*.yml")


def test_the_version_stands_in_one_place() -> None:
    """Besides it, only what tells of releases may name one."""
    try:
        command = ["git", "grep", "-lwF", npusim.__version__, "--", *_WHERE]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("git is not installed")
    if done.returncode > 1:
        pytest.skip("the sources are no repository")
    told = {"python/npusim/version.py", "include/npusim/npusim.h"}  # as an example, in a comment
    assert set(done.stdout.splitlines()) - told == set()


def test_hooks_run_the_linters_of_ci() -> None:
    makefile = (ROOT / "Makefile").read_text()
    rules = re.findall(r"^(?:lint|types):.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    commands = re.findall(r"\$\(BIN\)/(\w[\w-]*(?: [a-z]+)?)", "".join(rules))
    assert {"ruff check", "ruff format", "mypy"} <= set(commands)
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    assert [c for c in commands if f"entry: .venv/bin/{c}" not in hooks] == []


def test_the_docs_list_the_options_of_devices() -> None:
    text = (ROOT / "docs" / "embedding.md").read_text("utf-8")
    rows = re.findall(r"^\| (`cpu`|`cuda`|`cpu`, `cuda`) \| `(\w+)` \|", text, re.MULTILINE)
    told = {(device, option) for devices, option in rows for device in re.findall(r"\w+", devices)}
    known = [d for d in ("cpu", "cuda") if d in _runtime.device_names()]
    options = {(d, option) for d in known for option in _runtime.device_options(d)}
    assert {row for row in told if row[0] in known} == options
