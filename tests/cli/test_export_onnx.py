"""npusim export-onnx: a graph and a checkpoint in, an ONNX model out."""

from __future__ import annotations

from pathlib import Path

import pytest

from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.module import Module
from npusim.ir.types import TensorType

from .conftest import Cli, Compiled

onnx = pytest.importorskip("onnx")


def test_writes_a_model_that_checks(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    output = tmp_path / "net.onnx"
    facts = cli("export-onnx", mlp.graph, "-w", mlp.weights, "-o", output, "--json").json
    assert facts["ok"] is True
    assert facts["files"] == [{"path": str(output), "bytes": output.stat().st_size}]
    onnx.checker.check_model(str(output), full_check=True)
    again = cli("import", output, "-o", tmp_path / "again.json")
    assert again.code == 0


def test_weights_beside_the_model_and_an_older_opset(
    cli: Cli, mlp: Compiled, tmp_path: Path
) -> None:
    output = tmp_path / "net.onnx"
    weights = ("--weights", mlp.weights, "--external", "--opset", 18)
    assert cli("export-onnx", mlp.graph, *weights, "-o", output).code == 0
    assert (tmp_path / "net.onnx.data").exists()
    assert onnx.load(output, load_external_data=False).opset_import[0].version == 18


def test_a_module_is_written_but_for_what_has_no_form(cli: Cli, tmp_path: Path) -> None:
    x = TensorType("float32", (2,))

    def method(op: str) -> Graph:
        node = Node("n", op, ("x",), (Value("y", x),), {})
        return Graph("net", (Value("x", x),), (Output("y", "y"),), (), (), (node,))

    module, output = tmp_path / "net.json", tmp_path / "net.onnx"
    Module("net", {"run": method("aten.relu.default"), "odd": method("npu.odd")}).save(module)
    outcome = cli("export-onnx", module, "-o", output, "--json")
    assert outcome.json["left_out"] == ["odd"]
    assert [Path(f["path"]).name for f in outcome.json["files"]] == ["net.run.onnx"]
    cli("export-onnx", module, "-o", output, "--method", "odd").refused("npu.odd", "kernels")
    cli("export-onnx", module, "-o", output, "--method", "none").refused("run, odd")


def test_bad_input(cli: Cli, mlp: Compiled, tmp_path: Path) -> None:
    output = tmp_path / "net.onnx"
    cli("export-onnx", mlp.graph, "-o", output).refused("--weights", "--graph-only")
    cli("export-onnx", mlp.graph, "-w", tmp_path / "none", "-o", output).refused("none")
    cli("export-onnx", tmp_path / "none.json").refused("none.json")
    cli("export-onnx", mlp.graph, "--graph-only", "--opset", 7, "-o", output).refused("opsets 18")
    assert not output.exists()
    assert cli("export-onnx", mlp.graph, "--graph-only", "-o", output).code == 0
