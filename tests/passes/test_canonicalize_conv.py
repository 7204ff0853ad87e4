"""canonicalize_conv: one spelling for all convolutions."""

import pytest

from npusim.passes.canonicalize_conv import canonicalize_conv


def test_plain(draft, check_pass):
    y = draft.call("aten.conv2d.default", draft.x(1, 3, 8, 8), draft.w(4, 3, 3, 3), draft.w(4),
                   stride=(2, 2), padding=(1, 1))  # fmt: skip
    check_pass(canonicalize_conv, draft.graph(y))


@pytest.mark.parametrize("rank", [1, 3])
def test_other_ranks(draft, check_pass, rank):
    x, w = draft.x(2, 4, *(7,) * rank), draft.w(6, 2, *(3,) * rank)
    y = draft.call(f"aten.conv{rank}d.default", x, w, None, groups=2, dilation=(2,) * rank)
    check_pass(canonicalize_conv, draft.graph(y))


@pytest.mark.parametrize("word", ["same", "valid"])
def test_padding_by_word(draft, check_pass, word):
    y = draft.call("aten.conv2d.padding", draft.x(1, 3, 8, 8), draft.w(4, 3, 4, 3), None,
                   padding=word)  # fmt: skip
    check_pass(canonicalize_conv, draft.graph(y))


def test_transposed(draft, check_pass):
    y = draft.call("aten.conv_transpose2d.input", draft.x(1, 4, 5, 5), draft.w(4, 3, 3, 3),
                   draft.w(6), stride=(2, 2), padding=(1, 1), output_padding=(1, 0),
                   groups=2)  # fmt: skip
    check_pass(canonicalize_conv, draft.graph(y))


def test_generic_convolution(draft, check_pass):
    y = draft.call("aten.convolution.default", draft.x(1, 3, 8, 8), draft.w(4, 3, 3, 3), None,
                   stride=(1, 1), padding=(1, 0), dilation=(1, 1), transposed=False,
                   output_padding=(0, 0), groups=1)  # fmt: skip
    check_pass(canonicalize_conv, draft.graph(y))


def test_zero_padding_is_absorbed(draft, check_pass):
    x = draft.call("aten.constant_pad_nd.default", draft.x(1, 3, 8, 8), pad=(0, 1, 2, 3))
    y = draft.call("aten.conv2d.default", x, draft.w(4, 3, 3, 3), None, padding=(1, 1))
    check_pass(canonicalize_conv, draft.graph(y))


def test_other_padding_stays(draft, check_pass):
    x = draft.call("aten.constant_pad_nd.default", draft.x(1, 3, 8, 8), pad=(1, 1), value=2.0)
    y = draft.call("aten.conv2d.default", x, draft.w(4, 3, 3, 3), None)
    x = draft.call("aten.constant_pad_nd.default", draft.x(1, 3, 8, 8), pad=(-1, 1))
    check_pass(
        canonicalize_conv,
        draft.graph(y, draft.call("aten.conv2d.default", x, draft.w(4, 3, 3, 3), None)),
    )


def test_unbatched(draft, check_pass):
    y = draft.call("aten.conv2d.default", draft.x(3, 8, 8), draft.w(4, 3, 3, 3), None)
    check_pass(canonicalize_conv, draft.graph(y))


def test_computed_weights_stay(draft, check_pass):
    y = draft.call("aten.conv2d.default", draft.x(1, 3, 8, 8), draft.x(4, 3, 3, 3), None)
    check_pass(canonicalize_conv, draft.graph(y))


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "dilation"),
    [(14, 3, 1, 24, 24), (5, 5, 1, 8, 4), (6, 3, 2, 6, 6), (1, 3, 1, 1, 1)],
)
def test_taps_that_meet_nothing_are_cut(
    draft, cpu, size: int, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    x, w = draft.x(1, 4, size, size), draft.w(6, 4, kernel, kernel)
    y = draft.call("aten.conv2d.default", x, w, None, stride=(stride,) * 2,
                   padding=(padding,) * 2, dilation=(dilation,) * 2)  # fmt: skip
    graph = draft.graph(y)
    made = canonicalize_conv(graph, cpu)
    (conv,) = (node for node in made.nodes if node.op == "npu.conv")
    assert conv.type.shape == graph.nodes[-1].type.shape
    taps = made.types[conv.inputs[1]].shape[2]
    reached = {
        k
        for k in range(kernel)
        for o in range(conv.type.shape[2])
        if 0 <= o * stride - padding + k * dilation < size
    }
    assert taps == max(reached) - min(reached) + 1 < kernel


@pytest.mark.parametrize("padding", [11, 12])
def test_taps_that_meet_something_stay(draft, cpu, padding: int) -> None:
    y = draft.call("aten.conv2d.default", draft.x(1, 4, 13, 13), draft.w(6, 4, 3, 3), None,
                   padding=(padding,) * 2, dilation=(12, 12))  # fmt: skip
    made = canonicalize_conv(draft.graph(y), cpu)
    assert [node.op for node in made.nodes] == ["npu.conv"]
