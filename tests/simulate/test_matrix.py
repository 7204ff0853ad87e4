"""Every machine that comes along with many kinds of model: simulated, with the host, or refused.

What a pair comes to is written down, so that none changes unseen; what is simulated keeps to what
holds of every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import npusim
from npusim.errors import Error, UnsupportedOpError
from npusim.partition.plan import PartitionPlan
from npusim.simulate.saved import REPORT_CAUSES
from npusim.simulate.simulation import Simulation
from npusim.targets.override import file_data
from npusim.targets.target_config import target_names
from tests.models.mobilenet import MobileNetV3Large

from .nets import Cut, Net
from .test_language_model import decoder_module

GPUS = {"a100": "cuda:sm_80", "h200": "cuda:sm_90a"}  # and whose programs they take
MACHINES = tuple(
    name for name in target_names() if npusim.TargetConfig.named(name).hardware is not None
)
RATES = {
    "parts": ("dram.gb_per_s", "dma.bytes_per_cycle"),
    "roofline": ("roofline.memory.dram.giga_bytes_per_second",),
}


class Small(nn.Module):
    """What quantizers take: convolutions, one of groups, a pool, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.last = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.depthwise(torch.relu(self.first(x))))
        return self.last(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))


class FewBlocks(MobileNetV3Large):
    """A block of each kind: plain, gated, and gated with hard swishes."""

    BLOCKS = ((3, 16, 16, False, False, 1), (5, 72, 24, True, False, 2), (3, 72, 24, True, True, 1))


def _mobilenet() -> npusim.IR:
    model = FewBlocks(width=0.5, classes=10).eval()
    return npusim.extract_ir(model, (torch.zeros(1, 3, 32, 32),))


def _qdq() -> npusim.IR:
    """What ONNX's quantizers write: bytes to floats before each operator, and back behind it."""
    onnx = pytest.importorskip("onnx")
    helper, draw = onnx.helper, np.random.default_rng(0)
    constants = {
        "scale": np.float32(0.05),
        "zero": np.int8(0),
        "bytes": draw.integers(-99, 99, (16, 8, 3, 3)).astype(np.int8),
        "bias": draw.integers(-99, 99, 16).astype(np.int32),
        "bias_scale": np.float32(0.05 * 0.05),
    }
    quantize = lambda x, y: helper.make_node("QuantizeLinear", [x, "scale", "zero"], [y])  # noqa: E731
    floats = lambda x, y: helper.make_node("DequantizeLinear", [x, "scale", "zero"], [y])  # noqa: E731
    nodes = [
        quantize("x", "x_bytes"),
        floats("x_bytes", "x_floats"),
        floats("bytes", "w"),
        helper.make_node("DequantizeLinear", ["bias", "bias_scale"], ["b"]),
        helper.make_node("Conv", ["x_floats", "w", "b"], ["sums"], pads=[1, 1, 1, 1]),
        quantize("sums", "sum_bytes"),
        floats("sum_bytes", "sum_floats"),
        helper.make_node(
            "MaxPool", ["sum_floats"], ["pooled"], kernel_shape=[2, 2], strides=[2, 2]
        ),
        quantize("pooled", "pooled_bytes"),
        floats("pooled_bytes", "y"),
    ]
    image, small = ((1, c, n, n) for c, n in ((8, 12), (16, 6)))
    graph = helper.make_graph(
        nodes,
        "qdq",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, image)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, small)],
        [onnx.numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    return npusim.from_onnx(model).graph


def _floats(dtype: torch.dtype) -> npusim.IR:
    torch.manual_seed(0)
    return npusim.extract_ir(Net().eval().to(dtype), (torch.zeros(1, 3, 16, 16, dtype=dtype),))


def _quantized() -> npusim.IR:
    torch.manual_seed(0)
    model = Small().eval()
    graph = npusim.extract_ir(model, (torch.zeros(1, 3, 12, 12),))
    calls = np.random.default_rng(0).standard_normal((8, 3, 12, 12)).astype(np.float32)
    found = npusim.quantize(
        graph, model.state_dict(), {graph.inputs[0].name: calls}, target="gemmini-8"
    )
    return found.graph


def _cut() -> npusim.IR:
    return npusim.extract_ir(Cut().eval(), (torch.zeros(16, 64),))


def _any_batch() -> npusim.IR:
    batch = torch.export.Dim("batch", min=1, max=512)
    layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    return npusim.extract_ir(layers, (torch.zeros(8, 64),), dynamic_shapes=({0: batch},))


MODELS: dict[str, Callable[[], Any]] = {
    "float32": lambda: _floats(torch.float32),
    "float16": lambda: _floats(torch.float16),
    "bfloat16": lambda: _floats(torch.bfloat16),
    "quantized": _quantized,
    "any batch": _any_batch,
    "host between": _cut,
    "decoder": decoder_module,
    "mobilenet": _mobilenet,
    "qdq": _qdq,
}
# By machine, a letter a model: a whole Program, with the Host, Nothing runs there, Refused.
EXPECTED = {
    "a100": "PPPPPHPPP",
    "ane-m1": "NPNNNNRNN",
    "h200": "PPPPPHPPP",
    "cpu": "PPPPPHPPP",
    "ethos-u55-256": "HNNHNNRNH",
    "gemmini-8": "HNNHNNRNH",
    "npu-edge-32x32": "PPPPPHPPP",
    "scale-32-is": "PPPPPHPPP",
    "scale-32-os": "PPPPPHPPP",
    "scale-32-ws": "PPPPPHPPP",
    "tpu-v3": "PNPPPHPPP",
    "tpu-v6e": "PNPPPHPPP",
}


@cache
def graph(model: str) -> Any:
    return MODELS[model]()


@cache
def made(model: str, machine: str) -> npusim.CompiledProgram | PartitionPlan:
    """Returns a program, or a plan where the machine lacks something."""
    target = npusim.TargetConfig.named(GPUS.get(machine, machine))
    if machine in GPUS:  # whose code takes a compiler, and no part in a simulation
        target = replace(target, code_format="")
    try:
        return npusim.compile(graph(model), target)
    except UnsupportedOpError:
        return npusim.partition(graph(model), target=target)


def _named(machine: str) -> tuple[str, ...]:
    """Returns the machine where a program does not say which one it is for."""
    return (machine,) if machine in GPUS else ()


def _letter(model: str, machine: str) -> str:
    try:
        found = made(model, machine)
        npusim.simulate(found, *_named(machine))
    except Error as error:
        return "N" if "No node of" in str(error) else "R"
    return "P" if isinstance(found, npusim.CompiledProgram) else "H"


@pytest.mark.parametrize("machine", MACHINES)
def test_every_pair_comes_to_what_is_expected(machine: str) -> None:
    assert "".join(_letter(model, machine) for model in MODELS) == EXPECTED[machine]


def _holds(found: Simulation) -> None:
    """What is true of every run: parts sum to the whole, in order, and nothing is negative."""
    assert found.seconds > 0 and set(found.stalls) == set(REPORT_CAUSES)
    assert sum(found.walked.causes.values()) == found.walked.ticks
    now = found.walked.call
    for layer in found.layers:
        assert layer.timed.start == now and min(layer.timed.causes.values(), default=0) >= 0
        assert sum(layer.timed.causes.values()) == layer.timed.ticks >= 0
        now += layer.timed.ticks
    assert now == found.walked.ticks
    assert found.energy is None or min(found.energy.values()) >= 0


PAIRS = [
    (model, machine)
    for machine in MACHINES
    for model, letter in zip(MODELS, EXPECTED[machine], strict=True)
    if letter in "PH"
]


@pytest.mark.parametrize(("model", "machine"), PAIRS)
def test_what_is_simulated_keeps_the_rules(model: str, machine: str, tmp_path: Path) -> None:
    program = made(model, machine)
    named = _named(machine)
    found = npusim.simulate(program, *named)
    _holds(found)
    assert npusim.simulate(program, *named) == found  # to the tick
    hardware = npusim.TargetConfig.named(machine).hardware
    assert hardware is not None
    for setting in RATES["roofline" if hardware.npu is None else "parts"]:
        slower = _seconds(program, machine, setting, 0.5)
        assert _seconds(program, machine, setting, 4) <= found.seconds <= slower
    if hardware.npu is None:
        with pytest.raises(Error, match="no mode 'loose'"):
            npusim.simulate(program, *named, mode="loose")
    else:
        loose, tight = (npusim.simulate(program, mode=mode) for mode in ("loose", "tight"))
        _holds(loose)
        assert tight.seconds <= loose.seconds
    assert {path.name for path in found.save(tmp_path)} >= {"report.html", "report.json"}


def _seconds(program: Any, machine: str, setting: str, factor: float) -> float:
    """Returns how long it takes where a rate of its machine is so many times as high."""
    tables: Any = file_data(npusim.TargetConfig.named(machine))
    for key in setting.split("."):
        rows = tables if isinstance(tables, list) else ()
        tables = next(row for row in rows if row["name"] == key) if rows else tables[key]
    settings = [f"{setting}={tables * factor}"]
    return npusim.simulate(program, *_named(machine), overrides=settings).seconds
