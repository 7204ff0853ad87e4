"""Whether this machine has a GPU, and processes of their own for what would harm this one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import npusim

ROOT = Path(__file__).parents[2]


def require_gpu() -> None:
    """Skips the module that calls it, unless there is a device; the reason is the driver's."""
    try:
        npusim.Device("cuda")
    except npusim.DeviceError as error:
        pytest.skip(str(error), allow_module_level=True)


def start(code: str, **environment: str) -> subprocess.Popen[str]:
    """Starts a Python process over code that may import npusim and the tests."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), **environment}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=variables, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    """Waits for a process, which must succeed, and returns what it printed."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err[-4000:]
    return out


def run(code: str, **environment: str) -> str:
    """Runs code in a process of its own; returns what it printed."""
    return finish(start(code, **environment))
