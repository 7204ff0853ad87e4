"""npusim check: coverage as a table and as an exit code."""

from __future__ import annotations

from pathlib import Path

from .conftest import FACTORIES, Cli, Compiled


def test_a_model_the_target_runs(cli: Cli, mlp: Compiled) -> None:
    outcome = cli("check", mlp.graph, "--require", 1)
    assert outcome.code == 0
    assert "100.0% native (3 native)" in outcome.out
    assert "met" in outcome.out


def test_every_other_node_is_listed_with_reason_and_line(cli: Cli) -> None:
    outcome = cli("check", f"{FACTORIES}:unsupported")
    assert outcome.code == 0, "PyTorch runs the rest"
    assert "fallback" in outcome.out
    assert "linalg_cholesky_ex" in outcome.out
    assert "factories.py:" in outcome.out
    assert "0.0% native (2 fallback)" in outcome.out


def test_too_little_coverage_is_a_no(cli: Cli, tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    assert cli("extract", f"{FACTORIES}:unsupported", "-o", graph).code == 0
    outcome = cli("check", graph, "--require", 0.95)
    assert outcome.code == 1
    assert "required: 95.0%; not met" in outcome.out


def test_all_lists_native_nodes_too(cli: Cli, mlp: Compiled) -> None:
    assert "aten.relu.default" not in cli("check", mlp.graph).out
    assert "aten.relu.default" in cli("check", mlp.graph, "--all").out


def test_json_holds_every_node(cli: Cli) -> None:
    facts = cli("check", f"{FACTORIES}:unsupported", "--require", 0.5, "--json")
    assert facts.code == 1
    assert facts.json["ok"] is False
    assert facts.json["coverage"] == 0
    (first, second) = facts.json["nodes"]
    assert first["constraint"] == second["constraint"] == "op"
    assert first["line"] > 0


def test_bad_input(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    cli("check", mlp.graph, "--target", "abacus").refused("abacus", "cpu")
    cli("check", mlp.graph, "--require", 95).refused("95")
    cli("check", tmp_path / "none.json").refused("none.json")
