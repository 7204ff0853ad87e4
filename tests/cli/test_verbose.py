"""`-v`, the logger `npusim`, and progress: what npusim decides, and how far it is."""

from __future__ import annotations

import io
import logging
import sys
from pathlib import Path

import pytest
from rich.console import Console

import npusim
from npusim.cli import progress as terminal
from tests.cli.conftest import FACTORIES, Cli, Compiled


def test_verbose_says_what_was_decided(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    run = ("run", mlp.program, "--weights", mlp.weights, "--input", mlp.x)
    quiet, told, all_told = cli(*run), cli(*run, "-v"), cli(*run, "--verbose", "-v")
    assert quiet.code == told.code == all_told.code == 0
    assert quiet.err == "" and quiet.out == told.out == all_told.out
    assert "npusim.runtime.device: device cpu: " in told.err
    assert f"weights from {mlp.weights}, " in told.err and "where" in told.err
    compiled = cli("compile", mlp.graph, "-o", tmp_path / "a.npubin", "-vv")
    assert "npusim.passes.run: " in compiled.err and "nodes become" in compiled.err
    assert "nodes become" not in cli("compile", mlp.graph, "-o", tmp_path / "b.npubin", "-v").err
    assert not logging.getLogger("npusim").handlers, "it ends with the verb"


def test_verbose_names_fallbacks_and_keeps_json_clean(cli: Cli, tmp_path: Path) -> None:
    graph = tmp_path / "partly.json"
    assert cli("extract", f"{FACTORIES}:partly", "-o", graph).code == 0
    made = cli("partition", graph, "-o", tmp_path / "p.npuplan", "-v", "--json")
    assert made.json["ok"] and "runs in PyTorch: " in made.err


def test_loading_reports_every_byte(mlp: Compiled) -> None:
    program, told = npusim.CompiledProgram.load(mlp.program), []
    device = npusim.Device("cpu")
    for copy in (False, True):
        told.clear()
        npusim.load_weights(
            mlp.weights, program, device, copy=copy, progress=lambda *row: told.append(row)
        )
        done = [row[1] for row in told]
        total = sum(4 * n for n in (8 * 16, 16, 16 * 4, 4))
        assert done == sorted(done) and len(done) == len(program.weights)
        assert told[-1] == ("weights", total, total)


def test_what_a_progress_function_raises_ends_the_load(mlp: Compiled) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for copy in (False, True):
        with pytest.raises(KeyboardInterrupt):
            npusim.load(mlp.program, mlp.weights, copy=copy, progress=stop)
    assert npusim.load(mlp.program, mlp.weights).input_names


def test_progress_is_for_terminals(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mlp: Compiled
) -> None:
    verify = ("verify", f"{FACTORIES}:mlp")
    assert cli(*verify).err == ""
    shown = io.StringIO()

    def console(**_: object) -> Console:
        return Console(file=shown, force_terminal=True, width=120)

    monkeypatch.setattr(terminal, "Console", console)
    monkeypatch.setattr(sys, "stderr", shown)
    assert cli(*verify).code == 0
    assert cli("extract", f"{FACTORIES}:mlp", "-o", tmp_path / "m.json").code == 0
    assert cli("run", mlp.program, "--weights", mlp.weights, "--input", mlp.x).code == 0
    for stage in ("Verifying", "Extracting", "Running"):
        assert stage in shown.getvalue()
