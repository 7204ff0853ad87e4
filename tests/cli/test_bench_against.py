"""npusim bench --against: the same model in other runtimes, and what cannot be compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import Cli, Compiled

torch = pytest.importorskip("torch", reason="PyTorch is a peer")


def _against(of: Compiled, names: str, *more: object) -> tuple[object, ...]:
    common = ("bench", of.program, "--weights", of.weights, "--against", names, "--runs", 2)
    return (*common, "--threads", 1, *more)


@pytest.mark.parametrize("which", ["mlp", "two_inputs"])
def test_every_runtime_gives_the_same(cli: Cli, which: str, request: pytest.FixtureRequest) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is a peer")
    of: Compiled = request.getfixturevalue(which)
    data = cli(*_against(of, "torch,onnxruntime,torch", "--model", of.graph), "--json").json
    assert data["threads"] == 1 and data["rounds"] == 2
    assert [one["name"] for one in data["runtimes"]] == ["npusim", "torch", "onnxruntime"]
    assert data["runtimes"][0]["ratio"] == 1
    for one in data["runtimes"]:
        assert 0 < one["p10_s"] <= one["median_s"] <= one["p90_s"]
        assert one["ratio_p10"] <= one["ratio"] <= one["ratio_p90"]
        assert one["load_s"] > 0 and one["peak_rss_bytes"] > 1 << 20
        assert one["difference"] <= 1e-6


def test_a_person_reads_a_table(cli: Cli, mlp: Compiled) -> None:
    outcome = cli(*_against(mlp, "torch", "--model", mlp.graph))
    assert outcome.code == 0, outcome.err
    assert "of npusim" in outcome.out and "On 1 threads, in turns" in outcome.out


def test_an_onnx_model_is_taken_as_it_is(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is a peer")
    model = tmp_path / "m.onnx"
    assert cli("export-onnx", mlp.graph, "-o", model, "--weights", mlp.weights).code == 0
    data = cli(*_against(mlp, "onnxruntime", "--model", model), "--json").json
    assert data["runtimes"][1]["difference"] <= 1e-6
    cli(*_against(mlp, "torch", "--model", model)).refused("PyTorch does not run")


def test_a_runtime_that_cannot_load_is_named(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is a peer")
    model = tmp_path / "m.onnx"
    model.write_bytes(b"nothing of the kind")
    outcome = cli(*_against(mlp, "onnxruntime", "--model", model))
    assert outcome.code == 0 and "onnxruntime did not run" in outcome.out


def test_refusals(cli: Cli, mlp: Compiled, two_inputs: Compiled, tmp_path: Path) -> None:
    cli(*_against(mlp, "abacus", "--model", mlp.graph)).refused("abacus", "onnxruntime")
    cli(*_against(mlp, "torch")).refused("--model")
    cli(*_against(mlp, "torch", "--model", tmp_path / "none.json")).refused("none.json")
    cli(*_against(mlp, "torch", "--model", mlp.program)).refused(str(mlp.program))
    cli(*_against(mlp, "torch", "--model", two_inputs.graph)).refused("inputs")
    cli(*_against(mlp, "torch", "--model", mlp.graph, "--device", "null")).refused("CPU")
    cli("bench", mlp.program, "--model", mlp.graph).refused("--against")
    cli("bench", mlp.program, "--llm", "--against", "torch").refused("--llm")
