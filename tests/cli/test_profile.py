"""`npusim profile`: the table, the JSON, the trace, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import npusim
from npusim.profile.saved import profile_facts, read_profile

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


def test_a_profile_is_read_back(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    arguments = ("profile", mlp.program, "--weights", mlp.weights, "--repeats", 1)
    facts = cli(*arguments, "--json").json
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(facts))
    profile = read_profile(file)
    again = json.loads(json.dumps(profile_facts(profile)))
    assert again == {key: facts[key] for key in again}
    linear = next(c for c in profile.commands if c.kernel in ("linear", "gemm"))
    assert linear.params["m"] > 0 and linear.params["n"] > 0 and linear.params["k"] > 0


def test_arrays_end_where_only_zeros_follow(tmp_path: Path) -> None:
    texts = dict.fromkeys(("library", "node", "op", "module", "source"), "")
    counts = dict.fromkeys(("index", "bytes_read", "bytes_written", "operations"), 0)
    params = {"rank": 2, "element_size": 4, "shape": [3, 5], "x_strides": [0, 1]}
    command = {"kernel": "copy", "seconds": 1.0, "params": params, **texts, **counts}
    run = {"context": 0, "repeats": 1, "run_s": 1.0, "commands": [command]}
    facts = {**run, **dict.fromkeys(("model", "method", "target", "device"), "")}
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(facts))
    found = read_profile(file).commands[0].params
    assert found["shape"] == (3, 5, 0, 0, 0, 0, 0, 0)[: len(found["shape"])]
    assert len(found["shape"]) == len(found["x_strides"]) > 2 and sum(found["x_strides"]) == 1
    for wrong in ([], [0] * 99, 3):
        file.write_text(
            json.dumps({**facts, "commands": [{**command, "params": {"shape": wrong}}]})
        )
        with pytest.raises(npusim.Error, match="no parameter 'shape' of that form"):
            read_profile(file)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (("run_s",), "long", "'run_s' of it is no time"),
        (("run_s",), float("inf"), "'run_s' of it is no time"),
        (("device",), None, "'device' of it is no text"),
        (("commands",), [], "no list of commands"),
        (("commands", 0), 3, "commands[0] is no object"),
        (("commands", 0, "kernel"), "magic", "a kernel 'magic', which there is not"),
        (("commands", 0, "seconds"), -1.0, "'seconds' of commands[0] is no time"),
        (("commands", 0, "operations"), 1.5, "'operations' of commands[0] is no integer"),
        (("commands", 0, "params"), {"colour": 1}, "no parameter 'colour'"),
        (("commands", 0, "params"), {"m": [1, 2]}, "no parameter 'm' of that form"),
        (("commands", 0, "params"), {"m": True}, "no parameter 'm' of that form"),
    ],
)
def test_no_profile_is_refused(
    cli: Cli, mlp: Compiled, tmp_path: Path, place: tuple[object, ...], value: object, said: str
) -> None:
    facts = cli("profile", mlp.program, "--weights", mlp.weights, "--repeats", 1, "--json").json
    inner = facts
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(facts))
    with pytest.raises(npusim.Error) as refusal:
        read_profile(file)
    assert said in str(refusal.value) and "profile.json" in str(refusal.value)


def test_a_file_that_is_no_json_is_no_profile(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    for text in ("", "{", "[" * 100_000, "null"):
        file.write_text(text)
        with pytest.raises(npusim.Error, match=r"profile\.json"):
            read_profile(file)
    with pytest.raises(npusim.Error, match="Cannot read"):
        read_profile(tmp_path / "missing.json")


def test_what_cannot_be_profiled_is_refused(cli: Cli, mlp: Compiled, nowhere: Path) -> None:
    good = ("profile", mlp.program, "--weights", mlp.weights, "--repeats", 1)
    cli("profile", mlp.graph).refused("is a graph, not a program")
    cli(*good, "--method", "other").refused("no method 'other'", "forward")
    cli(*good, "--context", 5).refused("no language model")
    cli(*good, "-o", nowhere).refused("Cannot write")
    cli(*good, "--by", "colour").refused("colour")
