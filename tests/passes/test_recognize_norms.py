"""recognize_norms: written-out norms become the ops, with weight and bias."""

import pytest

from npusim.passes.recognize_norms import recognize_norms


def mean(draft, x, dims=(-1,)):
    return draft.call("aten.mean.dim", x, dim=dims, keepdim=True, dtype=None)


def square(draft, x, by_pow):
    if by_pow:
        return draft.call("aten.pow.Tensor_Scalar", x, exponent=2)
    return draft.call("aten.mul.Tensor", x, x)


def inverse_root(draft, variance):
    y = draft.call("aten.add.Scalar", variance, other=1e-5, alpha=1)
    return draft.call("aten.rsqrt.default", y)


def affine(draft, y, *shape):
    y = draft.call("aten.mul.Tensor", draft.w(*shape, name="gamma"), y)
    return draft.call("aten.add.Tensor", y, draft.w(*shape, name="beta"), alpha=1)


@pytest.mark.parametrize("by_pow", [True, False])
def test_layer_norm_by_the_mean_square(draft, check_pass, by_pow):
    x = draft.x(2, 3, 8)
    centred = draft.call("aten.sub.Tensor", x, mean(draft, x), alpha=1)
    scale = inverse_root(draft, mean(draft, square(draft, centred, by_pow)))
    y = draft.call("aten.mul.Tensor", centred, scale)
    check_pass(recognize_norms, draft.graph(affine(draft, y, 8)))


def test_layer_norm_by_variance_and_division(draft, check_pass):
    x = draft.x(2, 3, 8)
    centred = draft.call("aten.sub.Tensor", x, mean(draft, x, (1, 2)), alpha=1)
    variance = draft.call("aten.var.correction", x, dim=(1, 2), correction=0, keepdim=True)
    root = draft.call("aten.sqrt.default", draft.call("aten.add.Scalar", variance, other=1e-6))
    y = draft.call("aten.div.Tensor", centred, root)
    check_pass(recognize_norms, draft.graph(affine(draft, y, 3, 8)))


def test_rms_norm(draft, check_pass):
    x = draft.x(2, 3, 8)
    y = draft.call("aten.mul.Tensor", x, inverse_root(draft, mean(draft, square(draft, x, True))))
    check_pass(
        recognize_norms, draft.graph(draft.call("aten.mul.Tensor", draft.w(8, name="gamma"), y))
    )


def test_native_layer_norm(draft, check_pass):
    y, _, _ = draft.call("aten.native_layer_norm.default", draft.x(2, 3, 8), draft.w(8),
                         draft.w(8), normalized_shape=(8,), eps=1e-5)  # fmt: skip
    check_pass(recognize_norms, draft.graph(y))


def test_other_statistics_stay(draft, check_pass):
    x = draft.x(2, 8)
    sample = draft.call("aten.var.correction", x, dim=(-1,), correction=1, keepdim=True)
    centred = draft.call("aten.sub.Tensor", x, mean(draft, x), alpha=1)
    a = draft.call("aten.mul.Tensor", centred, inverse_root(draft, sample))
    b = draft.call("aten.mul.Tensor", x,
                   inverse_root(draft, mean(draft, square(draft, x, True), (0,))))  # fmt: skip
    check_pass(recognize_norms, draft.graph(a, b))


def test_a_computed_weight_stays(draft, check_pass):
    x = draft.x(2, 8)
    y = draft.call("aten.mul.Tensor", x, inverse_root(draft, mean(draft, square(draft, x, True))))
    check_pass(
        recognize_norms, draft.graph(draft.call("aten.mul.Tensor", y, draft.x(8, name="gate")))
    )


def half(draft, cast="bfloat16"):
    """Returns half-precision data, and that data in float32."""
    x = draft.x(2, 3, 8, dtype=cast)
    return x, draft.call("aten._to_copy.default", x, dtype="float32")


def root_mean_square(draft, x):
    return draft.call(
        "aten.mul.Tensor", x, inverse_root(draft, mean(draft, square(draft, x, True)))
    )


def test_rms_norm_in_float32_then_weight(draft, check_pass):
    y = root_mean_square(draft, half(draft)[1])
    y = draft.call("aten._to_copy.default", y, dtype="bfloat16")
    y = draft.call("aten.mul.Tensor", draft.w(8, dtype="bfloat16", name="gamma"), y)
    check_pass(recognize_norms, draft.graph(y))


def test_rms_norm_in_float32_with_one_plus_weight(draft, check_pass):
    y = root_mean_square(draft, half(draft)[1])
    w = draft.call("aten._to_copy.default", draft.w(8, dtype="bfloat16"), dtype="float32")
    y = draft.call("aten.mul.Tensor", y, draft.call("aten.add.Scalar", w, other=1.0, alpha=1))
    check_pass(
        recognize_norms, draft.graph(draft.call("aten._to_copy.default", y, dtype="bfloat16"))
    )


def test_rms_norm_with_a_narrower_weight(draft, check_pass):
    y = root_mean_square(draft, half(draft)[1])
    y = draft.call("aten.mul.Tensor", draft.w(8, dtype="bfloat16", name="gamma"), y)
    check_pass(
        recognize_norms, draft.graph(draft.call("aten._to_copy.default", y, dtype="bfloat16"))
    )


def test_heads_are_normed_before_they_are_moved(draft, check_pass):
    x = draft.call("aten.view.default", draft.x(2, 3, 8, dtype="bfloat16"), size=(2, 3, 2, 4))
    wide = draft.call("aten._to_copy.default", x, dtype="float32")
    y = draft.call("aten._to_copy.default", root_mean_square(draft, wide), dtype="bfloat16")
    y = draft.call("aten.mul.Tensor", draft.w(4, dtype="bfloat16", name="gamma"), y)
    check_pass(
        recognize_norms, draft.graph(draft.call("aten.permute.default", y, dims=(0, 2, 1, 3)))
    )


def test_float32_results_and_other_dtypes_stay_wide(draft, check_pass):
    y = root_mean_square(draft, half(draft)[1])
    z = draft.call("aten._to_copy.default", y, dtype="float16")
    check_pass(recognize_norms, draft.graph(y, z))
