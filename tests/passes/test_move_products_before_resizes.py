"""move_products_before_resizes: images are multiplied as long as they are small."""

import pytest

from npusim.ops.fused import NO_EPILOGUE
from npusim.passes.move_products_before_resizes import move_products_before_resizes

POINT = {
    "stride": (1, 1), "padding": (0, 0), "padding_back": (0, 0), "dilation": (1, 1),
    "output_padding": (0, 0), "groups": 1, "transposed": False, "algorithm": "auto", **NO_EPILOGUE,
}  # fmt: skip


def enlarged(draft, x, size, mode="bilinear"):
    attrs = {"align_corners": False} if mode != "nearest" else {}
    return draft.call(f"aten.upsample_{mode}2d.vec", x, output_size=size, scale_factors=None,
                      **attrs)  # fmt: skip


def head(draft, parts, channels, out=48, **changes):
    x = draft.call("aten.cat.default", *parts, tensors=len(parts), dim=1)
    size = changes.pop("kernel", 1)
    weight, bias = draft.w(out, channels, size, size), draft.w(out)
    return draft.call("npu.conv", x, weight, bias, None, **{**POINT, "act": "relu", **changes})


def test_a_head_of_segmentation(draft, check_pass):
    size = (8, 12)
    parts = [
        enlarged(draft, draft.x(2, 64, 2, 3, name="a"), size),
        enlarged(draft, draft.x(2, 65, 4, 6, name="b"), size, "nearest"),
        draft.x(2, 4, *size, name="c"),
    ]
    graph = check_pass(move_products_before_resizes, draft.graph(head(draft, parts, 133)))
    products = [n for n in graph.nodes if n.op == "npu.conv"]
    assert [n.type.shape[2:] for n in products] == [(2, 3), (4, 6), size]
    assert not any(n.op == "aten.cat.default" for n in graph.nodes)


def test_what_is_not_enlarged_stays_joined(draft, check_pass):
    size = (8, 8)
    parts = [draft.x(1, 8, *size, name="a"),
             enlarged(draft, draft.x(1, 64, 4, 4, name="b"), size, "bicubic"),
             draft.x(1, 9, *size, name="c")]  # fmt: skip
    graph = check_pass(move_products_before_resizes, draft.graph(head(draft, parts, 81)))
    joined = [n for n in graph.nodes if n.op == "aten.cat.default"]
    assert [n.type.shape[1] for n in joined] == [17, 17], "images, and columns of the weight"


def test_the_last_of_images_that_are_all_enlarged_has_the_bias(draft, check_pass):
    parts = [enlarged(draft, draft.x(1, 64, 2, 2, name=n), (6, 6)) for n in "ab"]
    graph = check_pass(move_products_before_resizes, draft.graph(head(draft, parts, 128)))
    assert [n.type.shape[2:] for n in graph.nodes if n.op == "npu.conv"] == [(2, 2), (6, 6)]


@pytest.mark.parametrize(
    ("channels", "small", "changes"),
    [
        (63, 2, {}),  # few channels
        (64, 5, {}),  # hardly enlarged
        (64, 2, {"out": 130}),  # more to enlarge than before
        (64, 2, {"kernel": 3, "padding": (1, 1), "padding_back": (1, 1)}),
        (64, 2, {"padding": (1, 1), "padding_back": (1, 1)}),
        (64, 2, {"stride": (2, 2)}),
    ],
)
def test_others_are_left(draft, cpu, channels, small, changes):
    parts = [draft.x(1, 8, 6, 6), enlarged(draft, draft.x(1, channels, small, small), (6, 6))]
    graph = draft.graph(head(draft, parts, 8 + channels, **changes))
    assert move_products_before_resizes(graph, cpu) == graph


def test_images_that_others_read_are_left(draft, cpu):
    other = enlarged(draft, draft.x(1, 64, 2, 2), (6, 6))
    graph = draft.graph(head(draft, [draft.x(1, 8, 6, 6), other], 72), other)
    assert move_products_before_resizes(graph, cpu) == graph
