"""recognize_int8: products of dequantized values become products of their bytes."""

from dataclasses import replace

import numpy as np
import pytest

from npusim.passes.recognize_int8 import recognize_int8
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig
from tests.passes.conftest import assert_same_results

CONV = {"stride": (1, 1), "padding": (1, 1), "padding_back": (1, 1), "dilation": (1, 1),
        "output_padding": (0, 0), "groups": 1, "transposed": False, "algorithm": "auto",
        "act": "copy", "act_lo": 0.0, "act_hi": 0.0, "residual": 0}  # fmt: skip
LINEAR = {"act": "copy", "act_lo": 0.0, "act_hi": 0.0, "residual": 0}
# Steps that are powers of two: both forms then round the same numbers.
STEP, FINE, COARSE = 0.25, 0.125, 4.0


def floats(draft, q, scale, zero=0):
    """(q - zero) * scale, as frontends write it."""
    wide = draft.call("aten._to_copy.default", q, dtype="float32")
    if zero:
        wide = draft.call("aten.sub.Tensor", wide, draft.c(zero))
    return draft.call("aten.mul.Tensor", wide, draft.c(scale))


def to_bytes(draft, x, scale, zero=0, dtype="uint8"):
    """saturate(round(x / scale) + zero), likewise."""
    whole = draft.call("aten.round.default", draft.call("aten.div.Tensor", x, draft.c(scale)))
    if zero:
        whole = draft.call("aten.add.Tensor", whole, draft.c(zero))
    low, high = (0, 255) if dtype == "uint8" else (-128, 127)
    bounded = draft.call("aten.clamp.default", whole, min=low, max=high)
    return draft.call("aten._to_copy.default", bounded, dtype=dtype)


def conv(draft, x, w, bias=None, **attrs):
    return draft.call("npu.conv", x, w, bias, None, **{**CONV, **attrs})


def count(graph, *ops):
    return sum(node.op in ops for node in graph.nodes)


def test_convolution_between_quantizations(draft, check_pass):
    x = floats(draft, draft.x(1, 4, 5, 5, dtype="uint8"), STEP, 3)
    w = floats(draft, draft.w(6, 4, 3, 3, dtype="int8"), np.full((6, 1, 1, 1), FINE), 1)
    b = floats(draft, draft.w(6, dtype="int32"), np.full(6, STEP * FINE))
    y = draft.call("aten.relu.default", conv(draft, x, w, b))
    result = check_pass(recognize_int8, draft.graph(to_bytes(draft, y, COARSE, 7)))
    assert [node.op for node in result.nodes] == ["npu.int8_conv"]


def test_linear_to_floats_takes_its_bias(draft, check_pass):
    x = floats(draft, draft.x(2, 3, 8, dtype="int8"), STEP)
    w = floats(draft, draft.w(5, 8, dtype="int8"), np.full((5, 1), FINE))
    y = draft.call("npu.linear", x, w, None, None, **LINEAR)
    y = draft.call("aten.add.Tensor", y, draft.w(5))
    result = check_pass(recognize_int8, draft.graph(draft.call("aten.relu.default", y)))
    assert count(result, "npu.int8_matmul") == 1
    assert not count(result, "aten.add.Tensor", "aten.relu.default", "aten._to_copy.default")


def test_integer_product_of_activations(draft, check_pass):
    def shifted(q, zero):
        wide = draft.call("aten._to_copy.default", q, dtype="int64")
        return draft.call(
            "aten.sub.Tensor", wide, draft.call("aten._to_copy.default", zero, dtype="int64")
        )

    a = shifted(draft.x(2, 4, 6, dtype="uint8", name="a"), draft.x(dtype="uint8", name="az"))
    b = shifted(draft.x(2, 6, 3, dtype="uint8", name="b"), draft.c(2, "uint8"))
    product = draft.call("aten.matmul.default", a, b)
    y = draft.call("aten._to_copy.default", product, dtype="int32")
    wide = draft.call("aten._to_copy.default", y, dtype="float32")
    scaled = draft.call("aten.mul.Tensor", wide, draft.x(name="scale"))
    result = check_pass(recognize_int8, draft.graph(scaled))
    assert [node.op for node in result.nodes if "_to_copy" in node.op] == []


def test_sum_with_other_bytes(draft, check_pass):
    x = floats(draft, draft.x(1, 4, 5, 5, dtype="uint8"), STEP)
    w = floats(draft, draft.w(4, 4, 3, 3, dtype="int8"), FINE)
    y = floats(draft, to_bytes(draft, conv(draft, x, w), 0.5, 9), 0.5, 9)
    total = draft.call("aten.add.Tensor", y, x)
    out = to_bytes(draft, draft.call("aten.relu.default", total), 1.0, 2)
    result = check_pass(recognize_int8, draft.graph(out))
    assert [node.op for node in result.nodes] == ["npu.int8_conv"]


def test_moved_bytes_stay_bytes(draft, check_pass):
    x, z = (floats(draft, draft.x(1, 4, 6, 6, dtype="int8", name=n), STEP, 5) for n in "xz")
    pooled = draft.call(
        "aten.max_pool2d.default",
        draft.call("aten.cat.default", x, z, tensors=2, dim=1),
        kernel_size=(2, 2),
    )
    y = draft.call("aten.permute.default", pooled, dims=(0, 2, 3, 1))
    result = check_pass(recognize_int8, draft.graph(to_bytes(draft, y, STEP, 5, "int8")))
    assert {v.type.dtype for node in result.nodes for v in node.outputs} == {"int8"}


@pytest.mark.parametrize("other", [2 * STEP, None], ids=["another_scale", "another_zero"])
def test_requantized_views_do_not(draft, check_pass, other):
    x = floats(draft, draft.x(2, 6, dtype="uint8"), STEP, 5)
    y = draft.call("aten.view.default", x, size=(3, 4))
    out = to_bytes(draft, y, other or STEP, 5 if other else 6)
    graph = draft.graph(out)
    assert check_pass(recognize_int8, graph) == graph


@pytest.mark.parametrize(("apart", "integers"), [(2.0**-23, True), (2.0**-19, False)])
def test_scales_of_a_bias_are_those_of_the_sums_to_the_last_places(draft, cpu, apart, integers):
    x = floats(draft, draft.x(1, 4, 5, 5, dtype="uint8"), STEP)
    w = floats(draft, draft.w(6, 4, 3, 3, dtype="int8"), FINE)
    b = floats(draft, draft.w(6, dtype="int32"), STEP * FINE * (1 + apart))
    result = recognize_int8(draft.graph(conv(draft, x, w, b)), cpu)
    (product,) = (node for node in result.nodes if node.op == "npu.int8_conv")
    assert (product.inputs[5] is not None) == integers


def test_bias_on_another_grid_is_a_float(draft, check_pass):
    x = floats(draft, draft.x(1, 4, 5, 5, dtype="uint8"), STEP)
    w = floats(draft, draft.w(6, 4, 3, 3, dtype="int8"), FINE)
    b = floats(draft, draft.w(6, dtype="int32"), 2 * STEP * FINE)
    result = check_pass(recognize_int8, draft.graph(conv(draft, x, w, b)))
    (product,) = (node for node in result.nodes if node.op == "npu.int8_conv")
    assert product.inputs[5] is None
    assert product.inputs[6] is not None


def test_what_is_not_an_integer_product_stays(draft, check_pass):
    x = floats(draft, draft.x(1, 4, 5, 5, dtype="uint8"), STEP)
    along_k = floats(
        draft, draft.w(6, 4, 3, 3, dtype="int8"), np.reshape([FINE, FINE, STEP, FINE], (1, 4, 1, 1))
    )
    fraction = floats(draft, draft.w(6, 4, 3, 3, dtype="int8"), FINE, 0.5)
    wide = floats(draft, draft.w(6, 4, 3, 3, dtype="int32"), FINE)
    results = [conv(draft, x, w) for w in (along_k, fraction, wide, draft.w(6, 4, 3, 3))]
    graph = draft.graph(*results)
    assert check_pass(recognize_int8, graph) == graph


def test_targets_without_the_kernel_keep_floats(draft, cpu):
    x = floats(draft, draft.x(1, 4, 5, 5, dtype="uint8"), STEP)
    graph = draft.graph(conv(draft, x, floats(draft, draft.w(6, 4, 3, 3, dtype="int8"), FINE)))
    for stem in ("conv_int8", "pack_int8"):
        target = replace(cpu, kernels=tuple(k for k in cpu.kernels if k != stem))
        assert run_passes(graph, target, pipeline=(recognize_int8,)) is graph
    assert run_passes(graph, cpu, pipeline=(recognize_int8,)) is not graph


def test_one_of_several_results_is_converted(draft, check_pass):
    _, places = draft.call("aten.sort.default", draft.x(2, 5), dim=-1, descending=False)
    check_pass(
        recognize_int8, draft.graph(draft.call("aten._to_copy.default", places, dtype="int32"))
    )


@pytest.mark.parametrize(
    ("scale", "rest", "joins"),
    [
        (1.0, "", True),
        (0.5, "", False),
        (np.reshape([1.0, 1.0, 2.0, 1.0], (4, 1, 1, 1)), "", False),
        (1.0, "bias", False),
        (1.0, "relu", False),
    ],
)
def test_only_bare_sums_are_converted_to_integers(draft, check_pass, scale, rest, joins):
    x = floats(draft, draft.x(1, 4, 5, 5, dtype="uint8"), 1.0, 3)
    y = conv(draft, x, floats(draft, draft.w(4, 4, 3, 3, dtype="int8"), scale),
             draft.w(4) if rest == "bias" else None)  # fmt: skip
    y = draft.call("aten.relu.default", y) if rest == "relu" else y
    result = check_pass(
        recognize_int8, draft.graph(draft.call("aten._to_copy.default", y, dtype="int32"))
    )
    assert result.nodes[-1].op == ("npu.int8_conv" if joins else "aten._to_copy.default")


@pytest.mark.parametrize(
    ("bounds", "scale", "zero", "goes"),
    [
        ((0.0, 15.9375), 2**-4, 0, True),
        ((0.0, 15.92), 2**-4, 0, True),  # rounded, the same byte
        ((0.0, 15.9), 2**-4, 0, False),  # byte 254
        ((0.0, 99.0), 2**-4, 0, True),  # the bytes end before the clamp does
        ((0.0, 99.0), 2**-4, 1, False),  # 0.0 is byte 1
        ((-8.0, 7.9375), 2**-4, 128, True),
        ((-7.9, 7.9375), 2**-4, 128, False),
        ((0.0, float("inf")), 2**-4, 0, True),
        ((float("-inf"), 6.0), 2**-4, 128, False),
    ],
)
def test_a_clamp_at_which_bytes_saturate(draft, cpu, bounds, scale, zero, goes):
    x = floats(draft, draft.x(1, 8, 5, 5, dtype="uint8"), STEP, 3)
    w = floats(draft, draft.w(6, 8, 3, 3, dtype="int8"), np.full((6, 1, 1, 1), FINE), 1)
    y = draft.call("aten.hardtanh.default", conv(draft, x, w), min_val=bounds[0], max_val=bounds[1])
    graph = draft.graph(to_bytes(draft, y, scale, zero))
    result = run_passes(graph, cpu, pipeline=[recognize_int8])
    (product,) = result.nodes
    assert product.attrs["act"] == ("copy" if goes else "clamp")
    assert_same_results(graph, result)


@pytest.mark.parametrize(
    ("function", "act"),
    [
        ("aten.silu.default", "silu"),
        ("aten.hardswish.default", "hardswish"),
        ("aten.gelu.default", "gelu"),
        ("aten.sigmoid.default", "sigmoid"),
    ],
)
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_an_activation_before_a_rounding(draft, cpu, function, act, dtype):
    x = floats(draft, draft.x(1, 8, 5, 5, dtype="uint8"), STEP, 3)
    w = floats(draft, draft.w(6, 8, 3, 3, dtype="int8"), np.full((6, 1, 1, 1), FINE), 1)
    b = floats(draft, draft.w(6, dtype="int32"), np.full(6, STEP * FINE))
    y = draft.call(function, conv(draft, x, w, b))
    graph = draft.graph(to_bytes(draft, y, 2**-5, 9, dtype))
    result = run_passes(graph, cpu, pipeline=[recognize_int8])
    (product,) = result.nodes
    assert (product.op, product.attrs["act"]) == ("npu.int8_conv", act)
    assert_same_results(graph, result)


def test_an_activation_that_others_read_stays(draft, cpu):
    x = floats(draft, draft.x(1, 8, 5, 5, dtype="uint8"), STEP, 3)
    w = floats(draft, draft.w(6, 8, 3, 3, dtype="int8"), np.full((6, 1, 1, 1), FINE), 1)
    y = draft.call("aten.silu.default", conv(draft, x, w))
    graph = draft.graph(to_bytes(draft, y, 2**-5), y)
    result = run_passes(graph, cpu, pipeline=[recognize_int8])
    assert count(result, "aten.silu.default") == 1
    assert_same_results(graph, result)


def test_a_machine_without_floats_activates_apart(draft):
    x = floats(draft, draft.x(1, 8, 5, 5, dtype="uint8"), STEP, 3)
    w = floats(draft, draft.w(6, 8, 3, 3, dtype="int8"), np.full((6, 1, 1, 1), FINE), 1)
    y = draft.call("aten.silu.default", conv(draft, x, w))
    graph = draft.graph(to_bytes(draft, y, 2**-5))
    machine = TargetConfig.named("gemmini-8")
    assert count(run_passes(graph, machine, pipeline=[recognize_int8]), "aten.silu.default") == 1


def test_a_clamp_that_others_read_stays(draft, cpu):
    x = floats(draft, draft.x(1, 8, 5, 5, dtype="uint8"), STEP, 3)
    w = floats(draft, draft.w(6, 8, 3, 3, dtype="int8"), np.full((6, 1, 1, 1), FINE), 1)
    y = draft.call("aten.hardtanh.default", conv(draft, x, w), min_val=0.0, max_val=99.0)
    graph = draft.graph(to_bytes(draft, y, 2**-4), y)
    result = run_passes(graph, cpu, pipeline=[recognize_int8])
    assert count(result, "aten.hardtanh.default") == 1
    assert_same_results(graph, result)
