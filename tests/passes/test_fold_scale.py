"""fold_scale: constant factors move into the weights before them."""

from npusim.passes.canonicalize_conv import canonicalize_conv
from npusim.passes.canonicalize_linear import canonicalize_linear
from npusim.passes.fold_scale import fold_scale


def folded(graph, target):
    return fold_scale(canonicalize_linear(canonicalize_conv(graph, target), target), target)


def linear(draft, *shape):
    return draft.call("aten.linear.default", draft.x(*shape), draft.w(4, shape[-1]), draft.w(4))


def test_number(draft, check_pass):
    y = draft.call("aten.mul.Scalar", linear(draft, 3, 5), other=0.125)
    check_pass(folded, draft.graph(draft.call("aten.div.Tensor", y, draft.c(3.0))))


def test_each_channel_of_a_convolution(draft, check_pass):
    y = draft.call("aten.conv2d.default", draft.x(1, 3, 6, 6), draft.w(4, 3, 3, 3), None)
    check_pass(folded, draft.graph(draft.call("aten.mul.Tensor", y, draft.w(4, 1, 1))))


def test_layer_scale_behind_a_permutation(draft, check_pass):
    y = draft.call("aten.permute.default", linear(draft, 2, 3, 3, 5), dims=(0, 3, 1, 2))
    check_pass(folded, draft.graph(draft.call("aten.mul.Tensor", draft.w(4, 1, 1), y)))


def test_other_factors_stay(draft, check_pass):
    a = draft.call("aten.mul.Tensor", linear(draft, 3, 5), draft.w(3, 1))
    b = draft.call("aten.mul.Tensor", linear(draft, 3, 5), draft.x(4, name="factor"))
    c = draft.call("aten.div.Tensor", draft.w(4), linear(draft, 3, 5))
    check_pass(folded, draft.graph(a, b, c))


def test_a_shared_result_stays(draft, check_pass):
    y = linear(draft, 3, 5)
    check_pass(folded, draft.graph(draft.call("aten.mul.Scalar", y, other=2.0), y))
