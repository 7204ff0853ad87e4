"""`npusim profile`: the table, the JSON, the trace, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import Cli, Compiled


@pytest.mark.parametrize("by", ["op", "kernel", "command", "module"])
def test_a_program_is_profiled(cli: Cli, mlp: Compiled, tmp_path: Path, by: str) -> None:
    trace = tmp_path / "trace.json"
    arguments = ("profile", mlp.program, "--weights", mlp.weights, "--repeats", 2, "--by", by)
    outcome = cli(*arguments, "--threads", 1, "-o", trace)
    assert outcome.code == 0, outcome.err
    assert "GB/s" in outcome.out and "a whole run that nobody observes" in outcome.out
    head, *_ = outcome.out.splitlines()
    assert head.startswith(by) and ("source" in head) == (by == "command")
    assert json.loads(trace.read_text())["traceEvents"]


def test_the_slowest_rows_come_first_and_the_rest_is_summed(cli: Cli, mlp: Compiled) -> None:
    outcome = cli(
        "profile", mlp.program, "--weights", mlp.weights, "--repeats", 1, "--by", "command",
        "--top", 1,
    )  # fmt: skip
    assert "more," in outcome.out


def test_the_profile_as_json(cli: Cli, mlp: Compiled) -> None:
    facts = cli(
        "profile", mlp.program, "--weights", mlp.weights, "--input", mlp.x, "--repeats", 2, "--json"
    ).json
    assert facts["ok"] and facts["repeats"] == 2 and facts["run_s"] > 0
    commands = facts["commands"]
    assert {"kernel", "source", "bytes_read", "operations", "seconds"} <= commands[0].keys()
    assert facts["commands_s"] == pytest.approx(sum(c["seconds"] for c in commands))


def test_what_cannot_be_profiled_is_refused(cli: Cli, mlp: Compiled, nowhere: Path) -> None:
    good = ("profile", mlp.program, "--weights", mlp.weights, "--repeats", 1)
    cli("profile", mlp.graph).refused("is a graph, not a program")
    cli(*good, "--method", "other").refused("no method 'other'", "forward")
    cli(*good, "--context", 5).refused("no language model")
    cli(*good, "-o", nowhere).refused("Cannot write")
    cli(*good, "--by", "colour").refused("colour")
