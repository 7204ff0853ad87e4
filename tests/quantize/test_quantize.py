"""npusim.quantize as a whole: products of bytes, what they compute, and how near to float32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import npusim
from npusim.ops.int8_reference import INT8_CONV, INT8_MATMUL
from npusim.ops.reference import run_graph
from npusim.partition.plan import PartitionPlan
from npusim.passes.run import in_products_of_bytes, run_passes
from npusim.quantize.metrics import sqnr
from npusim.targets import TargetConfig

from .models import Model, made, outputs, perceptron, residual


def products(graph: npusim.IR) -> list:
    lowered = run_passes(graph, TargetConfig.named("cpu"))
    return [node for node in lowered.nodes if node.op in (INT8_CONV, INT8_MATMUL)]


@pytest.fixture(scope="module")
def net() -> Model:
    return residual()


@pytest.mark.parametrize("ranges", ["minmax", "percentile", "mse"])
@pytest.mark.parametrize("activations", ["uint8", "int8"])
def test_static_models_are_near_to_float32(net: Model, ranges: str, activations: str) -> None:
    made = npusim.quantize(net.graph, net.weights, net.data, ranges=ranges, activations=activations)
    assert made.report.quantized == len(made.report.layers) == 5
    x = net.data["x"]
    found = outputs(made.graph, made.weights, x)
    assert sqnr(found, outputs(net.graph, net.weights, x)) > 25
    assert len(products(made.graph)) == 5


def _native(plan: PartitionPlan) -> int:
    """Returns how many commands of a plan's programs are products of bytes."""
    programs = [part.program for part in plan.partitions if part.is_native and part.program]
    names = [p.kernels[c.kernel].name for p in programs for m in p.methods for c in m.commands]
    return sum(name == "conv_int8" for name in names)


@pytest.mark.parametrize(
    ("target", "activations"),
    [(None, "uint8"), ("gemmini-8", "int8"), ("ethos-u55-256", "uint8")],
)
def test_bytes_are_those_that_a_target_multiplies(
    net: Model, target: str | None, activations: str
) -> None:
    """What is asked for stays so in the model; an array of int8 alone runs it shifted."""
    made = npusim.quantize(net.graph, net.weights, net.data, target=target)
    asked = npusim.quantize(net.graph, net.weights, net.data, activations=activations)
    assert made.graph == asked.graph
    if target:
        plan = npusim.partition(made.graph, target=target)
        assert _native(plan) >= 5  # means are products, too
    if activations == "int8":
        other = npusim.quantize(
            net.graph, net.weights, net.data, target=target, activations="uint8"
        )
        assert {n.type.dtype for n in products(other.graph)} == {"uint8", "float32"}
        assert _native(npusim.partition(other.graph, target=target)) >= 5
    dynamic = npusim.quantize(net.graph, net.weights, mode="dynamic", target=target)
    assert dynamic.report.quantized == 5


def test_values_between_layers_stay_bytes(net: Model) -> None:
    """The stem, the sum, the pool and the concatenation: all but the first and the last value."""
    made = npusim.quantize(net.graph, net.weights, net.data)
    kinds = [node.type.dtype for node in products(made.graph)]
    assert kinds == ["uint8"] * 4 + ["float32"]
    lowered = run_passes(made.graph, TargetConfig.named("cpu"))
    moved = [n for n in lowered.nodes if n.op in ("aten.max_pool2d.default", "aten.cat.default")]
    assert [node.type.dtype for node in moved] == ["uint8", "uint8"]
    assert any(node.inputs[7] is not None for node in products(made.graph))  # the sum


class Apart(nn.Module):
    """A convolution whose result is taken apart, each part with a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.last = nn.Conv2d(3, 12, 1), nn.Conv2d(4, 5, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.whole(x).split(4, 1)
        return self.last(q.relu() * functional.silu(k) + v)


def test_a_part_of_a_layers_result_has_functions_of_its_own() -> None:
    net = made(Apart(), torch.randn(1, 3, 4, 4))
    result = npusim.quantize(net.graph, net.weights, net.data)
    assert result.report.quantized == 2
    x = net.data["x"]
    found = outputs(result.graph, result.weights, x)
    assert sqnr(found, outputs(net.graph, net.weights, x)) > 25


def test_programs_are_equal_to_the_reference(net: Model) -> None:
    """The products of bytes that passes make give the bytes that their references give."""
    made = npusim.quantize(net.graph, net.weights, net.data)
    lowered = run_passes(made.graph, TargetConfig.named("cpu"))
    weights = {key: torch.from_numpy(array) for key, array in made.weights.items()}
    x = net.data["x"][:1]
    (expected,) = run_graph(lowered, [torch.from_numpy(x)], weights)
    assert np.allclose(outputs(made.graph, made.weights, x), expected.numpy(), atol=1e-6)


@pytest.mark.parametrize("model", [residual, perceptron])
def test_dynamic_models_need_no_data(model) -> None:
    net = model()
    made = npusim.quantize(net.graph, net.weights, mode="dynamic")
    assert made.report.quantized == len(made.report.layers) == len(products(made.graph))
    x = next(iter(net.data.values()))
    assert sqnr(outputs(made.graph, made.weights, x), outputs(net.graph, net.weights, x)) > 25
    zeros = np.zeros_like(x)
    found = outputs(made.graph, made.weights, zeros)
    assert sqnr(found, outputs(net.graph, net.weights, zeros)) > 25


def test_weights_are_those_of_the_result_alone(net: Model, tmp_path) -> None:
    made = npusim.quantize(net.graph, net.weights, net.data, skip=["head"])
    kinds = {key: array.dtype.name for key, array in made.weights.items()}
    assert kinds["stem.weight_int8"] == "int8" and kinds["left.bias_int32"] == "int32"
    assert kinds["head.weight"] == "float32" and "norm.running_var" not in kinds
    assert set(kinds) == {weight.key for weight in made.graph.weights}
    size = made.save(tmp_path / "g.json", tmp_path / "w.safetensors")
    assert size == (tmp_path / "w.safetensors").stat().st_size
    again = npusim.IR.load(tmp_path / "g.json")
    x = net.data["x"]
    stored = outputs(again, tmp_path / "w.safetensors", x)
    assert np.array_equal(stored, outputs(made.graph, made.weights, x))


def test_quantizing_twice_gives_the_same(net: Model) -> None:
    first, second = (
        npusim.quantize(net.graph, net.weights, net.data, ranges="mse", threads=threads)
        for threads in (1, 2)
    )
    assert first.graph == second.graph
    assert all(np.array_equal(first.weights[key], second.weights[key]) for key in first.weights)


def test_a_bound_leaves_the_most_sensitive_layers_out(net: Model) -> None:
    whole = npusim.quantize(net.graph, net.weights, net.data, sensitivity=True)
    assert all(layer.alone is not None for layer in whole.report.layers)
    assert whole.report.value is not None
    bound = whole.report.value + 6
    made = npusim.quantize(net.graph, net.weights, net.data, bound=bound)
    assert 0 < made.report.quantized < 5
    assert made.report.value is not None and made.report.value >= bound
    out = [layer for layer in made.report.layers if layer.left_out]
    kept = [layer for layer in made.report.layers if not layer.left_out]
    assert max(layer.alone or 0 for layer in out) <= min(layer.alone or 0 for layer in kept)
    x = net.data["x"]
    found = outputs(made.graph, made.weights, x)
    assert sqnr(found, outputs(net.graph, net.weights, x)) == pytest.approx(made.report.value)


def test_a_bound_that_nothing_reaches_leaves_float32(net: Model) -> None:
    made = npusim.quantize(net.graph, net.weights, net.data, bound=1e6)
    assert made.report.quantized == 0 and products(made.graph) == []
    x = net.data["x"]
    assert np.allclose(outputs(made.graph, made.weights, x), outputs(net.graph, net.weights, x))


def test_a_metric_of_the_callers_own(net: Model) -> None:
    seen = []

    def largest_error(found, expected) -> float:
        worst = max(np.abs(a[0] - b[0]).max() for a, b in zip(found, expected, strict=True))
        seen.append(worst)
        return -float(worst)

    made = npusim.quantize(net.graph, net.weights, net.data, metric=largest_error, bound=-1e-9)
    assert made.report.quantized == 0 and made.report.value == 0 and len(seen) > 5


def test_symbolic_batch() -> None:
    torch.manual_seed(4)
    batch = torch.export.Dim("batch", min=2, max=40)
    net = made(
        perceptron_module(), torch.zeros(2, 12), samples=70, dynamic_shapes={"x": {0: batch}}
    )
    found = npusim.quantize(net.graph, net.weights, net.data)
    session = npusim.load(npusim.compile(found.graph), found.weights, threads=1)
    plain = npusim.load(npusim.compile(net.graph), net.weights, threads=1)
    for rows in (2, 7, 40):
        x = net.data["x"][:rows]
        assert sqnr(session(x)[0], plain(x)[0]) > 25


def perceptron_module() -> torch.nn.Module:
    from .models import Perceptron

    return Perceptron()


def test_a_linear_alone_of_zeros_and_large_biases() -> None:
    """A channel of zeros, an operand of zeros, and a bias that int32 does not hold."""
    torch.manual_seed(5)
    module = torch.nn.Linear(4, 3)
    with torch.no_grad():
        module.weight[1] = 0
        module.bias[:] = torch.tensor([1.0, -2.0, 3e30])
    net = made(module, torch.zeros(2, 4))
    found = npusim.quantize(net.graph, net.weights, net.data)
    assert found.weights["weight.bias_float32"].dtype == np.float32
    x = net.data["input"]
    expected = outputs(net.graph, net.weights, x)
    y = outputs(found.graph, found.weights, x)
    assert np.allclose(y[:, 0], expected[:, 0], atol=0.02)
    assert (y[:, 1] == -2).all() and (y[:, 2] == expected[:, 2]).all()


@pytest.mark.parametrize("value", [0.0, 1.5, -2.5, 1e-44])
def test_an_operand_of_one_value(value: float) -> None:
    torch.manual_seed(6)
    net = made(torch.nn.Linear(4, 3), torch.zeros(2, 4))
    data = {"input": np.full((8, 4), value, np.float32)}
    found = npusim.quantize(net.graph, net.weights, data)
    expected = outputs(net.graph, net.weights, data["input"])
    assert np.allclose(outputs(found.graph, found.weights, data["input"]), expected, atol=0.02)


def test_operands_that_are_not_finite_stay_floats() -> None:
    class Masked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.a(x)
            return self.b(torch.log(torch.relu(y))).sigmoid()

    torch.manual_seed(7)
    net = made(Masked(), torch.zeros(2, 4))
    found = npusim.quantize(net.graph, net.weights, net.data)
    assert [layer.left_out for layer in found.report.layers] == ["", "its operand is not finite"]


def test_other_readers_of_a_value_in_floats_keep_floats() -> None:
    """A residual around a layer whose operand no layer makes."""

    class Around(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.fc = torch.nn.LayerNorm(6), torch.nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm(x)
            return y * 100 + self.fc(y) / 100

    torch.manual_seed(8)
    net = made(Around(), torch.zeros(2, 6))
    found = npusim.quantize(net.graph, net.weights, net.data)
    x = net.data["x"]
    expected = outputs(net.graph, net.weights, x)
    assert np.abs(outputs(found.graph, found.weights, x) - expected).max() < 1e-3


def test_batch_norms_are_in_the_bytes(net: Model) -> None:
    made = npusim.quantize(net.graph, net.weights, net.data)
    assert not any("batch_norm" in node.op for node in made.graph.nodes)
    weight = net.weights["stem.weight"]
    factor = net.weights["norm.weight"] / np.sqrt(net.weights["norm.running_var"] + 1e-5)
    folded = weight * factor[:, None, None, None]
    codes = made.weights["stem.weight_int8"].astype(np.float32)
    scales = np.abs(folded).max(axis=(1, 2, 3), keepdims=True) / 127
    assert np.abs(codes * scales - folded).max() <= scales.max() / 2 * 1.001


def test_the_graph_in_floats_is_what_other_targets_compute(net: Model) -> None:
    """A target that does not multiply bytes computes what the graph says."""
    made = npusim.quantize(net.graph, net.weights, net.data)
    cpu = TargetConfig.named("cpu")
    plain = replace(cpu, kernels=tuple(k for k in cpu.kernels if "int8" not in k))
    assert not plain.multiplies_bytes
    x = net.data["x"][:1]
    session = npusim.load(npusim.compile(made.graph, plain), made.weights, threads=1)
    assert np.allclose(session(x)[0], outputs(made.graph, made.weights, x), atol=0.05)


@pytest.mark.parametrize("act", [torch.nn.GELU(), torch.nn.ReLU6(), torch.nn.Hardswish()])
def test_what_follows_a_layer_is_computed_with_it(act: torch.nn.Module) -> None:
    """Sums of floats join products that give floats, activations those that give bytes."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = torch.nn.Conv2d(8, 16, 1), torch.nn.Conv2d(16, 8, 3, padding=1)
            self.act = act

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.down(self.act(3 * self.up(x)))

    torch.manual_seed(10)
    net = made(Block(), torch.zeros(1, 8, 6, 6))
    found = npusim.quantize(net.graph, net.weights, net.data)
    x = net.data["x"]
    got = outputs(found.graph, found.weights, x)
    assert sqnr(got, outputs(net.graph, net.weights, x)) > 25
    lowered = run_passes(found.graph, TargetConfig.named("cpu"))
    weights = {key: torch.from_numpy(array) for key, array in found.weights.items()}
    for i in range(4):
        (expected,) = run_graph(lowered, [torch.from_numpy(x[i : i + 1])], weights)
        assert np.allclose(got[i : i + 1], expected.numpy(), atol=1e-5)
    assert not any(node.op == "aten.add.Tensor" for node in lowered.nodes)
    assert "uint8" in [node.type.dtype for node in products(found.graph)]


@pytest.mark.parametrize(("groups", "quantized"), [(1, 3), (32, 3), (8, 2), (2, 3)])
def test_small_groups_stay_floats(groups: int, quantized: int) -> None:
    """Groups of one channel have a kernel of bytes; those of a few are faster as floats."""
    layers = [torch.nn.Conv2d(8, 32, 1), torch.nn.Conv2d(32, 32, 3, groups=groups)]
    torch.manual_seed(12)
    net = made(torch.nn.Sequential(*layers, torch.nn.Conv2d(32, 8, 1)), torch.zeros(1, 8, 9, 9))
    found = npusim.quantize(net.graph, net.weights, net.data)
    assert found.report.quantized == quantized


@pytest.mark.parametrize("gate", [torch.nn.Hardsigmoid(), torch.nn.Sigmoid()])
@pytest.mark.parametrize("act", [torch.nn.Hardswish(), torch.nn.ReLU(), torch.nn.SiLU()])
def test_gated_blocks(gate: torch.nn.Module, act: torch.nn.Module) -> None:
    """Inverted residuals whose channels a squeeze and excitation weighs; all products are of
    bytes, in place or not."""

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.norm = torch.nn.Conv2d(8, 24, 1, bias=False), torch.nn.BatchNorm2d(24)
            self.each = torch.nn.Conv2d(24, 24, 5, padding=2, groups=24)
            self.squeeze, self.excite = torch.nn.Conv2d(24, 8, 1), torch.nn.Conv2d(8, 24, 1)
            self.down = torch.nn.Conv2d(24, 8, 1)
            self.gate, self.act = gate, act

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.act(self.each(self.act(self.norm(self.up(x)))))
            means = torch.nn.functional.adaptive_avg_pool2d(y, 1)
            y = self.gate(self.excite(torch.relu_(self.squeeze(means)))) * y
            return x + self.down(y)

    torch.manual_seed(12)
    net = made(Block(), torch.zeros(1, 8, 9, 9))
    found = npusim.quantize(net.graph, net.weights, net.data)
    assert found.report.quantized == 5
    got, wanted = (
        outputs(graph, weights, net.data["x"])
        for graph, weights in ((found.graph, found.weights), (net.graph, net.weights))
    )
    assert sqnr(got, wanted) > 25


def test_a_machine_of_bytes_computes_all_between_the_first_and_the_last(net: Model) -> None:
    """Means as well, which a processor computes in floats."""
    found = npusim.quantize(net.graph, net.weights, net.data)
    machine = in_products_of_bytes(found.graph, TargetConfig.named("ethos-u55-256"))
    kinds = {node.op for node in machine.nodes if node.type.dtype == "float32"}
    assert "aten.mean.dim" not in kinds
    assert sum(node.op in (INT8_CONV, INT8_MATMUL) for node in machine.nodes) == 5 + 1


class Decoder(nn.Module):
    """Two transposed convolutions, the second of taps that overlap, joined with what was before."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv2d(4, 24, 3, padding=1)
        self.up = nn.ConvTranspose2d(24, 10, 2, 2)
        self.smooth = nn.ConvTranspose2d(34, 6, 3, 2, 1, output_padding=1)
        self.leave = nn.Conv2d(6, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [N, 4, 6, 6] to [N, 3, 24, 24]."""
        y = functional.relu(self.enter(x))
        y = torch.cat([functional.interpolate(y, scale_factor=2.0), self.up(y)], dim=1)
        return self.leave(functional.relu(self.smooth(y)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["static", "dynamic"])
def test_transposed_convolutions_multiply_bytes(mode: str) -> None:
    torch.manual_seed(4)
    net = made(Decoder(), torch.zeros(1, 4, 6, 6))
    found = npusim.quantize(net.graph, net.weights, net.data, mode=mode)
    assert found.report.quantized == 4
    assert sum(bool(n.attrs.get("transposed")) for n in products(found.graph)) == 2
    x = net.data["x"]
    assert sqnr(outputs(found.graph, found.weights, x), outputs(net.graph, net.weights, x)) > 25
    assert all((layer.weight_sqnr or 0) > 30 for layer in found.report.layers)


def test_transposed_convolutions_without_phases_stay_float32() -> None:
    torch.manual_seed(4)
    layers = (
        nn.Conv2d(4, 4, 1),
        nn.ConvTranspose2d(4, 4, 1, 2),
        nn.ConvTranspose2d(4, 4, 2, 2, groups=2),
    )
    net = made(nn.Sequential(*layers), torch.zeros(1, 4, 4, 4))
    found = npusim.quantize(net.graph, net.weights, net.data)
    assert len(found.report.layers) == 1
