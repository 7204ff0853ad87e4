"""fold_batch_norm: fixed statistics become weights, or a scale and a shift."""

import pytest

from npusim.ir.types import TensorType
from npusim.passes.canonicalize_conv import canonicalize_conv
from npusim.passes.canonicalize_linear import canonicalize_linear
from npusim.passes.fold_batch_norm import fold_batch_norm
from npusim.passes.fold_scale import fold_scale
from npusim.passes.fuse_epilogues import fuse_epilogues

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


HALF = {"dtype": "float16"}


def half_statistics(draft, channels):
    return [draft.w(channels, name=n, **HALF) for n in ("gamma", "beta", "mean", "var")]


def test_halves_keep_their_weights_and_scale_their_sums(draft, check_pass):
    y = draft.call("aten.conv2d.default", draft.x(1, 3, 6, 6, **HALF), draft.w(4, 3, 3, 3, **HALF),
                   draft.w(4, **HALF))  # fmt: skip
    y = draft.call("aten.batch_norm.default", y, *half_statistics(draft, 4), **NORM)
    check_pass(both, draft.graph(y))


def half_convolution(draft):
    x, w = draft.x(1, 3, 6, 6, **HALF), draft.w(4, 3, 1, 1, **HALF)
    y = draft.call("aten.conv2d.default", x, w, None)
    return draft.call("aten.batch_norm.default", y, *half_statistics(draft, 4), **NORM)


def test_a_second_norm_joins_the_factors_of_halves(draft, check_pass):
    y = half_convolution(draft)
    _, _, mean, var = half_statistics(draft, 4)
    y = draft.call("aten.batch_norm.default", y, None, None, mean, var, **NORM)
    check_pass(both, draft.graph(y))


def test_factor_and_bias_join_the_factors_of_halves(draft, check_pass):
    y = draft.call("aten.mul.Tensor", half_convolution(draft), draft.w(4, 1, 1, **HALF))
    y = draft.call("aten.mul.Scalar", y, other=0.5)
    y = draft.call("aten.add.Tensor", y, draft.w(4, 1, 1, **HALF))

    def all_three(graph, target):
        return fuse_epilogues(fold_scale(both(graph, target), target), target)

    check_pass(all_three, draft.graph(y))


def test_grouped_transposed_convolution_of_halves(draft, check_pass):
    y = draft.call("aten.conv_transpose2d.input", draft.x(1, 4, 6, 6, **HALF),
                   draft.w(4, 3, 3, 3, **HALF), None, groups=2)  # fmt: skip
    y = draft.call("aten.batch_norm.default", y, *half_statistics(draft, 6), **NORM)
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
