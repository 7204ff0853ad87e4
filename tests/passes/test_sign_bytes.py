"""sign_bytes: what uint8 stands for, int8 stands for, where an array multiplies int8 alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import npusim
from npusim.ir.graph import Graph
from npusim.ops.reference import run_graph
from npusim.passes import PIPELINE
from npusim.passes.recognize_int8 import recognize_int8
from npusim.passes.run import run_passes
from npusim.passes.sign_bytes import sign_bytes
from npusim.targets.target_config import TargetConfig
from tests.passes.test_recognize_int8 import conv, floats, to_bytes

EDGES = np.array([0, 127, 128, 255], np.uint8)
ZEROS = ((0, 255), (255, 0), (127, 128), (128, 127), (0, 0))  # of x and of y
PRODUCTS = ("npu.int8_conv", "npu.int8_matmul")


@pytest.fixture(scope="module")
def gemmini() -> TargetConfig:
    return TargetConfig.named("gemmini-8")


def with_products(graph: Graph, target: TargetConfig) -> Graph:
    return run_passes(graph, target, pipeline=(recognize_int8,))


def dtypes(graph: Graph) -> list[set[str]]:
    """The dtypes of bytes that each product reads and makes."""
    found = []
    for node in graph.nodes:
        if node.op in PRODUCTS:
            types = [graph.types[i] for i in (*node.inputs[:4], node.inputs[7]) if i is not None]
            found.append({t.dtype for t in (*types, node.type)} & {"int8", "uint8"})
    return found


def computed(graph: Graph, weights: dict[str, np.ndarray], *inputs: np.ndarray) -> list[np.ndarray]:
    """What the definitions of a graph's nodes compute."""
    tensors = {key: torch.from_numpy(array) for key, array in weights.items()}
    return [y.numpy() for y in run_graph(graph, [torch.from_numpy(x) for x in inputs], tensors)]


def on_machine(
    graph: Graph, target: TargetConfig, weights: dict[str, np.ndarray], x: np.ndarray
) -> np.ndarray:
    """What a machine and its host compute of a graph whose products are all the machine's."""
    plan = npusim.partition(graph, target=target)
    products = [n for n in plan.graph.nodes if n.op in PRODUCTS]
    assert products and all(plan.verdicts[n.name].is_native for n in products)
    executor = npusim.DAGExecutor(plan, summary=False).load_weights(weights)
    return np.asarray(executor(x)[0])


@pytest.mark.parametrize(("x_zero", "y_zero"), ZEROS)
@pytest.mark.parametrize(("w_dtype", "w_zero"), [("int8", 0), ("uint8", 0), ("uint8", 255)])
def test_a_product_is_that_of_numpy_at_the_ends_of_bytes(
    draft, cpu, gemmini, x_zero, y_zero, w_dtype, w_zero
):
    x = floats(draft, draft.x(64, 3, dtype="uint8"), 0.25, x_zero)
    w = floats(draft, draft.w(4, 3, dtype=w_dtype), 0.125, w_zero)
    attrs = {"act": "copy", "act_lo": 0.0, "act_hi": 0.0, "residual": 0}
    y = draft.call("npu.linear", x, w, None, None, **attrs)
    graph = draft.graph(to_bytes(draft, y, 16.0, y_zero))
    bytes_ = np.stack(np.meshgrid(EDGES, EDGES, EDGES), -1).reshape(64, 3)
    factors = np.array([[0, 255, 128], [127, 1, 0], [128, 128, 128], [255, 0, 127]], np.uint8)
    weights = {"w": factors.astype(np.dtype(w_dtype))}
    sums = (bytes_.astype(np.int64) - x_zero) @ (weights["w"].astype(np.int64).T - w_zero)
    wanted = np.clip(np.rint(sums * np.float32(2**-9)) + y_zero, 0, 255).astype(np.uint8)

    unsigned = with_products(graph, gemmini)
    signed = sign_bytes(unsigned, gemmini)
    assert dtypes(unsigned) == [{"uint8", w_dtype}] and dtypes(signed) == [{"int8"}]
    for each in (graph, unsigned, signed):
        np.testing.assert_array_equal(computed(each, weights, bytes_)[0], wanted)
    (there,) = npusim.load(npusim.compile(graph, cpu), weights)(bytes_)  # of uint8, as it is
    np.testing.assert_array_equal(there, wanted)
    np.testing.assert_array_equal(on_machine(graph, gemmini, weights, bytes_), wanted)


@pytest.mark.parametrize("machine", ["gemmini-8", "npu-edge-32x32"])
def test_convolutions_pad_with_their_zero_point(draft, cpu, machine):
    target = TargetConfig.named(machine)
    x = floats(draft, draft.x(1, 4, 6, 6, dtype="uint8"), 0.25, 255)
    w = floats(draft, draft.w(8, 4, 3, 3, dtype="int8"), np.full((8, 1, 1, 1), 0.125))
    y = draft.call("aten.relu.default", conv(draft, x, w))
    graph = draft.graph(to_bytes(draft, y, 4.0, 3))
    draw = np.random.default_rng(0)
    weights = {"w": draw.integers(-128, 128, (8, 4, 3, 3)).astype(np.int8)}
    image = draw.choice(EDGES, (1, 4, 6, 6))
    unsigned = with_products(graph, target)
    signed = sign_bytes(unsigned, target)
    wanted = computed(unsigned, weights, image)[0]
    np.testing.assert_array_equal(computed(signed, weights, image)[0], wanted)
    np.testing.assert_array_equal(on_machine(graph, target, weights, image), wanted)
    assert dtypes(signed) == [{"int8"}]


def test_floats_that_are_no_numbers_become_the_same_bytes(draft, gemmini):
    """The host makes bytes of floats as before, NaN among them, and shifts what it made."""
    x = floats(draft, to_bytes(draft, draft.x(1, 6), 0.25, 200), 0.25, 200)
    w = floats(draft, draft.w(3, 6, dtype="int8"), 0.125)
    attrs = {"act": "copy", "act_lo": 0.0, "act_hi": 0.0, "residual": 0}
    unsigned = with_products(
        draft.graph(draft.call("npu.linear", x, w, None, None, **attrs)), gemmini
    )
    weights = {"w": np.arange(18, dtype=np.int8).reshape(3, 6)}
    given = np.array([[np.nan, np.inf, -np.inf, -0.0, 1e38, 3.125]], np.float32)
    before, after = (
        computed(g, weights, given)[0] for g in (unsigned, sign_bytes(unsigned, gemmini))
    )
    np.testing.assert_array_equal(after, before)


def test_bytes_that_are_moved_go_along(draft, check_pass, gemmini):
    x = floats(draft, draft.x(1, 4, 6, 6, dtype="uint8"), 0.25, 3)
    w = floats(draft, draft.w(8, 4, 3, 3, dtype="int8"), np.full((8, 1, 1, 1), 0.125))
    left = to_bytes(draft, conv(draft, x, w), 4.0, 200)
    window = {"kernel_size": (2, 2), "stride": (2, 2), "padding": (1, 1), "dilation": (1, 1),
              "ceil_mode": False}  # fmt: skip
    pooled = draft.call("aten.max_pool2d.default", left, **window)
    joined = draft.call("aten.cat.default", pooled, pooled, tensors=2, dim=1)
    flat = draft.call("aten.view.default", joined, size=(1, 16, 16))
    unsigned = with_products(draft.graph(flat, floats(draft, left, 4.0, 200)), gemmini)
    signed = check_pass(sign_bytes, unsigned, gemmini)
    moved = [n for n in signed.nodes if n.op in ("aten.max_pool2d.default", "aten.cat.default")]
    assert [n.type.dtype for n in moved] == ["int8", "int8"]
    assert signed.types[signed.outputs[0].value].dtype == "uint8"


def test_bytes_are_shifted_before_what_moves_them(draft, check_pass, gemmini):
    """Those that no product made, where one reads them behind views; a weight in init."""
    x = draft.call("aten.view.default", draft.x(2, 12, dtype="uint8"), size=(6, 4))
    w = floats(draft, draft.w(5, 4, dtype="uint8"), 0.125, 130)
    attrs = {"act": "copy", "act_lo": 0.0, "act_hi": 0.0, "residual": 0}
    y = draft.call("npu.linear", floats(draft, x, 0.25), w, None, None, **attrs)
    signed = check_pass(sign_bytes, with_products(draft.graph(y), gemmini), gemmini)
    assert dtypes(signed) == [{"int8"}]
    views = [n for n in signed.nodes if n.op == "aten.view.default"]
    assert {signed.types[n.inputs[0] or ""].dtype for n in views} == {"int8"}


def test_constants_are_shifted_when_compiling(draft, check_pass, gemmini):
    x = floats(draft, draft.x(1, 4, 5, 5, dtype="int8"), 0.25)
    w = floats(draft, draft.c(np.arange(256).reshape(8, 4, 8, 1), "uint8"), 0.125, 128)
    y = conv(draft, x, w, padding=(4, 0), padding_back=(4, 0))
    signed = check_pass(sign_bytes, with_products(draft.graph(y), gemmini), gemmini)
    assert [n.op for n in signed.nodes] == ["npu.int8_conv"] and dtypes(signed) == [{"int8"}]


def added(draft, target: TargetConfig, scales: tuple[float, float, float]) -> Graph:
    """A convolution whose bytes are added to others."""
    first, second, step = scales
    x = floats(draft, draft.x(1, 8, 12, 12, dtype="uint8"), 0.25, 3)
    w = floats(draft, draft.w(8, 8, 3, 3, dtype="int8"), np.full((8, 1, 1, 1), 0.125))
    left = floats(draft, to_bytes(draft, conv(draft, x, w), first, 255), first, 255)
    other = floats(draft, draft.x(1, 8, 12, 12, dtype="uint8", name="r"), second, 7)
    y = draft.call("aten.relu.default", draft.call("aten.add.Tensor", left, other, alpha=1))
    graph = with_products(draft.graph(to_bytes(draft, y, step, 9)), target)
    assert [n.op for n in graph.nodes] == ["npu.int8_conv"]
    assert graph.nodes[0].inputs[7] is not None
    return graph


@pytest.mark.parametrize(
    ("machine", "scales", "exact"),
    [
        ("gemmini-8", (2.0, 0.5, 4.0), True),  # powers of two: no term is rounded
        ("gemmini-8", (2.1, 0.37, 3.3), False),
        ("npu-edge-32x32", (2.1, 0.37, 3.3), True),  # integers
    ],
)
def test_sums_with_other_bytes(draft, machine, scales, exact):
    target = TargetConfig.named(machine)
    unsigned = added(draft, target, scales)
    signed = sign_bytes(unsigned, target)
    assert dtypes(signed) == [{"int8"}]
    draw, apart, count = np.random.default_rng(1), 0, 0
    for _ in range(20):
        weights = {"w": draw.integers(-128, 128, (8, 8, 3, 3)).astype(np.int8)}
        x, r = (draw.integers(0, 256, (1, 8, 12, 12)).astype(np.uint8) for _ in range(2))
        before, after = (computed(g, weights, x, r)[0].astype(int) for g in (unsigned, signed))
        assert np.abs(after - before).max() <= 1
        apart, count = apart + int((after != before).sum()), count + after.size
    assert apart <= (0 if exact else count * 1e-3)


@pytest.mark.parametrize("machine", ["cpu", "ethos-u55-256", "tpu-v3", "h200"])
def test_machines_of_uint8_or_of_no_bytes_keep_them(draft, cpu, machine):
    x = floats(draft, draft.x(1, 4, 5, 5, dtype="uint8"), 0.25)
    y = conv(draft, x, floats(draft, draft.w(6, 4, 3, 3, dtype="int8"), 0.125))
    graph = with_products(draft.graph(y), cpu)
    assert any(n.op in PRODUCTS for n in graph.nodes)
    target = TargetConfig.named(machine if machine != "h200" else "cuda:sm_90a")
    assert sign_bytes(graph, target) is graph


def test_it_comes_where_products_are_known() -> None:
    at = PIPELINE.index
    assert at(sign_bytes) == at(recognize_int8) + 1
