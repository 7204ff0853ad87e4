"""npusim info: describing graphs and programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import npusim
from tests.runtime.hostile_programs import endless_sum

from .conftest import Cli, Compiled


def test_info_of_a_graph(cli: Cli, mlp: Compiled) -> None:
    facts = cli("info", mlp.graph, "--json").json
    assert facts["kind"] == "graph"
    assert facts["parameters"] == {"tensors": 4, "elements": 212, "bytes": 848}
    assert sum(facts["ops"].values()) == facts["nodes"]
    assert facts["inputs"][0]["shape"] == [2, 8]
    assert facts["outputs"][0]["shape"] == [2, 4]
    text = cli("info", mlp.graph).out
    assert "aten.linear.default" in text
    assert "float32[2, 8]" in text


def test_info_of_a_program(cli: Cli, mlp: Compiled) -> None:
    facts = cli("info", mlp.program, "--json").json
    memory, method = facts["memory"], facts["methods"][0]
    assert facts["kind"] == "program"
    assert facts["target"] == "cpu"
    assert sum(facts["kernels"].values()) == method["commands"]
    assert facts["buffers"]["input"] == {"count": 1, "bytes": 64}
    parts = ("weights", "persistent", "arena", "state", "constants")
    assert memory["peak"] == sum(memory[part] for part in parts) > 0
    assert "method forward" in cli("info", mlp.program).out


@pytest.mark.parametrize("kind", ["graph", "program"])
def test_report_holds_statistics_and_a_drawing(
    cli: Cli, mlp: Compiled, tmp_path: Path, kind: str
) -> None:
    report = tmp_path / "report.md"
    assert cli("info", getattr(mlp, kind), "--report", report).code == 0
    text = report.read_text("utf-8")
    assert "```mermaid" in text
    assert "## Operators" in text
    assert ("## Memory" in text) == (kind == "program")


def test_control_characters_do_not_reach_the_terminal(
    cli: Cli, mlp: Compiled, tmp_path: Path
) -> None:
    program = npusim.CompiledProgram.load(mlp.program)
    odd = tmp_path / "odd.npubin"
    replace(program, metadata={**program.metadata, "model": "\x1b]0;owned\x07"}).save(odd)
    outcome = cli("info", odd)
    assert outcome.code == 0
    assert "owned" in outcome.out
    assert "\x1b" not in outcome.out


def test_neither_graph_nor_program_is_refused(cli: Cli, tmp_path: Path) -> None:
    other = tmp_path / "other.bin"
    other.write_bytes(b"PK\x03\x04 something else")
    cli("info", other).refused("no graph, program or plan")
    other.write_bytes(b"")
    cli("info", other).refused("no graph, program or plan")


def test_a_damaged_program_is_refused(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    image = mlp.program.read_bytes()
    damaged = tmp_path / "damaged.npubin"
    for data in (image[:40], image[:-1], image[:200] + b"\xff" + image[201:], image + b"\0"):
        damaged.write_bytes(data)
        cli("info", damaged).refused("damaged.npubin")


def test_an_unwritable_report_is_refused(cli: Cli, mlp: Compiled, nowhere: Path) -> None:
    cli("info", mlp.graph, "--report", nowhere).refused("does not exist")


def test_info_says_what_a_program_asks_for_and_run_refuses_it(cli: Cli, tmp_path: Path) -> None:
    path, x = tmp_path / "sum.npubin", tmp_path / "x.npy"
    endless_sum(16, 1 << 30).save(path)
    np.save(x, np.ones(1, np.float32))
    facts = cli("info", path, "--json").json
    steps = 16 * (1 << 30) + 16
    assert facts["methods"][0]["work"] == {"steps": steps, "greatest": steps, "uncounted": 0}
    assert facts["init_work"] == {"steps": 0, "greatest": 0, "uncounted": 0}
    assert f"{steps:,} steps at most" in cli("info", path).out
    run = ("run", path, "--input", x, "-o", tmp_path / "out")
    cli(*run, "--max-work", steps - 1).refused(f"max_work is {steps - 1}", "net.py:3")
    declared = facts["memory"]["declared"]
    assert declared == 4 + 64  # an input and sixteen sums
    row = next(line for line in cli("info", path).out.splitlines() if "declared" in line)
    assert row.split() == ["declared", "68", "B"]
    cli(*run, "--max-memory", declared - 1).refused(f"max_memory is {declared - 1}")
    cli(*run, "--max-memory", "1.5G").refused("no number of bytes")
    assert not (tmp_path / "out").exists()


def test_info_shows_schedules(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    path = tmp_path / "npu.npubin"
    assert cli("compile", mlp.graph, "-o", path, "--target", "npu-edge-32x32").code == 0
    facts = cli("info", path, "--json").json
    assert facts["machine"] == "npu-edge-32x32"
    rows = facts["schedules"]["forward"]
    assert [row["form"] for row in rows].count("product") == 2
    assert all(row["cycles"] >= row["least_cycles"] > 0 for row in rows)
    assert sum(row["dram_bytes"] for row in rows) >= 848
    text = cli("info", path).out
    assert "schedule of forward on npu-edge-32x32" in text and "mxu float32" in text
    assert "schedule" not in cli("info", mlp.program).out
    assert "schedules" not in cli("info", mlp.program, "--json").json
