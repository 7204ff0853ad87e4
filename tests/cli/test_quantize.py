"""npusim quantize: a graph and a checkpoint that compile and run, its report, and refusals."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

import npusim

from .conftest import Cli, Compiled


@pytest.fixture
def data(mlp: Compiled, tmp_path: Path) -> Path:
    path = tmp_path / "calibration.npz"
    (given,) = npusim.IR.load(mlp.graph).inputs
    x = np.random.default_rng(0).uniform(-1, 1, (20, 8)).astype(np.float32)
    np.savez(path, **{given.name: x})
    return path


def test_what_it_writes_compiles_and_runs(
    cli: Cli, mlp: Compiled, data: Path, tmp_path: Path
) -> None:
    graph, report = tmp_path / "int8.json", tmp_path / "report.csv"
    outcome = cli(
        *("quantize", mlp.graph, "--weights", mlp.weights, "--data", data, "-o", graph),
        *("--ranges", "mse", "--sensitivity", "--report", report),
    )
    assert outcome.code == 0, outcome.err
    assert "static: 2 of 2 layers in bytes; sqnr" in outcome.out
    rows = list(csv.DictReader(report.open()))
    assert len(rows) == 2 and all(float(row["alone"]) > 20 for row in rows)
    weights, program = tmp_path / "int8.safetensors", tmp_path / "int8.npubin"
    assert cli("compile", graph, "-o", program).code == 0
    results = []
    for name, of, held in (("a", mlp.program, mlp.weights), ("b", program, weights)):
        run = cli("run", of, "--weights", held, "--input", mlp.x, "-o", tmp_path / name)
        assert run.code == 0, run.err
        results.append(np.load(next((tmp_path / name).iterdir())))
    assert np.abs(results[0] - results[1]).max() < 0.05 * np.abs(results[0]).max()


def test_json_has_every_layer(cli: Cli, mlp: Compiled, data: Path, tmp_path: Path) -> None:
    graph, weights = tmp_path / "g.json", tmp_path / "w.safetensors"
    report = tmp_path / "report.json"
    found = cli(
        *("quantize", mlp.graph, "--weights", mlp.weights, "-o", graph, "--mode", "dynamic"),
        *("--save-weights", weights, "--evaluate", data, "--report", report, "--json"),
    ).json
    assert found["ok"] and found["weights"]["bytes"] == weights.stat().st_size
    assert [layer["left_out"] for layer in found["report"]["layers"]] == ["", ""]
    assert json.loads(report.read_text()) == found["report"]


def test_a_bound_out_of_reach_is_a_no(cli: Cli, mlp: Compiled, data: Path, tmp_path: Path) -> None:
    outcome = cli(
        *("quantize", mlp.graph, "--weights", mlp.weights, "--data", data),
        *("-o", tmp_path / "g.json", "--bound", "500"),
    )
    assert outcome.code == 1 and "0 of 2 layers" in outcome.out and "the bound" in outcome.out


def test_refusals(cli: Cli, mlp: Compiled, data: Path, tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    base = ("quantize", mlp.graph, "--weights", mlp.weights, "-o", graph)
    cli(*base).refused("calibration data", "dynamic")
    cli(*base, "--data", tmp_path / "none.npz").refused("none.npz")
    cli(*base, "--data", mlp.x).refused("one array")
    cli(*base, "--data", data, "--skip", "none").refused("Layers:")
    cli(*base, "--data", data, "--report", "r.txt").refused(".json or a .csv")
    cli(*base, "--data", data, "--save-weights", mlp.weights).refused("would be overwritten")
    cli(*base, "--data", data, "--save-weights", graph).refused("Name two outputs")
    cli("quantize", mlp.graph, "--data", data, "-o", graph).refused("missing")
    assert not graph.exists()


def test_an_onnx_model_has_its_weights(cli: Cli, mlp: Compiled, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    model, graph = tmp_path / "model.onnx", tmp_path / "int8.json"
    assert cli("export-onnx", mlp.graph, "-w", mlp.weights, "-o", model).code == 0
    outcome = cli("quantize", model, "--data", data, "-o", graph)
    assert outcome.code == 0 and "2 of 2 layers" in outcome.out, outcome.err
    held = cli("quantize", model, "--weights", mlp.weights, "--data", data, "-o", graph)
    held.refused("its weights in it")


def test_weights_under_other_names(cli: Cli, mlp: Compiled, data: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    wrapped = tmp_path / "wrapped.safetensors"
    save_file({f"net.{key}": a for key, a in load_file(mlp.weights).items()}, wrapped)
    options = ("--data", data, "-o", tmp_path / "g.json")
    cli("quantize", mlp.graph, "--weights", wrapped, *options).refused("missing")
    made = cli("quantize", mlp.graph, "--weights", wrapped, "--rename", "=net.", *options)
    assert made.code == 0, made.err
