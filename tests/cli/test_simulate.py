"""npusim simulate: programs, and products without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Cli, Compiled


def test_a_product_has_the_cycles_that_are_published(cli: Cli) -> None:
    outcome = cli("simulate", "--target", "scale-32-os", "--product", "256,256,128", "--json")
    facts = outcome.json
    assert outcome.code == 0 and facts["cycles"] == 10_176
    assert sum(facts["causes_cycles"].values()) == facts["simulated_cycles"]
    assert "10,176 cycles" in cli("simulate", "--target=scale-32-os", "--product=256,256,128").out


@pytest.mark.parametrize(
    "sizes", ["1,2", "0,1,1", "a,b,c", "1,-1,1", "1048577,1,1", "1.5,1,1", "9" * 5000 + ",1,1"]
)
def test_wrong_sizes_are_refused(cli: Cli, sizes: str) -> None:
    cli("simulate", "--target", "gemmini-8", f"--product={sizes}").refused("--product")


def test_a_convolution_is_a_product_for_each_tap(cli: Cli) -> None:
    taps = cli("simulate", "--target", "gemmini-8", "--conv", "64,56,56,64,3,3,1,1", "--json").json
    one = cli("simulate", "--target", "gemmini-8", "--conv", "64,56,56,64,1,1", "--json").json
    assert taps["cycles"] > 8 * one["cycles"]
    same = cli("simulate", "--target", "gemmini-8", "--product", "3136,64,64", "--json").json
    assert one["cycles"] == same["cycles"]
    assert one["dram_read_bytes"] == same["dram_read_bytes"]


@pytest.mark.parametrize(
    "sizes", ["1,2,3,4,5", "3,2,2,8,3,3", "0,8,8,8,3,3", "3,8,8,8,3,3,0", "1,1048576,1048576,1,1,1"]
)
def test_wrong_convolutions_are_refused(cli: Cli, sizes: str) -> None:
    cli("simulate", "--target", "gemmini-8", f"--conv={sizes}").refused("--conv")


@pytest.fixture
def program(cli: Cli, mlp: Compiled, tmp_path: Path) -> Path:
    file = tmp_path / "edge.npubin"
    done = cli("compile", mlp.graph, "--target", "npu-edge-32x32", "-o", file)
    assert done.code == 0, done.err
    return file


def test_a_program_has_a_report(cli: Cli, program: Path, tmp_path: Path) -> None:
    folder = tmp_path / "report"
    outcome = cli("simulate", program, "-o", folder, "--json")
    facts, report = outcome.json, json.loads((folder / "report.json").read_text())
    assert facts["seconds"] == report["seconds"] == pytest.approx(sum(facts["stalls"].values()))
    assert sorted(facts["files"]) == sorted(str(path) for path in folder.iterdir())
    assert report["target"] == "npu-edge-32x32" and report["mode"] == "tight"
    slow = cli("simulate", program, "--set", "dram.gb_per_s=0.01", "--mode", "loose", "--json").json
    assert slow["seconds"] > facts["seconds"] and slow["mode"] == "loose" and slow["files"] == []
    shown = cli("simulate", program).out
    assert "due to" in shown and "what would help" in shown


def test_a_plan_has_steps_of_the_host(cli: Cli, tmp_path: Path) -> None:
    from tests.simulate.nets import cut

    cut().save(tmp_path / "cut.npuplan")
    outcome = cli("simulate", tmp_path / "cut.npuplan")
    assert outcome.code == 0 and "pytorch" in outcome.out and "on the host" in outcome.out
    cli("simulate", tmp_path / "cut.npuplan", "--method", "x").refused("no methods")


def test_wrong_questions_are_refused(cli: Cli, program: Path, mlp: Compiled) -> None:
    cli("simulate").refused("PROGRAM")
    cli("simulate", program, "--product", "1,1,1").refused("PROGRAM")
    cli("simulate", "--product", "1,1,1").refused("--target")
    cli("simulate", "--target=gemmini-8", "--conv=1,1,1,1,1,1", "--mode=tight").refused("--conv")
    cli("simulate", program, "--dtype", "int8").refused("--dtype")
    cli("simulate", program, "--target", "h200").refused("says nothing of 'h200'")
    cli("simulate", program, "--set", "dram.gb_per_s=0").refused("dram.gb_per_s")
    cli("simulate", program, "--method", "x").refused("no method 'x'")
    cli("simulate", program, "--context", "1").refused("no language model")
    cli("simulate", mlp.graph).refused("not a program")


def test_wrong_machines_are_refused(cli: Cli) -> None:
    cli("simulate", "--target", "cpu", "--product", "1,1,1").refused("describes no machine")
    cli("simulate", "--target", "gemmini-8", "--product", "1,1,1", "--dtype", "float32").refused(
        "does not multiply float32"
    )
