"""fuse_epilogues: bias, activation and residual move into the op that makes the result."""

import pytest

from npusim.passes.canonicalize_conv import canonicalize_conv
from npusim.passes.canonicalize_linear import canonicalize_linear
from npusim.passes.fuse_epilogues import fuse_epilogues


def fused(graph, target):
    return fuse_epilogues(canonicalize_linear(canonicalize_conv(graph, target), target), target)


def conv(draft, x=None, bias=False):
    return draft.call("aten.conv2d.default", x or draft.x(1, 3, 6, 6), draft.w(3, 3, 3, 3),
                      draft.w(3) if bias else None, padding=(1, 1))  # fmt: skip


def linear(draft, *shape):
    return draft.call("aten.linear.default", draft.x(*shape), draft.w(4, shape[-1]), None)


def test_residual_block(draft, check_pass):
    x = draft.x(1, 3, 6, 6)
    y = draft.call("aten.relu.default", conv(draft, x, bias=True))
    y = draft.call("aten.add.Tensor", conv(draft, y, bias=True), x)
    check_pass(fused, draft.graph(draft.call("aten.relu.default", y)))


def test_residual_behind_the_activation(draft, check_pass):
    x = draft.x(1, 3, 6, 6)
    y = draft.call("aten.silu.default", conv(draft, x))
    check_pass(fused, draft.graph(draft.call("aten.add.Tensor", x, y)))


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("aten.hardtanh.default", {"min_val": 0.0, "max_val": 6.0}),
        ("aten.gelu.default", {"approximate": "tanh"}),
        ("aten.hardswish.default", {}),
    ],
)
def test_activations(draft, check_pass, op, attrs):
    check_pass(fused, draft.graph(draft.call(op, conv(draft), **attrs)))


def test_bias_of_a_convolution(draft, check_pass):
    y = draft.call("aten.add.Tensor", conv(draft, bias=True), draft.w(1, 3, 1, 1))
    check_pass(fused, draft.graph(y))


def test_bias_of_a_linear_behind_a_view(draft, check_pass):
    y = draft.call("aten.view.default", linear(draft, 6, 5), size=(2, 3, 4))
    y = draft.call("aten.add.Tensor", y, draft.w(4))
    check_pass(fused, draft.graph(draft.call("aten.gelu.default", y)))


def test_residual_behind_a_view(draft, check_pass):
    y = draft.call("aten.view.default", linear(draft, 6, 5), size=(2, 3, 4))
    check_pass(fused, draft.graph(draft.call("aten.add.Tensor", y, draft.x(2, 3, 4, name="r"))))


def test_residual_behind_channels_first(draft, check_pass):
    y = draft.call("aten.permute.default", linear(draft, 2, 3, 3, 5), dims=(0, 3, 1, 2))
    check_pass(fused, draft.graph(draft.call("aten.add.Tensor", draft.x(2, 4, 3, 3), y)))


def test_residual_behind_another_permutation_stays(draft, check_pass):
    y = draft.call("aten.permute.default", linear(draft, 2, 3, 5), dims=(1, 0, 2))
    check_pass(fused, draft.graph(draft.call("aten.add.Tensor", draft.x(3, 2, 4), y)))


def test_broadcast_residual_stays(draft, check_pass):
    a = draft.call("aten.add.Tensor", linear(draft, 3, 5), draft.x(1, 4))
    b = draft.call("aten.add.Tensor", linear(draft, 1, 5), draft.x(3, 4))
    check_pass(fused, draft.graph(a, b))


def test_a_residual_of_fewer_dimensions(draft, check_pass):
    y = linear(draft, 1, 1, 5)
    check_pass(fused, draft.graph(draft.call("aten.add.Tensor", y, draft.x(1, 4))))


def _group_norm(draft, act, **attrs):
    y = draft.call("aten.group_norm.default", draft.x(2, 6, 5), draft.w(6), None, num_groups=3)
    return draft.graph(draft.call(act, y, **attrs))


def test_activation_behind_a_group_norm(draft, check_pass):
    check_pass(fused, _group_norm(draft, "aten.silu.default"))


@pytest.mark.parametrize("act", ["aten.exp.default", "aten.hardtanh.default"])
def test_what_does_not_bear_rounding_stays_behind_a_group_norm(draft, check_pass, act):
    bounds = {"min_val": 0.0, "max_val": 6.0} if "tanh" in act else {}
    check_pass(fused, _group_norm(draft, act, **bounds))


def test_scaled_addition_stays(draft, check_pass):
    y = draft.call("aten.add.Tensor", linear(draft, 3, 5), draft.x(3, 4), alpha=2)
    check_pass(fused, draft.graph(y))


def test_a_shared_result_stays(draft, check_pass):
    y = conv(draft)
    check_pass(fused, draft.graph(draft.call("aten.relu.default", y), y))


def test_only_one_residual_and_activation(draft, check_pass):
    x = draft.x(1, 3, 6, 6)
    y = draft.call("aten.add.Tensor", conv(draft, x), x)
    y = draft.call("aten.relu.default", draft.call("aten.add.Tensor", y, x))
    check_pass(fused, draft.graph(draft.call("aten.sigmoid.default", y)))


def product_of_bytes(draft, op):
    """A product that gives floats, with the attributes of its windows where it has some."""
    windows = {"stride": (1, 1), "padding": (0, 0), "padding_back": (0, 0), "dilation": (1, 1)}
    attrs = {"dtype": "float32", "act": "copy", "act_lo": 0.0, "act_hi": 0.0, "residual": 0}
    x, w = ((2, 6, 3, 3), (5, 6, 1, 1)) if op == "npu.int8_conv" else ((2, 3, 6), (6, 5))
    attrs |= {**windows, "groups": 1} if op == "npu.int8_conv" else {}
    rest = (None, None, draft.c([0.25]), None, draft.w(5), None, None, None)
    return draft.call(op, draft.x(*x, dtype="uint8"), draft.w(*w, dtype="int8"), *rest, **attrs)


@pytest.mark.parametrize("op", ["npu.int8_matmul", "npu.int8_conv"])
@pytest.mark.parametrize("before", [True, False])
def test_products_of_bytes_that_give_floats(draft, check_pass, op, before):
    y = product_of_bytes(draft, op)
    other = draft.x(*draft.types[y].shape, name="other")
    for step in ("add", "act") if before else ("act", "add"):
        if step == "add":
            y = draft.call("aten.add.Tensor", y, other)
        else:
            y = draft.call("aten.silu.default", y)
    result = check_pass(fuse_epilogues, draft.graph(y))
    assert [node.op for node in result.nodes] == [op]
