"""quantize_weights: linears over int8 and int4 weights, where that is wanted and bearable."""

from dataclasses import replace

import pytest
import torch

import npusim
from npusim.errors import TargetConstraintError
from npusim.ir.printer import format_graph
from npusim.ir.verify import verify_graph
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.reference import check_node, run_graph
from npusim.passes.eliminate_dead_code import eliminate_dead_code
from npusim.passes.quantize_weights import quantize_weights
from npusim.passes.run import check_signature
from tests.passes.conftest import random_tensor, weights_of

LEAST = {"int8": 38, "int4-g32": 18, "int4-g128-asymmetric": 17}  # dB over one product


@pytest.fixture
def check_quantized(golden, cpu):
    """Holds the pass to what a pass promises, but for the values: they are close."""

    def check(graph, scheme="int4-g32"):
        target = replace(cpu, weight_quantization=scheme)
        result = eliminate_dead_code(verify_graph(quantize_weights(graph, target)), target)
        for node in result.nodes:
            check_node(node, result.types)
        check_signature(graph, result)
        assert quantize_weights(result, target) == result, "the pass is not idempotent"
        assert quantize_weights(graph, cpu) == graph, "nobody asked for it"
        generator = torch.Generator().manual_seed(0)
        inputs = [random_tensor(v.type, generator) for v in graph.inputs]
        weights = weights_of(graph, generator)
        pairs = zip(run_graph(result, inputs, weights), run_graph(graph, inputs, weights),
                    strict=True)  # fmt: skip
        for actual, expected in pairs:
            noise, signal = (actual - expected).double(), expected.double()
            assert 20 * torch.log10(signal.norm() / noise.norm()) > LEAST[scheme]
        golden(format_graph(result))
        return result

    return check


def linear(draft, x, w, bias=None, residual=None, **epilogue):
    mode = {"residual": 1} if residual else {}
    return draft.call("npu.linear", x, w, bias, residual, **{**NO_EPILOGUE, **mode, **epilogue})


def relu(draft, x):
    return draft.call("aten.relu.default", x)


@pytest.mark.parametrize("scheme", ["int8", "int4-g32", "int4-g128-asymmetric"])
def test_linear_with_an_epilogue(draft, check_quantized, scheme):
    x = draft.x(3, 128)
    y = linear(draft, x, draft.w(128, 128), draft.w(128), draft.x(3, 128, name="r"), act="silu")
    check_quantized(draft.graph(relu(draft, y)), scheme)


def test_gated_linear(draft, check_quantized):
    gates = draft.w(64, 128), draft.w(64, 128)
    both = draft.call("aten.cat.default", *gates, tensors=2, dim=0)
    y = draft.call("npu.gated_linear", draft.x(3, 128), both, None, act="silu")
    check_quantized(draft.graph(relu(draft, y)), "int8")


@pytest.mark.parametrize("dim", [0, -2])
def test_parts_of_a_weight_are_quantized_one_by_one(draft, check_quantized, dim):
    parts = [draft.w(rows, 128) for rows in (64, 32, 32)]
    weight = draft.call("aten.cat.default", *parts, tensors=3, dim=dim)
    y = linear(draft, draft.x(3, 128), weight, draft.w(128))
    result = check_quantized(draft.graph(relu(draft, y)), "int8")
    assert not any(n.op == "aten.cat.default" for n in result.nodes)


def test_more_parts_than_the_kernel_takes_are_one(draft, check_quantized):
    parts = [draft.w(16, 128) for _ in range(8)]
    weight = draft.call("aten.cat.default", *parts, tensors=8, dim=0)
    check_quantized(draft.graph(relu(draft, linear(draft, draft.x(3, 128), weight))), "int8")


def test_a_shared_weight_is_quantized_once(draft, check_quantized):
    w = draft.w(128, 128)
    y = relu(draft, linear(draft, relu(draft, linear(draft, draft.x(2, 128), w)), w))
    result = check_quantized(draft.graph(y), "int8")
    assert [n.op for n in result.nodes].count("npu.quantize") == 1


@pytest.mark.parametrize("reader", ["output", "view", "cast", "embedding"])
def test_what_four_bits_are_too_few_for_has_eight(draft, check_quantized, reader):
    w = draft.w(128, 128)
    y = linear(draft, draft.x(3, 128), w)
    if reader == "view":
        y = draft.call("aten.view.default", y, size=(1, 3, 128))
    if reader == "cast":
        y = draft.call("aten._to_copy.default", y, dtype="float64")
    if reader == "embedding":
        looked_up = draft.call("aten.embedding.default", w, draft.x(4, dtype="int64", name="i"))
        result = check_quantized(draft.graph(relu(draft, y), looked_up))
    else:
        result = check_quantized(draft.graph(y))
    (quantized,) = [n for n in result.nodes if n.op == "npu.quantize"]
    assert quantized.attrs["format"] == "int8"


@pytest.mark.parametrize("case", ["small", "computed", "double"])
def test_the_rest_stays(draft, cpu, case):
    dtype = "float64" if case == "double" else "float32"
    x, rows = draft.x(3, 128, dtype=dtype), 31 if case == "small" else 128
    w = draft.x(128, 128, name="w") if case == "computed" else draft.w(rows, 128, dtype=dtype)
    graph = draft.graph(linear(draft, x, w))
    assert quantize_weights(graph, replace(cpu, weight_quantization="int8")) == graph


def test_a_target_without_the_kernel_refuses(draft, cpu):
    graph = draft.graph(linear(draft, draft.x(3, 128), draft.w(128, 128)))
    target = replace(cpu, weight_quantization="int8", kernels=("gemm", "pack_b"))
    with pytest.raises(TargetConstraintError, match="no kernel for quantized weights"):
        quantize_weights(graph, target)


def test_compile_takes_a_scheme(draft):
    graph = draft.graph(linear(draft, draft.x(3, 128), draft.w(128, 128)))
    program = npusim.compile(graph, quantize="int8")
    assert {k.name for k in program.kernels} == {"quantize", "quantized_linear"}
    with pytest.raises(TargetConstraintError, match="int4-g32"):
        npusim.compile(graph, quantize="int3")


@pytest.mark.parametrize("dim", [1, -1])
def test_parts_beside_one_another_are_one(draft, check_quantized, dim):
    parts = [draft.w(128, 64) for _ in range(2)]
    weight = draft.call("aten.cat.default", *parts, tensors=2, dim=dim)
    result = check_quantized(
        draft.graph(relu(draft, linear(draft, draft.x(3, 128), weight))), "int8"
    )
    assert [n.op for n in result.nodes].count("aten.cat.default") == 1


@pytest.mark.parametrize("dim", [0, -2])
def test_parts_of_two_dtypes_are_one(draft, cpu, dim):
    parts = draft.w(64, 128), draft.w(64, 128, dtype="bfloat16")
    weight = draft.call("aten.cat.default", *parts, tensors=2, dim=dim)
    graph = draft.graph(relu(draft, linear(draft, draft.x(3, 128), weight)))
    result = quantize_weights(graph, replace(cpu, weight_quantization="int8"))
    quantized = [n for n in result.nodes if n.op == "npu.quantize"]
    assert [n.inputs for n in quantized] == [(weight,)]
