"""npusim partition, and run and info on what it writes."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from .conftest import FACTORIES, Cli, Compiled
from .factories import partly


@pytest.fixture
def plan(cli: Cli, tmp_path: Path) -> Path:
    graph = tmp_path / "partly.json"
    weights = tmp_path / "partly.safetensors"
    source = f"{FACTORIES}:partly"
    assert cli("extract", source, "-o", graph, "--weights", weights).code == 0
    outcome = cli("partition", graph)
    assert outcome.code == 0, outcome.err
    assert "on PyTorch: aten.linalg_inv_ex.default (factories.py:" in outcome.out
    return tmp_path / "partly.npuplan"


@pytest.mark.parametrize("verb", ["bench", "profile"])
def test_a_plan_is_timed(cli: Cli, plan: Path, verb: str) -> None:
    weights = plan.with_suffix(".safetensors")
    arguments = (verb, plan, "--weights", weights, "--seconds", 0, "--threads", 1)
    outcome = cli(*arguments, "--json")
    assert outcome.code == 0, outcome.err
    facts = outcome.json
    if verb == "bench":
        assert facts["median_s"] > 0 and facts["runs"] >= 3
    else:
        steps = [row["step"] for row in facts["steps"]]
        assert any("native" in s for s in steps) and any("pytorch" in s for s in steps)
        assert facts["steps_s"] == pytest.approx(sum(row["seconds"] for row in facts["steps"]))
        cli(*arguments, "--method", "forward").refused("--method")


def test_a_plan_runs_as_pytorch_does(cli: Cli, plan: Path, tmp_path: Path) -> None:
    model, (x,) = partly()
    np.save(tmp_path / "x.npy", x.numpy())
    weights = plan.with_suffix(".safetensors")
    flags = ("--weights", weights, "--input", tmp_path / "x.npy", "-o", tmp_path / "out")
    outcome = cli("run", plan, *flags, "--json")
    assert outcome.code == 0, outcome.err
    assert "linalg_inv_ex" in outcome.err, "what PyTorch runs is said"
    (row,) = outcome.json["outputs"]
    with torch.inference_mode():
        expected = model(x).numpy()
    np.testing.assert_allclose(np.load(row["path"]), expected, rtol=1e-4, atol=1e-5)


def test_info_lists_the_partitions(cli: Cli, plan: Path) -> None:
    facts = cli("info", plan, "--json").json
    assert facts["kind"] == "plan"
    executors = [p["executor"] for p in facts["partitions"]]
    assert {"native", "pytorch"} == set(executors)
    assert "cross at each call" in cli("info", plan).out


def test_pins_and_refusals(cli: Cli, mlp: Compiled, plan: Path, tmp_path: Path) -> None:
    out = tmp_path / "pinned.npuplan"
    pins = [
        f"--pin={path}={on}"
        for path, on in zip("012", ("native", "native", "pytorch"), strict=True)
    ]
    outcome = cli("partition", mlp.graph, *pins, "-o", out, "--json")
    assert [p["executor"] for p in outcome.json["plan"]["partitions"]] == ["native", "pytorch"]
    graph = plan.with_suffix(".json")
    refused = tmp_path / "refused.npuplan"
    cli("partition", graph, "--fallback", "error", "-o", refused).refused("linalg_inv_ex")
    cli("partition", graph, "--pin", "head", "-o", refused).refused("PATH=EXECUTOR")
    twice = ("--pin", "0=native", "--pin", "0=pytorch")
    cli("partition", graph, *twice, "-o", refused).refused("twice")
    assert not refused.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="NVRTC is there on Linux alone")
def test_sizes_to_prepare_reach_the_native_partitions(cli: Cli, tmp_path: Path) -> None:
    graph, output = tmp_path / "g.json", tmp_path / "m.npuplan"
    made = cli("extract", f"{FACTORIES}:mlp", "-o", graph, "--dynamic", "input:0=batch:8")
    assert made.code == 0, made.err
    pins = ("--pin=0=native", "--pin=1=native", "--pin=2=pytorch")
    options = ("partition", graph, "-o", output, "--target", "cuda:sm_90", *pins)
    outcome = cli(*options, "--sizes", "batch=1,3")
    assert outcome.code == 0, outcome.err
    assert "partition 0: device code for batch = 8; batch = 1; batch = 3" in outcome.out
    native, rest = cli("info", output, "--json").json["partitions"]
    assert native["prepared_sizes"] == [{"batch": 8}, {"batch": 1}, {"batch": 3}]
    assert "prepared_sizes" not in rest
    cli("partition", graph, "--sizes", "batch=9").refused("batch is 9", "1 … 8")
    cli("partition", graph, "--sizes", "batch").refused("SYMBOL=SIZE")


def test_where_one_program_is_meant_a_plan_is_refused(cli: Cli, plan: Path) -> None:
    cli("bench", plan, "--llm").refused("partition plan")


def test_a_truncated_plan(cli: Cli, plan: Path, tmp_path: Path) -> None:
    half = tmp_path / "half.npuplan"
    half.write_bytes(plan.read_bytes()[:200])
    cli("info", half).refused("half.npuplan")
