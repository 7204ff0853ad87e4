"""Quantized models on described machines: bytes there, the rest on the host, all values exact."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.optimization import fuse

import npusim
from npusim.frontends.onnx import from_onnx
from npusim.partition.plan import NATIVE, PartitionPlan
from tests.frontends.onnx import quantized_models as models
from tests.models.resnet import BasicBlock, ResNet
from tests.models.weights import calibrate, randomize

quantization = pytest.importorskip("onnxruntime.quantization")
MACHINES = ("npu-edge-32x32", "gemmini-8", "ethos-u55-256")


def quantized(path: Path) -> tuple[npusim.IR, Mapping[str, Any]]:
    """What ONNX Runtime's quantizer makes of a model, signed, a scale a channel."""
    signed = quantization.QuantType.QInt8
    logging.disable(logging.WARNING)
    try:
        written = models.quantized(
            path, activation_type=signed, weight_type=signed, per_channel=True
        )
    finally:
        logging.disable(logging.NOTSET)
    found = from_onnx(written)
    return found.graph, found.weights


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> tuple[npusim.IR, Mapping[str, Any]]:
    generator = torch.Generator().manual_seed(0)
    model = ResNet(BasicBlock, (2, 2, 2, 2), classes=10).eval()
    randomize(model, generator)
    calibrate(model, [(torch.randn(4, 3, 64, 64, generator=generator),)])
    model = fuse(model)  # batch norms into convolutions, as quantizers want them
    path = tmp_path_factory.mktemp("resnet") / "resnet18.onnx"
    graph = npusim.extract_ir(model, (torch.zeros(1, 3, 64, 64),))
    npusim.export_onnx(graph, path, weights=model.state_dict())
    return quantized(path)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[npusim.IR, Mapping[str, Any]]:
    return quantized(models.encoder(tmp_path_factory.mktemp("encoder") / "encoder.onnx"))


def ran(plan: PartitionPlan, weights: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    executor = npusim.DAGExecutor(plan, summary=False).load_weights(weights)
    return np.asarray(executor(x)[0])


def run_on(
    machine: str, model: tuple[npusim.IR, Mapping[str, Any]]
) -> tuple[PartitionPlan, np.ndarray, np.ndarray]:
    """The plan for a machine, what it computes, and what the definitions of its nodes do."""
    graph, weights = model
    shape = graph.inputs[0].type.shape
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    plan = npusim.partition(graph, target=machine)
    defined = npusim.partition(graph, target=machine, pin={"": "pytorch"})
    assert not any(p.is_native for p in defined.partitions)
    return plan, ran(plan, weights, x), ran(defined, weights, x)


@pytest.mark.parametrize("machine", MACHINES)
def test_resnet_18(machine: str, resnet: tuple[npusim.IR, Mapping[str, Any]]) -> None:
    plan, got, wanted = run_on(machine, resnet)
    np.testing.assert_array_equal(got, wanted)
    products = [n for n in plan.graph.nodes if n.op in ("npu.int8_conv", "npu.int8_matmul")]
    assert len(products) == 20 + 1 + 1  # convolutions, the mean over the image, the linear
    rounds = {"npu-edge-32x32": "half_up", "ethos-u55-256": "double"}.get(machine)
    assert {n.attrs.get("requantize") for n in products} == {rounds}
    assert all(plan.verdicts[n.name].is_native for n in products)
    left = {n.name: v for n, v in zip(plan.graph.nodes, plan.verdicts.values(), strict=True)
            if not v.is_native}  # fmt: skip
    if machine == "npu-edge-32x32":
        assert not left
    else:  # the image becomes bytes on the host, since the machine has no floats
        assert 0 < len(left) <= 7
        assert any("not float32" in verdict.reason for verdict in left.values())
    (program,) = (p.program for p in plan.partitions if p.executor == NATIVE)
    assert program is not None
    assert program.simulation


@pytest.mark.parametrize("machine", MACHINES)
def test_encoder(machine: str, encoder: tuple[npusim.IR, Mapping[str, Any]]) -> None:
    plan, got, wanted = run_on(machine, encoder)
    products = [n for n in plan.graph.nodes if n.op in ("npu.int8_conv", "npu.int8_matmul")]
    assert all(plan.verdicts[n.name].is_native for n in products)
    if machine == "npu-edge-32x32":  # softmax and norms are the machine's, in floats
        assert all(verdict.is_native for verdict in plan.verdicts.values())
        assert np.abs(got - wanted).mean() < 0.02
    else:
        np.testing.assert_array_equal(got, wanted)
        hosts = {n.op for n in plan.graph.nodes if not plan.verdicts[n.name].is_native}
        assert {"aten.softmax.int", "aten.layer_norm.default"} <= hosts


def test_they_are_near_the_floats_they_came_from(
    resnet: tuple[npusim.IR, Mapping[str, Any]],
) -> None:
    graph, weights = resnet
    x = np.random.default_rng(3).standard_normal(graph.inputs[0].type.shape).astype(np.float32)
    (there,) = npusim.load(npusim.compile(graph), weights)(x)  # float32 scales, on the CPU
    span = float(np.abs(np.asarray(there)).max())
    for machine in MACHINES:
        got = ran(npusim.partition(graph, target=machine), weights, x)
        assert np.abs(got - np.asarray(there)).max() <= 0.06 * span, machine
