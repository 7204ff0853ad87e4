"""npusim run and bench: programs over arrays from files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import npusim

from .conftest import Cli, Compiled
from .factories import mlp as mlp_factory
from .factories import two_inputs as two_inputs_factory


def _run(cli: Cli, built: Compiled, out: Path, *inputs: object, **options: object):
    flags = [part for item in inputs for part in ("--input", item)]
    flags += [part for key, value in options.items() for part in (f"--{key}", value)]
    return cli("run", built.program, "--weights", built.weights, *flags, "-o", out)


@pytest.mark.parametrize("prefix", ["", "{name}="])
def test_outputs_equal_pytorch(cli: Cli, mlp: Compiled, tmp_path: Path, prefix: str) -> None:
    name = cli("info", mlp.program, "--json").json["methods"][0]["inputs"][0]["name"]
    outcome = _run(cli, mlp, tmp_path / "out", prefix.format(name=name) + str(mlp.x), threads=2)
    assert outcome.code == 0, outcome.err
    (path,) = (tmp_path / "out").iterdir()
    with torch.inference_mode():
        expected = mlp_factory()[0](torch.from_numpy(np.load(mlp.x))).numpy()
    np.testing.assert_allclose(np.load(path), expected, rtol=1e-5, atol=1e-6)


def test_several_inputs_by_name_and_position(
    cli: Cli, two_inputs: Compiled, tmp_path: Path
) -> None:
    model, (x,), kwargs = two_inputs_factory()
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "y.npy", kwargs["y"].numpy())
    method = cli("info", two_inputs.program, "--json").json["methods"][0]
    second = method["inputs"][1]["name"]
    outcome = _run(
        cli, two_inputs, tmp_path / "out", f"{second}={tmp_path / 'y.npy'}", tmp_path / "x.npy"
    )
    assert outcome.code == 0, outcome.err
    with torch.inference_mode():
        expected = model(x, **kwargs)
    for spec, tensor in zip(method["outputs"], expected.values(), strict=True):
        found = np.load(tmp_path / "out" / f"{spec['name']}.npy")
        np.testing.assert_allclose(found, tensor.numpy(), rtol=1e-5, atol=1e-6)


def test_json_lists_the_outputs(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    outcome = cli(
        "run", mlp.program, "--weights", mlp.weights, "--input", mlp.x, "-o", tmp_path, "--json"
    )
    (row,) = outcome.json["outputs"]
    assert row["shape"] == [2, 4]
    assert row["dtype"] == "float32"
    assert Path(row["path"]).exists()


def test_wrong_inputs_are_refused(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    out = tmp_path / "out"
    wrong, other = tmp_path / "wrong.npy", tmp_path / "other.npy"
    np.save(wrong, np.zeros((2, 9), np.float32))
    np.save(other, np.zeros((2, 8), np.complex64))
    text = tmp_path / "text.npy"
    text.write_text("not an array")
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    _run(cli, mlp, out).refused("1 input", "0 given")
    _run(cli, mlp, out, mlp.x, mlp.x).refused("1 input", "2 given")
    _run(cli, mlp, out, f"nobody={mlp.x}").refused("no input 'nobody'")
    _run(cli, mlp, out, tmp_path / "none.npy").refused("no file")
    _run(cli, mlp, out, wrong).refused("9")
    _run(cli, mlp, out, other).refused("complex64")
    _run(cli, mlp, out, text).refused("not a .npy file")
    _run(cli, mlp, out, pickled).refused("not a .npy file")
    assert not out.exists()


def test_an_input_given_twice_is_refused(cli: Cli, two_inputs: Compiled, tmp_path: Path) -> None:
    name = cli("info", two_inputs.program, "--json").json["methods"][0]["inputs"][0]["name"]
    twice = f"{name}={two_inputs.x}"
    _run(cli, two_inputs, tmp_path, twice, twice).refused("given twice")


def test_wrong_weights_are_refused(
    cli: Cli, mlp: Compiled, two_inputs: Compiled, tmp_path: Path
) -> None:
    arguments = ("run", mlp.program, "--input", mlp.x, "-o", tmp_path / "out")
    cli(*arguments, "--weights", tmp_path / "none.safetensors").refused("no file")
    cli(*arguments, "--weights", two_inputs.weights).refused("0.weight")
    cli(*arguments).refused()
    truncated = tmp_path / "truncated.safetensors"
    truncated.write_bytes(mlp.weights.read_bytes()[:-10])
    cli(*arguments, "--weights", truncated).refused("truncated.safetensors")
    poisoned = tmp_path / "poisoned.safetensors"
    state = load_file(mlp.weights)
    state["0.weight"][0, 1] = float("nan")
    save_file(state, poisoned)
    cli(*arguments, "--weights", poisoned).refused("NaN: 0.weight at element 1")
    assert not (tmp_path / "out").exists()


def test_unused_weights_are_named(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    spare = tmp_path / "spare.safetensors"
    save_file({**load_file(mlp.weights), "spare": torch.zeros(2)}, spare)
    arguments = ("run", mlp.program, "--input", mlp.x, "--weights", spare, "-o", tmp_path / "out")
    assert cli(*arguments, "--json").json["unused_weights"] == ["spare"]


def test_a_graph_is_no_program(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    outcome = cli("run", mlp.graph, "--weights", mlp.weights, "--input", mlp.x, "-o", tmp_path)
    outcome.refused("is a graph", "npusim compile")


def test_an_unknown_device_is_refused(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    _run(cli, mlp, tmp_path / "out", mlp.x, device="abacus").refused("abacus")


def test_an_output_that_is_a_file_is_refused(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    _run(cli, mlp, taken, mlp.x).refused("taken")
    assert taken.read_text() == "mine"


def test_an_output_cannot_leave_its_folder(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    program = npusim.CompiledProgram.load(mlp.program)
    (method,) = program.methods
    (output,) = method.outputs
    method = replace(method, outputs=(replace(output, name="../escaped"),))
    hostile = tmp_path / "hostile.npubin"
    replace(program, methods=(method,)).save(hostile)
    arguments = ("--weights", mlp.weights, "--input", mlp.x, "-o", tmp_path / "out")
    cli("run", hostile, *arguments).refused("../escaped")
    assert list(tmp_path.iterdir()) == [hostile]


def test_bench_reports_times_and_memory(cli: Cli, mlp: Compiled) -> None:
    arguments = ("bench", mlp.program, "--weights", mlp.weights, "--runs", 7, "--threads", 1)
    facts = cli(*arguments, "--json").json
    assert facts["runs"] == 7
    assert facts["min_s"] <= facts["p10_s"] <= facts["median_s"] <= facts["p90_s"]
    assert facts["p90_s"] <= facts["max_s"]
    assert facts["load_s"] > 0
    assert facts["peak_rss_bytes"] > 1 << 20
    assert "median" in cli(*arguments).out


def test_bench_takes_inputs_from_files(cli: Cli, mlp: Compiled) -> None:
    arguments = ("bench", mlp.program, "--weights", mlp.weights, "--runs", 1)
    assert cli(*arguments, "--input", mlp.x).code == 0
    cli(*arguments, "--input", "none.npy").refused("no file")
    cli(*arguments[:-1], 0).refused("--runs")
