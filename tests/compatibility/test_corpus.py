"""Graphs and programs of every released version load, and compute to the bit what they did."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.program.container import MAJOR
from tests.compatibility.write import CORPUS

_CALLS = sorted(CORPUS.glob("*/*.calls.json"))


def _ids(path: Path) -> str:
    return f"{path.parent.name}-{path.name.removesuffix('.calls.json')}"


def _array(tensor: dict[str, Any]) -> np.ndarray[Any, Any]:
    return np.array(tensor["values"], dtype=tensor["dtype"])


def hold(program: Any, calls: Path) -> None:
    weights = calls.with_name(calls.name.replace(".calls.json", ".safetensors"))
    session = npusim.load(program, weights=weights if weights.exists() else None, threads=1)
    for call in json.loads(calls.read_text())["calls"]:
        outputs = session(*map(_array, call["inputs"]))
        assert len(outputs) == len(call["outputs"])
        for got, recorded in zip(outputs, call["outputs"], strict=True):
            expected = _array(recorded)
            assert got.dtype == expected.dtype and got.shape == expected.shape
            assert got.tobytes() == expected.tobytes()


def test_each_release_has_its_files() -> None:
    assert {path.parent.name for path in _CALLS} >= {"0.1.0"}
    assert all(path.stat().st_size < 64 * 1024 for path in CORPUS.rglob("*.*") if path.is_file())


@pytest.mark.parametrize("calls", _CALLS, ids=_ids)
def test_programs_run(calls: Path) -> None:
    hold(calls.with_name(calls.name.replace(".calls.json", ".npubin")), calls)


@pytest.mark.parametrize("calls", _CALLS, ids=_ids)
def test_graphs_compile_and_run(calls: Path) -> None:
    graph = npusim.IR.load(calls.with_name(calls.name.replace(".calls.json", ".json")))
    hold(npusim.compile(graph), calls)


def test_a_program_of_the_next_format_says_what_to_do(tmp_path: Path) -> None:
    content = bytearray((CORPUS / "0.1.0" / "dense.npubin").read_bytes())
    content[8:10] = (MAJOR + 1).to_bytes(2, "little")
    future = tmp_path / "future.npubin"
    future.write_bytes(content)
    with pytest.raises(npusim.ProgramFormatError, match=rf"format {MAJOR + 1}\..*Upgrade npusim"):
        npusim.load(future)
