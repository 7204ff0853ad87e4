"""fold_batch_norm: fixed statistics become weights, or a scale and a shift."""

import pytest

from npusim.ir.types import TensorType
from npusim.passes.canonicalize_conv import canonicalize_conv
from npusim.passes.canonicalize_linear import canonicalize_linear
from npusim.passes.fold_batch_norm import fold_batch_norm

NORM = {"training": False, "momentum": 0.1, "eps": 1e-3, "cudnn_enabled": True}


def both(graph, target):
    graph = canonicalize_linear(canonicalize_conv(graph, target), target)
    return fold_batch_norm(graph, target)


def statistics(draft, channels):
    return [draft.w(channels, name=n) for n in ("gamma", "beta", "mean", "var")]


@pytest.mark.parametrize("bias", [True, False])
def test_convolution(draft, check_pass, bias):
    y = draft.call("aten.conv2d.default", draft.x(1, 3, 6, 6), draft.w(4, 3, 3, 3),
                   draft.w(4) if bias else None)  # fmt: skip
    y = draft.call("aten.batch_norm.default", y, *statistics(draft, 4), **NORM)
    check_pass(both, draft.graph(y))


def test_halves_are_folded_in_float32_and_weights_rounded_once(draft, check_pass):
    half = {"dtype": "float16"}
    y = draft.call("aten.conv2d.default", draft.x(1, 3, 6, 6, **half), draft.w(4, 3, 3, 3, **half),
                   draft.w(4, **half))  # fmt: skip
    vectors = [draft.w(4, name=n, **half) for n in ("gamma", "beta", "mean", "var")]
    y = draft.call("aten.batch_norm.default", y, *vectors, **NORM)
    check_pass(both, draft.graph(y))


def test_transposed_convolution(draft, check_pass):
    y = draft.call("aten.conv_transpose2d.input", draft.x(1, 3, 6, 6), draft.w(3, 4, 3, 3), None)
    y = draft.call("aten.batch_norm.default", y, *statistics(draft, 4), **NORM)
    check_pass(both, draft.graph(y))


def test_linear(draft, check_pass):
    y = draft.call("aten.linear.default", draft.x(5, 3), draft.w(4, 3), draft.w(4))
    y = draft.call("aten.batch_norm.default", y, *statistics(draft, 4), **NORM)
    check_pass(both, draft.graph(y))


def test_linear_with_channels_moved(draft, check_pass):
    y = draft.call("aten.linear.default", draft.x(2, 5, 3), draft.w(4, 3), draft.w(4))
    y = draft.call("aten.permute.default", y, dims=(0, 2, 1))
    y = draft.call("aten.batch_norm.default", y, *statistics(draft, 4), **NORM)
    check_pass(both, draft.graph(y))


def test_three_results(draft, check_pass):
    y = draft.call("aten.conv2d.default", draft.x(1, 3, 6, 6), draft.w(4, 3, 3, 3), None)
    empty = TensorType("float32", (0,))
    types = (draft.types[y], empty, empty)  # what the CPU gives; elsewhere they are not empty
    op = "aten._native_batch_norm_legit_no_training.default"
    operands = (y, *statistics(draft, 4))
    y, *_ = draft.nodes(op, operands, types, {"momentum": 0.1, "eps": 1e-3})
    draft.types[y] = types[0]
    check_pass(both, draft.graph(draft.call("aten.relu.default", y)))


def test_nothing_to_fold_into(draft, check_pass):
    _, _, mean, var = statistics(draft, 3)
    y = draft.call("aten.batch_norm.default", draft.x(2, 3, 4, 4), None, None, mean, var, **NORM)
    check_pass(both, draft.graph(y))


def test_a_shared_convolution_stays(draft, check_pass):
    y = draft.call("aten.conv2d.default", draft.x(1, 3, 6, 6), draft.w(4, 3, 3, 3), None)
    z = draft.call("aten.batch_norm.default", y, *statistics(draft, 4), **NORM)
    check_pass(both, draft.graph(draft.call("aten.add.Tensor", y, z)))


def test_grouped_transposed_convolution_stays(draft, check_pass):
    y = draft.call("aten.conv_transpose2d.input", draft.x(1, 4, 6, 6), draft.w(4, 3, 3, 3), None,
                   groups=2)  # fmt: skip
    y = draft.call("aten.batch_norm.default", y, *statistics(draft, 6), **NORM)
    check_pass(both, draft.graph(y))


def test_training_stays(draft, check_pass, cpu):
    y = draft.call("aten.batch_norm.default", draft.x(2, 3, 4, 4), *statistics(draft, 3),
                   **{**NORM, "training": True})  # fmt: skip
    graph = draft.graph(y)
    assert fold_batch_norm(graph, cpu) == graph
