"""npusim import on files that are broken, hostile, too large or of another world: exit code 2 and
one sentence that says what to do."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .conftest import Cli

onnx = pytest.importorskip("onnx")

TEXT = """<ir_version: 10, opset_import: ["" : 21, "com.example" : 1]>
    net (float[2, 4] x) => (float[2, 4] y) { h = MatMul(x, w) y = Relu(h) }"""


def model() -> Any:
    proto = onnx.parser.parse_model(TEXT)
    weight = np.arange(16, dtype=np.float32).reshape(4, 4)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    return proto


def unknown_operator(proto: Any) -> None:
    proto.graph.node[1].op_type, proto.graph.node[1].domain = "Twist", "com.example"


def cyclic(proto: Any) -> None:
    proto.graph.node[0].input[0] = "y"


def doubly_defined(proto: Any) -> None:
    proto.graph.node[1].output[0] = "h"


def unknown_attribute(proto: Any) -> None:
    proto.graph.node[1].attribute.append(onnx.helper.make_attribute("sideways", 1))


def future(proto: Any) -> None:
    proto.opset_import[0].version = 999


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (unknown_operator, ("com.example.Twist (1)", "register_translation")),
        (cyclic, ("breaks ONNX's rules", "topologically sorted", "Export it again")),
        (doubly_defined, ("breaks ONNX's rules", "SSA", "Export it again")),
        (unknown_attribute, ("breaks ONNX's rules", "sideways", "Export it again")),
        (future, ("opset 999", "pip install -U onnx")),
    ],
)
def test_a_model_that_cannot_be_meant(
    edit: Callable[[Any], None], words: tuple[str, ...], cli: Cli, tmp_path: Path
) -> None:
    proto, path = model(), tmp_path / "net.onnx"
    edit(proto)
    path.write_bytes(proto.SerializeToString())
    cli("import", path, "-o", tmp_path / "net.json").refused(*words)
    assert not (tmp_path / "net.json").exists()


def test_a_truncated_file(cli: Cli, tmp_path: Path) -> None:
    whole, path = model().SerializeToString(), tmp_path / "net.onnx"
    for end in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        cli("import", path, "-o", tmp_path / "net.json").refused(str(path))


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """Returns a model whose weight is in weights.bin."""
    path = tmp_path / "net.onnx"
    onnx.save_model(
        model(), path, save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    return path


def test_external_data_that_is_missing_or_cut(cli: Cli, external: Path, tmp_path: Path) -> None:
    data = tmp_path / "weights.bin"
    os.truncate(data, 7)
    cli("import", external, "-o", tmp_path / "net.json").refused("weights.bin", "truncated")
    data.unlink()
    cli("import", external, "-o", tmp_path / "net.json").refused("weights.bin", "next to the model")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "a/../../secret"])
def test_external_data_that_points_elsewhere(
    location: str, cli: Cli, external: Path, tmp_path: Path
) -> None:
    proto = onnx.load(external, load_external_data=False)
    for entry in proto.graph.initializer[0].external_data:
        entry.value = location if entry.key == "location" else entry.value
    external.write_bytes(proto.SerializeToString())
    cli("import", external, "-o", tmp_path / "net.json").refused("outside the model's folder")


# ---- large models ----


def test_a_model_of_more_than_two_gigabytes_is_mapped(cli: Cli, tmp_path: Path) -> None:
    """The weights are a sparse file: what reads them whole would need them in memory."""
    rows, columns = 1 << 15, 1 << 14
    text = f"""<ir_version: 10, opset_import: ["" : 21]>
        big (float[1, {rows}] x) => (float[1, {columns}] y) {{ y = MatMul(x, w) }}"""
    proto = onnx.parser.parse_model(text)
    weight = proto.graph.initializer.add(name="w", data_type=1, dims=[rows, columns])
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "big.bin"), ("offset", "4096"), ("length", f"{1 << 31}")):
        weight.external_data.add(key=key, value=value)
    path, data = tmp_path / "big.onnx", tmp_path / "big.bin"
    path.write_bytes(proto.SerializeToString())
    data.touch()
    os.truncate(data, 4096 + (1 << 31))
    facts = cli("import", path, "-o", tmp_path / "big.json", "--json").json
    assert facts["graph"]["parameters"]["bytes"] == 1 << 31
    assert (tmp_path / "big.json").stat().st_size < 10_000


def test_a_file_that_is_larger_than_onnx_files_can_be(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "big.onnx"
    path.write_bytes(model().SerializeToString())
    os.truncate(path, 1 << 31)
    cli("import", path, "-o", tmp_path / "net.json").refused("larger than 2 GiB", "beside")
