"""Models that ONNX Runtime's quantizer wrote: computed in bytes, they agree with ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import npusim
from npusim.frontends.onnx import from_onnx
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig
from tests.frontends.onnx import quantized_models as models

ort = pytest.importorskip("onnxruntime")
quantization = pytest.importorskip("onnxruntime.quantization")

FORMAT, TYPE = quantization.QuantFormat, quantization.QuantType
UNSIGNED, SIGNED = TYPE.QUInt8, TYPE.QInt8

# Seven bits of signed weights beside unsigned activations: with eight, ONNX Runtime's sums of two
# products saturate at 16 bits on processors without VNNI.
STATIC = {
    "per_channel": {
        "per_channel": True,
        "activation_type": UNSIGNED,
        "weight_type": SIGNED,
        "reduce_range": True,
    },
    "signed": {"per_channel": False, "activation_type": SIGNED, "weight_type": SIGNED},
    "unsigned": {"per_channel": False, "activation_type": UNSIGNED, "weight_type": UNSIGNED},
}
DYNAMIC = {
    "per_tensor": {"weight_type": SIGNED, "reduce_range": True},
    "per_channel": {"weight_type": SIGNED, "per_channel": True, "reduce_range": True},
    "unsigned": {"weight_type": UNSIGNED},
}


def outputs(path: Path, inputs: dict[str, Any], *, plainly: bool) -> tuple[Any, Any]:
    """Returns npusim's and ONNX Runtime's result; `plainly`: of the operators as they stand."""
    options = ort.SessionOptions()
    if plainly:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, inputs)
    imported = from_onnx(path)
    run = npusim.load(npusim.compile(imported.graph), imported.weights)
    return np.asarray(run(*inputs.values())[0]), expected


def products(path: Path) -> Counter[str]:
    """Returns how many products of each kind a compiled model has."""
    graph = run_passes(from_onnx(path).graph, TargetConfig.named("cpu"))
    kinds = ("int8_conv", "int8_matmul", "conv", "linear", "matmul")
    found = (node.op.split(".")[1] for node in graph.nodes)
    return Counter(kind for kind in found if kind in kinds)


@pytest.mark.parametrize("style", STATIC)
@pytest.mark.parametrize("format", [FORMAT.QDQ, FORMAT.QOperator], ids=["qdq", "qoperator"])
def test_convolutions_are_bit_equal(format: Any, style: str, tmp_path: Path) -> None:
    model = models.residual_net(tmp_path / "net.onnx")
    path = models.quantized(model, quant_format=format, **STATIC[style])
    assert products(path) == {"int8_conv": 8, "int8_matmul": 1}
    for inputs in models.inputs_of(model, 3):
        got, expected = outputs(path, inputs, plainly=False)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("style", STATIC)
@pytest.mark.parametrize("format", [FORMAT.QDQ, FORMAT.QOperator], ids=["qdq", "qoperator"])
def test_encoder_agrees(format: Any, style: str, tmp_path: Path) -> None:
    model = models.encoder(tmp_path / "net.onnx")
    path = models.quantized(model, quant_format=format, **STATIC[style])
    assert products(path) == {"int8_matmul": 8}
    for inputs in models.inputs_of(model, 2):
        got, expected = outputs(path, inputs, plainly=True)
        np.testing.assert_allclose(got, expected, atol=2e-6)
        # Its optimizer puts products and softmax of its own, which round elsewhere.
        got, expected = outputs(path, inputs, plainly=False)
        assert np.quantile(np.abs(got - expected), 0.5) <= 0.01 * np.abs(expected).max()


@pytest.mark.parametrize("style", DYNAMIC)
@pytest.mark.parametrize("name", ["residual_net", "encoder"])
def test_dynamically_quantized(name: str, style: str, tmp_path: Path) -> None:
    model = getattr(models, name)(tmp_path / "net.onnx")
    path = models.quantized(model, dynamic=True, **DYNAMIC[style])
    found = products(path)
    assert found["int8_matmul"] == (6 if name == "encoder" else 1)
    assert found["int8_conv"] == (0 if name == "encoder" else 8)
    for inputs in models.inputs_of(model, 2):
        got, expected = outputs(path, inputs, plainly=False)
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=2e-6)
