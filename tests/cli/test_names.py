"""Names and variables whose bytes are no UTF-8 work, or are named in a sentence."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

MODEL = """
import torch

def net():
    return torch.nn.Linear(4, 3).eval(), (torch.zeros(2, 4),)
"""
BAD = b"\xff\xfe"


def npusim(folder: Path, *arguments: bytes, **variables: bytes) -> subprocess.CompletedProcess:
    environment = os.environb | {key.encode(): value for key, value in variables.items()}
    command = [sys.executable.encode(), b"-m", b"npusim.cli", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_are_not_utf8(tmp_path):
    (tmp_path / "m.py").write_text(MODEL)
    graph, weights, program = (BAD + end for end in (b".json", b".safetensors", b".npubin"))
    array = BAD + b".npy"
    with (tmp_path / os.fsdecode(array)).open("wb") as file:
        np.save(file, np.zeros((2, 4), np.float32))
    made = npusim(tmp_path, b"extract", b"m.py:net", b"-o", graph, b"--weights", weights)
    assert made.returncode == 0, made.stderr
    assert npusim(tmp_path, b"compile", graph, b"-o", program).returncode == 0
    run = (b"run", program, b"--weights", weights, b"--input", array, b"-o", b"out" + BAD)
    assert npusim(tmp_path, *run).returncode == 0
    refused = npusim(tmp_path, *run, NPUSIM_ISA=BAD)
    assert refused.returncode == 2
    assert b"cannot run on this processor" in refused.stderr
    missing = npusim(tmp_path, *run[:3], BAD + b"missing.safetensors", *run[4:])
    assert missing.returncode == 2
    assert b"There is no file" in missing.stderr
