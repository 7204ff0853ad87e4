"""npusim import: an ONNX file in, a graph and a checkpoint out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npusim

from .conftest import Cli

onnx = pytest.importorskip("onnx")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Returns a model with an open batch and one weight."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    net (float[n, 4] x) => (float[n, 3] y) { y = MatMul(x, w) }"""
    proto = onnx.parser.parse_model(text)
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    onnx.save(proto, tmp_path / "net.onnx")
    return tmp_path / "net.onnx"


def test_writes_a_graph_and_its_weights(cli: Cli, path: Path, tmp_path: Path) -> None:
    output, weights = tmp_path / "net.json", tmp_path / "net.safetensors"
    facts = cli(
        "import", path, "-o", output, "--weights", weights, "--shape", "x=2x4", "--json"
    ).json
    assert facts["ok"] is True
    assert facts["weights"]["bytes"] == weights.stat().st_size
    (y,) = npusim.load(npusim.compile(output), weights)(np.ones((2, 4), np.float32))
    np.testing.assert_array_equal(y, np.full((2, 3), [18, 22, 26]))


def test_dimensions_that_calls_choose(cli: Cli, path: Path, tmp_path: Path) -> None:
    output, weights = tmp_path / "net.json", tmp_path / "net.safetensors"
    for dynamic in ("n=8", "n=2:8"):
        cli("import", path, "-o", output, "--weights", weights, "--dynamic", dynamic)
        session = npusim.load(npusim.compile(output), weights)
        assert [session(np.ones((n, 4), np.float32))[0].shape[0] for n in (3, 8)] == [3, 8]
    for wrong in ("n", "n=some", "n=1:2:3", "m=8", "n=9:8"):
        assert cli("import", path, "-o", output, "--dynamic", wrong).code == 2


def test_open_shapes_and_bad_options_are_bad_input(cli: Cli, path: Path, tmp_path: Path) -> None:
    output = tmp_path / "net.json"
    outcome = cli("import", path, "-o", output)
    assert outcome.code == 2
    assert "`--shape x=1x4`" in outcome.err, "the hint has the model's own names"
    assert cli("import", path, "-o", output, "--shape", "x=2xfour").code == 2
    assert cli("import", path, "-o", output, "--value", f"x={path}").code == 2
    assert cli("import", tmp_path / "none.onnx", "-o", output).code == 2
    assert not output.exists()


@pytest.mark.parametrize("verb", ["compile", "partition"])
def test_programs_are_made_of_a_model_as_it_is(
    cli: Cli, path: Path, tmp_path: Path, verb: str
) -> None:
    proto = onnx.load(path)
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    proto.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(proto, path)
    program, weights = tmp_path / "net.out", tmp_path / "net.weights"
    cli(verb, path, "-o", program).refused(f"npusim {verb} {path} --weights ", "net.safetensors")
    assert not program.exists()
    made = cli(verb, path, "-o", program, "--weights", weights)
    assert made.code == 0 and str(weights) in made.out, made.err
    weights = weights.rename(tmp_path / "net.safetensors")
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    ran = cli("run", program, "--weights", weights, "--input", tmp_path / "x.npy", "-o", tmp_path)
    assert ran.code == 0, ran.err
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.full((2, 3), [18, 22, 26]))
    graph = tmp_path / "g.json"
    assert cli("import", path, "-o", graph).code == 0
    cli(verb, graph, "-o", program, "--weights", weights).refused("holds no weights")


@pytest.mark.parametrize("verb", ["info", "check", "compile", "partition", "view"])
def test_open_shapes_of_a_model_name_the_verb_that_closes_them(
    cli: Cli, path: Path, tmp_path: Path, verb: str
) -> None:
    outputs = ("-o", tmp_path / "n.svg") if verb == "view" else ()
    cli(verb, path, *outputs).refused("--shape x=1x4", f"npusim import {path}")
