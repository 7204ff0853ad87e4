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
    name = cli("info", mlp.program, "--json").json["methods"][0]["inputs"][0]["name"]
    _run(cli, mlp, out).refused(f"Input '{name}' missing", "--input NAME=FILE", "float32")
    _run(cli, mlp, out, mlp.x, mlp.x).refused("1 input", "2 given")
    _run(cli, mlp, out, f"nobody={mlp.x}").refused("no input 'nobody'")
    _run(cli, mlp, out, tmp_path / "none.npy").refused("no file")
    _run(cli, mlp, out, wrong).refused("9")
    _run(cli, mlp, out, other).refused("complex64")
    _run(cli, mlp, out, text).refused("no .npy or .npz file")
    _run(cli, mlp, out, pickled).refused("no .npy or .npz file")
    assert not out.exists()


def test_inputs_from_an_archive(cli: Cli, two_inputs: Compiled, tmp_path: Path) -> None:
    _, (x,), kwargs = two_inputs_factory()
    names = [
        i["name"] for i in cli("info", two_inputs.program, "--json").json["methods"][0]["inputs"]
    ]
    archive, part = tmp_path / "all.npz", tmp_path / "part.npz"
    arrays = dict(zip(names, (x.numpy(), kwargs["y"].numpy()), strict=True))
    np.savez(archive, **arrays)
    np.savez(part, **{names[0]: arrays[names[0]]})
    single = tmp_path / "y.npy"
    np.save(single, arrays[names[1]])
    assert _run(cli, two_inputs, tmp_path / "a", archive).code == 0
    assert _run(cli, two_inputs, tmp_path / "b", part, single).code == 0
    for a, b in zip(
        sorted((tmp_path / "a").iterdir()), sorted((tmp_path / "b").iterdir()), strict=True
    ):
        np.testing.assert_array_equal(np.load(a), np.load(b))
    _run(cli, two_inputs, tmp_path / "c", part).refused(f"'{names[1]}' missing")
    _run(cli, two_inputs, tmp_path / "c", f"{names[0]}={archive}").refused("archive", names[1])
    archive.write_bytes(archive.read_bytes()[:-40])
    _run(cli, two_inputs, tmp_path / "c", archive).refused("no .npy or .npz file")


def test_outputs_are_summed_up_without_a_folder(cli: Cli, mlp: Compiled) -> None:
    outcome = cli("run", mlp.program, "--weights", mlp.weights, "--input", mlp.x)
    assert outcome.code == 0, outcome.err
    assert "float32[2, 4]" in outcome.out and "[" in outcome.out.split("float32[2, 4]")[1]
    arguments = ("run", mlp.program, "--weights", mlp.weights, "--input", mlp.x, "--json")
    (row,) = cli(*arguments).json["outputs"]
    assert row["path"] is None and row["shape"] == [2, 4]


@pytest.mark.parametrize("verb", ["run", "bench", "profile"])
def test_weights_come_from_a_folder(cli: Cli, mlp: Compiled, tmp_path: Path, verb: str) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(mlp.weights.read_bytes())
    short = () if verb == "run" else ("--seconds", "0")
    outcome = cli(verb, mlp.program, "--weights", folder, "--input", mlp.x, *short)
    assert outcome.code == 0, outcome.err


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


def test_bench_and_profile_say_the_sizes(cli: Cli, tmp_path: Path) -> None:
    x = torch.ones(2, 3)
    batch = torch.export.Dim("batch", max=6)
    graph = npusim.extract_ir(torch.nn.Tanh().eval(), (x,), dynamic_shapes={"input": {0: batch}})
    program = tmp_path / "open.npubin"
    npusim.compile(graph).save(program)
    for verb in ("bench", "profile"):
        arguments = (verb, program, "--seconds", 0, "--threads", 1)
        assert "batch = 6 (the greatest)" in cli(*arguments).out
        chosen = cli(*arguments, "--sizes", "batch=4").out
        assert "batch = 4" in chosen and "greatest" not in chosen
        cli(*arguments, "--sizes", "batch=7").refused("batch=7", "1 … 6")
        cli(*arguments, "--sizes", "rows=1").refused("rows=1")
        cli(*arguments, "--sizes", "batch=2,4").refused("one of each")
