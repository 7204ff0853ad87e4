"""select_kernels: each convolution gets an algorithm."""

import pytest

from npusim.passes.canonicalize_conv import canonicalize_conv
from npusim.passes.select_kernels import select_kernels, winograd_tile
from npusim.targets.architecture import fitted

COSTS = fitted("x86_64").winograd


def algorithm(draft, cpu, x, w, op="aten.conv2d.default", **attrs):
    y = draft.call(op, draft.x(*x), draft.w(*w), None, **attrs)
    graph = select_kernels(canonicalize_conv(draft.graph(y), cpu), cpu)
    return graph.nodes[-1].attrs["algorithm"]


@pytest.mark.parametrize(
    ("x", "w", "attrs", "expected"),
    [
        ((1, 8, 9, 9), (8, 1, 3, 3), {"groups": 8}, "depthwise"),
        ((1, 8, 9, 9), (16, 1, 3, 3), {"groups": 8}, "igemm"),
        ((1, 64, 56, 56), (64, 64, 3, 3), {"padding": (1, 1)}, "winograd4"),
        ((1, 512, 8, 8), (512, 512, 3, 3), {"padding": (1, 1)}, "winograd2"),
        ((1, 64, 56, 56), (64, 64, 3, 3), {"stride": (2, 2)}, "igemm"),
        ((1, 64, 56, 56), (64, 64, 3, 3), {"dilation": (2, 2)}, "igemm"),
        ((1, 64, 56, 56), (64, 32, 3, 3), {"groups": 2}, "igemm"),
        ((1, 64, 56, 56), (64, 64, 5, 5), {}, "igemm"),
        ((1, 8, 56, 56), (8, 8, 3, 3), {}, "igemm"),
    ],
)
def test_shapes(draft, cpu, x, w, attrs, expected):
    assert algorithm(draft, cpu, x, w, **attrs) == expected


def test_transposed_convolutions_never_use_winograd(draft, cpu):
    op = "aten.conv_transpose2d.input"
    assert algorithm(draft, cpu, (1, 64, 56, 56), (64, 64, 3, 3), op) == "igemm"


def test_a_target_without_winograd_uses_gemm():
    assert winograd_tile(64, (1, 64, 56, 56), (), COSTS) == 0


def test_golden(draft, check_pass):
    x = draft.call("aten.conv2d.default", draft.x(1, 4, 8, 8), draft.w(4, 1, 3, 3), None, groups=4)
    y = draft.call("aten.conv2d.default", x, draft.w(4, 4, 1, 1), None)
    check_pass(
        lambda graph, target: select_kernels(canonicalize_conv(graph, target), target),
        draft.graph(y),
    )


def test_winograd_is_chosen_where_its_count_is_less():
    """9·32·32·(76 + 5) < 16·(19·(32·32 + 9·64) + 16·32·32), and one tile more turns it round."""
    assert 9 * 1024 * (76 + 5) == 746496 < 16 * (19 * 1600 + 16 * 1024) == 748544
    assert winograd_tile(32, (1, 32, 2, 38), (2,), COSTS) == 0
    assert 9 * 1024 * (80 + 5) == 783360 > 16 * (20 * 1600 + 16 * 1024) == 774144
    assert winograd_tile(32, (1, 32, 2, 40), (2,), COSTS) == 2
    assert winograd_tile(31, (1, 32, 2, 400), (2,), COSTS) == 0
