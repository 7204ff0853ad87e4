"""npusim view: pictures of graphs, programs and plans."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from npusim.ir.graph import Graph
from npusim.ir.module import Module

from .conftest import FACTORIES, Cli, Compiled


@pytest.mark.parametrize("suffix", [".html", ".svg", ".mmd", ".png"])
def test_a_program_is_drawn(cli: Cli, mlp: Compiled, tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"mlp{suffix}"
    outcome = cli("view", mlp.program, "-o", picture, "--json")
    assert outcome.code == 0, outcome.err
    assert outcome.json["bytes"] == picture.stat().st_size > 100
    assert outcome.json["methods"] == ["forward"]


def test_a_profile_colours_a_program(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    profile, picture = tmp_path / "profile.json", tmp_path / "mlp.svg"
    timed = cli("profile", mlp.program, "--weights", mlp.weights, "--repeats", 2, "--json")
    profile.write_text(timed.out)
    assert cli("view", mlp.program, "-o", picture, "--profile", profile).code == 0
    assert re.search(r"[\d.]+ [µm]s · [\d.]+ %<", picture.read_text())
    other = tmp_path / "other.json"
    other.write_text(json.dumps({"method": "forward", "commands": []}))
    cli("view", mlp.program, "-o", picture, "--profile", other).refused("another program")
    other.write_text("[1")
    cli("view", mlp.program, "-o", picture, "--profile", other).refused("no profile")


def test_a_schedule_is_drawn(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    program = tmp_path / "machine.npubin"
    compiled = cli("compile", mlp.graph, "--target", "npu-edge-32x32", "-o", program)
    assert compiled.code == 0, compiled.err
    for suffix in (".svg", ".html"):
        picture = tmp_path / f"machine{suffix}"
        assert cli("view", program, "-o", picture).code == 0
        drawn = picture.read_text()
        assert re.search(r"mxu float32, tile [\d×]+", drawn)
        assert re.search(r"[\d.]+ [kM]?i?B DRAM", drawn)
        assert re.search(r"[\d.]+ [µm]s · [\d.]+ %<", drawn)  # by the schedule's estimate
    assert cli("view", mlp.program, "-o", picture).code == 0
    assert "DRAM" not in picture.read_text()


def test_a_plan_is_drawn_in_the_colours_of_its_sides(cli: Cli, tmp_path: Path) -> None:
    graph, picture = tmp_path / "partly.json", tmp_path / "partly.svg"
    assert cli("extract", f"{FACTORIES}:partly", "-o", graph).code == 0
    assert cli("partition", graph).code == 0
    assert cli("view", tmp_path / "partly.npuplan", "-o", picture).code == 0
    assert "pytorch" in picture.read_text()


def test_methods_are_drawn_together_or_alone(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    graph = Graph.load(mlp.graph)
    both = tmp_path / "both.json"
    Module("net", {"first": graph, "second": graph}).save(both)
    picture = tmp_path / "both.svg"
    assert cli("view", both, "-o", picture, "--json").json["methods"] == ["first", "second"]
    assert cli("view", both, "-o", picture, "--method", "second").code == 0
    cli("view", both, "-o", picture, "--method", "third").refused("no method", "first, second")
    cli("view", both, "-o", tmp_path / "both.mmd").refused("several methods", "--method")


def test_an_ending_without_a_format_is_refused(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    cli("view", mlp.program, "-o", tmp_path / "mlp.gif").refused(".html, .svg, .png, .mmd")
    assert not (tmp_path / "mlp.gif").exists()
