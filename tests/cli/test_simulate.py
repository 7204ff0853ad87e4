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


def test_a_device_of_a_roofline_says_the_seconds_of_a_product(cli: Cli) -> None:
    one = cli("simulate", "--target=cpu", "--product=1024,4096,1048576", "--json").json
    assert one["cycles"] is None and one["dtype"] == "float32" and one["kernels"] == ["gemm"]
    assert one["seconds"] == pytest.approx(sum(one["stalls"].values()))
    assert one["seconds"] > 2 * 1024 * 4096 * 2**20 / 0.23e12  # at its peak
    faster = ("--set", "roofline.memory.dram.giga_bytes_per_second=400", "--json")
    few = ("simulate", "--target=cpu", "--product=1,4096,4096", "--dtype=bfloat16")
    assert cli(*few, *faster).json["seconds"] < cli(*few, "--json").json["seconds"]
    shown = cli("simulate", "--target=ane-m1", "--conv=64,56,56,64,3,3,1,1").out
    assert "float16 on ane-m1" in shown and "operations)^p" in shown


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
    slow = cli("simulate", program, "--set", "dram.gb_per_s=1", "--mode", "loose", "--json").json
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
    cli("simulate", program, "--set", "dram.gb_per_s=1e-8").refused(
        "Setting 'dram.gb_per_s=1e-8': 'dram.gb_per_s': ", "1/16 is the least"
    )
    cli("simulate", program, "--set", "clock.core_mhz=1e-300").refused("at least 1e-06")
    cli("simulate", program, "--set", "calibration.dram_eff=1e-5").refused("at least 1/16 byte")
    cli("simulate", program, "--target=cpu", "--mode=loose").refused("'cpu' has no mode 'loose'")
    cli("simulate", program, "--method", "x").refused("no method 'x'")
    cli("simulate", program, "--context", "1").refused("no language model")
    cli("simulate", mlp.graph).refused("not a program")


def test_wrong_machines_are_refused(cli: Cli) -> None:
    cli("simulate", "--target", "null", "--product", "1,1,1").refused("describes no machine")
    cli("simulate", "--target=cpu", "--product=1,1,1", "--dtype=int8").refused("float32, float16")
    cli("simulate", "--target=cpu", "--product=0,1,1").refused("--product")
    cli("simulate", "--target=h200", "--conv=3,2,2,8,3,3").refused("--conv")
    cli("simulate", "--target", "gemmini-8", "--product", "1,1,1", "--dtype", "float32").refused(
        "does not multiply float32"
    )
    wide = cli("simulate", "--target=gemmini-8", "--product=100000000,9,9")
    wide.refused("at most 2^20")
    for product, rate in (("9,9,9", "1e-18"), ("1048576,1048576,1048576", "1")):
        cli(
            *("simulate", "--target=gemmini-8", "--product", product),
            *("--set", f"mxu.macs_per_pe_cycle.int8={rate}"),
        ).refused("A product")


def test_a_program_is_drawn_for_terminals(cli: Cli, program: Path) -> None:
    shown = cli("simulate", program).out
    assert "due to |" in shown and "   mxu |" in shown


def test_a_command_is_explained(cli: Cli, program: Path) -> None:
    facts = cli("explain", program, "--command", "0", "--json").json
    again = cli("explain", program, "--command", facts["node"], "--json").json
    assert facts == again and facts["formula"] and facts["schedules"] and facts["operands"]
    shown = cli("explain", program, "--command", "0", "--mode", "loose").out
    for part in ("formula:", "schedule:", "due to", "bound:", "what would help:"):
        assert part in shown
    cli("explain", program, "--command", "99").refused("no command 99; it has: 0 …")
    cli("explain", program, "--command", "9" * 5000).refused("no command")
    cli("explain", program).refused("--command")


def test_machines_are_swept(cli: Cli, program: Path, tmp_path: Path, nowhere: Path) -> None:
    table, chart = tmp_path / "sweep.csv", tmp_path / "sweep.svg"
    asked = ("--set", "mxu.rows=8,16,32", "--set", "dram.gb_per_s=25,50,100")
    facts = cli("sweep", program, *asked, "-o", table, "--plot", chart, "--json").json
    assert len(facts["rows"]) == 9 and facts["files"] == [str(table), str(chart)]
    assert len(table.read_text().splitlines()) == 10 and chart.read_text().startswith("<svg")
    shown = cli("sweep", program, "--set", "dram.capacity_mib=1,64").out
    assert "2 machines, 1 on the front, 1 cannot run it" in shown and "capacity_mib" in shown
    kept = table.read_text()
    cli("sweep", program, *asked, "-o", table, "--plot", nowhere).refused("Cannot write")
    assert table.read_text() == kept
    for wrong in ("mxu.rows", "mxu.rows=", "=8"):
        cli("sweep", program, "--set", wrong).refused("KEY=VALUE")
    cli("sweep", program, "--set", "mxu.rows=8,8").refused("same value twice")
    cli("sweep", program, "--set", "mxu.row=8").refused("mxu.row")
    cli("sweep", program).refused("--set")


def test_graphs_are_not_explained_or_swept_nor_plans_followed_by_context(
    cli: Cli, mlp: Compiled, tmp_path: Path
) -> None:
    from tests.simulate.nets import cut

    plan = tmp_path / "cut.npuplan"
    cut("npu-edge-32x32").save(plan)
    cli("simulate-llm", plan).refused("not one program")
    for asked in (("explain", "--command=0"), ("sweep", "--set=mxu.rows=8"), ("simulate-llm",)):
        cli(asked[0], mlp.graph, *asked[1:]).refused("not a program")


def test_lists_and_texts_hold_commas(cli: Cli, program: Path) -> None:
    values = "{float32 = 1.0, bfloat16 = 2.0},{float32 = 2.0, bfloat16 = 2.0}"
    rows = cli("sweep", program, "--set", f"mxu.macs_per_pe_cycle={values}", "--json").json["rows"]
    assert len(rows) == 2 and all(not row["why"] for row in rows)


def test_predicted_and_measured_are_compared(
    cli: Cli, program: Path, mlp: Compiled, tmp_path: Path
) -> None:
    folder, profile = tmp_path / "report", tmp_path / "measured.json"
    cli("simulate", mlp.program, "-o", folder)
    profile.write_text(
        cli("profile", mlp.program, "--weights", mlp.weights, "--repeats=1", "--json").out
    )
    facts = cli("compare", folder / "report.json", profile, "--json").json
    assert facts["pairs"] and not facts["only_predicted"] and not facts["only_measured"]
    assert facts["all"]["count"] == len(facts["pairs"])
    same = cli("compare", folder / "report.json", folder / "report.json", "--within=0")
    assert same.code == 0 and "+0.0 %" in same.out
    loose = tmp_path / "loose"
    cli("simulate", program, "--mode", "loose", "-o", loose)
    tight = tmp_path / "tight"
    cli("simulate", program, "-o", tight)
    off = cli("compare", loose / "report.json", tight / "report.json", "--within", "0.1")
    assert off.code == 1 and "class" in off.out
    cli("compare", profile, profile).refused("no report")
    cli("compare", folder, profile).refused("folder")
    cli("compare", tmp_path / "none", profile).refused("no file")


def test_a_language_model_is_simulated(cli: Cli, program: Path, tmp_path: Path) -> None:
    from tests.simulate.test_language_model import decoder

    file, table, chart = (tmp_path / name for name in ("d.npubin", "d.csv", "d.svg"))
    decoder().save(file)
    asked = ("--contexts", "1,64", "--batch", "1,4", "--mode", "loose")
    facts = cli("simulate-llm", file, *asked, "-o", table, "--plot", chart, "--json").json
    assert [(r["context"], r["batch"]) for r in facts["rows"]] == [(1, 1), (64, 1), (1, 4), (64, 4)]
    assert len(table.read_text().splitlines()) == 5 and chart.read_text().startswith("<svg")
    assert "tokens/s" in cli("simulate-llm", file, "--contexts=1").out
    cli("simulate-llm", program).refused("no language model")
    cli("simulate-llm", file, "--contexts", "0").refused("--contexts")
    cli("simulate-llm", file, "--batch", "x").refused("--batch")
    cli("simulate-llm", file, "--contexts", "4096").refused("No context fits")
