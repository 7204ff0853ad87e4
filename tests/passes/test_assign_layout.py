"""assign_layout: who writes channels-last, who follows, and who puts things back in order."""

from dataclasses import replace

import npusim
from npusim.passes.assign_layout import assign_layout
from npusim.passes.canonicalize_conv import canonicalize_conv


def layout(graph, target):
    return assign_layout(canonicalize_conv(graph, target), target)


def conv(draft, x):
    return draft.call("aten.conv2d.default", x, draft.w(3, 3, 3, 3), None, padding=(1, 1))


def test_pointwise_follows_its_operand(draft, check_pass):
    y = draft.call("aten.tanh.default", conv(draft, draft.x(1, 3, 8, 8)))
    check_pass(layout, draft.graph(conv(draft, y), y))


def test_pointwise_prepares_for_its_only_reader(draft, check_pass):
    y = draft.call("aten.mul.Tensor", draft.x(1, 3, 8, 8), draft.w(3, 1, 1))
    check_pass(layout, draft.graph(conv(draft, y)))


def test_a_result_is_written_row_major(draft, check_pass):
    y = draft.call("aten.tanh.default", conv(draft, draft.x(1, 3, 8, 8)))
    check_pass(layout, draft.graph(y))


def test_pointwise_writes_row_major_for_a_flatten(draft, check_pass):
    y = draft.call("aten.tanh.default", conv(draft, draft.x(1, 3, 8, 8)))
    check_pass(layout, draft.graph(draft.call("aten.view.default", y, size=(1, 192))))


def test_wishes_pass_through_permutations(draft, check_pass):
    y = draft.call("aten.tanh.default", draft.x(1, 3, 8, 8))
    y = draft.call("aten.permute.default", y, dims=(0, 2, 3, 1))
    check_pass(layout, draft.graph(draft.call("aten.softmax.int", y, dim=-1)))


def test_pooling_concatenation_and_gates(draft, check_pass):
    x = conv(draft, draft.x(1, 3, 8, 8))
    gate = draft.call("aten.adaptive_avg_pool2d.default", x, output_size=(1, 1))
    y = draft.call("aten.mul.Tensor", draft.call("aten.sigmoid.default", gate), x)
    y = draft.call("aten.constant_pad_nd.default", draft.call("aten.cat.default", x, y,
                   tensors=2, dim=1), pad=(1, 1))  # fmt: skip
    y = draft.call("aten.max_pool2d.default", y, kernel_size=(2, 2))
    check_pass(layout, draft.graph(draft.call("aten.mean.dim", y, dim=(2, 3))))


def test_reductions_read_and_leave_channels_last(draft, check_pass):
    y = draft.call("aten.view.default", conv(draft, draft.x(1, 3, 8, 8)), size=(1, 1, 3, 8, 8))
    y = draft.call("aten.mul.Tensor", y, draft.x(1, 1, 3, 1, 1, name="gate"))
    y = draft.call("aten.sum.dim_IntList", y, dim=(1,))
    check_pass(layout, draft.graph(draft.call("aten.tanh.default", y), conv(draft, y)))


def test_pointwise_lies_as_a_view_for_convolutions_may(draft, check_pass):
    x = draft.call("aten.view.default", conv(draft, draft.x(1, 3, 8, 8)), size=(1, 1, 3, 8, 8))
    y = draft.call("aten.mul.Tensor", x, draft.x(1, 1, 3, 1, 1, name="gate"))
    y = draft.call("aten.view.default", y, size=(1, 3, 8, 8))
    check_pass(layout, draft.graph(conv(draft, y)))


def test_pointwise_lies_like_pieces(draft, check_pass):
    """What a dense block adds up are slices of channels-last images, none of them dense."""
    x = conv(draft, draft.x(1, 3, 8, 8))
    left, right = (
        draft.call("aten.slice.Tensor", x, dim=1, start=i, end=i + 2, step=1) for i in (0, 1)
    )
    y = draft.call("aten.add.Tensor", left, right)
    check_pass(layout, draft.graph(draft.call("aten.mean.dim", y, dim=(2, 3))))


def test_attention_keeps_heads_behind_positions(draft, check_pass):
    q, k, v = (draft.x(2, 3, 5, 4, name=n) for n in "qkv")
    y = draft.call("aten.scaled_dot_product_attention.default", q, k, v, None)
    y = draft.call("aten.permute.default", y, dims=(0, 2, 1, 3))
    check_pass(layout, draft.graph(draft.call("aten.view.default", y, size=(2, 5, 12))))


def test_one_dimensional_convolution(draft, check_pass):
    y = draft.call("aten.conv1d.default", draft.x(1, 3, 9), draft.w(4, 3, 3), None)
    check_pass(layout, draft.graph(draft.call("aten.gelu.default", y, approximate="none"), y))


def test_a_target_may_want_row_major(draft, check_pass, cpu):
    y = draft.call("aten.tanh.default", conv(draft, draft.x(1, 3, 8, 8)))
    check_pass(layout, draft.graph(conv(draft, y)), replace(cpu, conv_channels_last=False))


def test_angles_are_written_as_rotations_read_them(draft, cpu):
    heads = [draft.x(1, 2, 3, 8, name=name) for name in "qk"]
    angles = draft.call("aten.permute.default", draft.x(1, 8, 3), dims=(0, 2, 1))
    cos, sin = (draft.call(f"aten.{name}.default", angles) for name in ("cos", "sin"))
    attrs = {"interleaved": False, "rotary_dim": 8}
    turned = [draft.call("npu.rope", x, cos, sin, **attrs) for x in heads]
    program = npusim.compile(draft.graph(*turned), "cpu")
    commands = [program.kernels[command.kernel].name for command in program.methods[0].commands]
    assert sorted(commands) == ["pointwise", "pointwise", "rope", "rope"]
