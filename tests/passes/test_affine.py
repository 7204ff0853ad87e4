"""affine: what is proved of indices and masks, and what stays unknown."""

import numpy as np
import pytest

from npusim.analysis.affine import Affine
from npusim.analysis.causal import Causal, Mask, causal_mask, is_position_range, visible
from npusim.analysis.known_values import analyse

INF = float("inf")


def position(draft):
    return draft.x(1, dtype="int64", name="position")


def arange(draft, end):
    return draft.call("aten.arange.start_step", start=0, end=end, step=1, dtype="int64")


def of(draft, value):
    """Returns what is known of a value, and its type."""
    graph = draft.graph(value)
    return analyse(graph).get(value), graph.types[value]


def rows(draft, length=3, at=None):
    """position + arange(length), as [length, 1]; a single token's range is the position."""
    index = draft.call("aten.add.Tensor", arange(draft, length), at or position(draft), alpha=1)
    return draft.call("aten.unsqueeze.default", index, dim=1)


def keys(draft, length=10):
    return draft.call("aten.unsqueeze.default", arange(draft, length), dim=0)


def causal(draft, length=3):
    return draft.call("aten.le.Tensor", keys(draft), rows(draft, length))


def read(draft, mask, length=3):
    found, type = of(draft, mask)
    return causal_mask(found, type, (length, 10))


def test_ranges_from_a_position(draft):
    index = draft.call("aten.add.Tensor", arange(draft, 4), position(draft), alpha=1)
    found, type = of(draft, index)
    assert found == Affine(0, (1,), 1, "position")
    assert is_position_range(found, type) == "position"


def test_one_token_is_at_the_position_itself(draft):
    found, type = of(draft, position(draft))
    assert is_position_range(found, type) == "position"


def test_a_computed_scalar_is_a_position(draft):
    p = draft.call("aten.add.Tensor", position(draft), draft.x(1, dtype="int64", name="q"))
    index = draft.call("aten.add.Tensor", p, arange(draft, 4), alpha=1)
    found, type = of(draft, index)
    assert is_position_range(found, type) == p


@pytest.mark.parametrize("change", ["shifted", "doubled", "step", "backwards"])
def test_other_ranges_are_not_positions(draft, change):
    p, a = position(draft), arange(draft, 4)
    if change == "shifted":
        a = draft.call("aten.add.Scalar", a, other=1, alpha=1)
    elif change == "doubled":
        p = draft.call("aten.mul.Scalar", p, other=2)
    elif change == "step":
        a = draft.call("aten.mul.Scalar", a, other=2)
    else:
        a = draft.call("aten.neg.default", a)
    found, type = of(draft, draft.call("aten.add.Tensor", a, p, alpha=1))
    assert is_position_range(found, type) is None


def test_views_and_arithmetic_keep_count_of_indices(draft):
    a = draft.call("aten.view.default", arange(draft, 8), size=(8, 1))
    a = draft.call("aten.expand.default", a, size=(2, 8, 3))
    a = draft.call("aten.permute.default", a, dims=(1, 0, 2))
    a = draft.call("aten.slice.Tensor", a, dim=0, start=2, end=8, step=3)
    a = draft.call("aten.rsub.Scalar", a, other=5, alpha=1)
    a = draft.call("aten._to_copy.default", a, dtype="int32")
    assert of(draft, a)[0] == Affine(3, (-3, 0, 0))


def test_reshapes_that_mix_indices_are_unknown(draft):
    a = draft.call("aten.view.default", arange(draft, 8), size=(2, 4))
    assert of(draft, a)[0] is None


def test_constants_are_affine_or_unknown(draft):
    grid = 3 * np.arange(4)[:, None] - np.arange(5) + 7
    straight = draft.c(grid, "int64")
    bent = draft.c(np.where(grid == 7, 8, grid), "int64")
    graph = draft.graph(straight, bent)
    assert analyse(graph) == {straight: Affine(7, (3, -1))}


def test_narrow_integers_may_wrap(draft):
    assert of(draft, draft.call("aten._to_copy.default", arange(draft, 4), dtype="int8"))[0] is None


@pytest.mark.parametrize("length", [1, 3])
def test_causal_mask(draft, length):
    assert read(draft, causal(draft, length), length) == Causal("position", 0)


@pytest.mark.parametrize("and_", ["bitwise_and.Tensor", "logical_and.default"])
def test_window(draft, and_):
    p = position(draft)
    below = draft.call("aten.sub.Scalar", rows(draft, at=p), other=4, alpha=1)
    window = draft.call("aten.gt.Tensor", keys(draft), below)
    future = draft.call("aten.ge.Tensor", rows(draft, at=p), keys(draft))
    always = draft.call("aten.full.default", size=(), fill_value=True, dtype="bool")
    mask = draft.call("aten.bitwise_and.Tensor", always, window)
    mask = draft.call(f"aten.{and_}", mask, future)
    mask = draft.call("aten.expand.default", mask, size=(2, 1, 3, 10))
    assert read(draft, mask) == Causal("position", 4)


def test_negation_and_filling_hide(draft):
    visible = causal(draft)
    hidden = draft.call("aten.bitwise_not.default", visible)
    zeros = draft.call("aten.full.default", size=(3, 10), fill_value=0.0, dtype="float32")
    lowest = float(np.finfo(np.float32).min)
    mask = draft.call("aten.masked_fill.Scalar", zeros, hidden, value=lowest)
    assert read(draft, mask) == Causal("position", 0)


def test_where_hides(draft):
    lowest = draft.c(-INF, name="lowest")
    mask = draft.call("aten.where.self", causal(draft), draft.c(0.0, name="zero"), lowest)
    assert read(draft, mask) == Causal("position", 0)


@pytest.mark.parametrize("change", ["strict", "offset", "reverse", "weak", "two_windows", "or"])
def test_other_masks_are_not_causal(draft, change):
    p = position(draft)
    q, k = rows(draft, at=p), keys(draft)
    mask = draft.call("aten.le.Tensor", k, q)
    if change == "strict":
        mask = draft.call("aten.lt.Tensor", k, q)
    elif change == "offset":
        mask = draft.call("aten.le.Tensor", k, draft.call("aten.add.Scalar", q, other=1, alpha=1))
    elif change == "reverse":
        mask = draft.call("aten.ge.Tensor", k, q)
    elif change == "weak":  # -1 lets the softmax see what is hidden
        mask = draft.call("aten.where.self", mask, draft.c(0.0), draft.c(-1.0, name="low"))
    else:
        for size in (4, 5):
            below = draft.call("aten.sub.Scalar", q, other=size, alpha=1)
            window = draft.call("aten.gt.Tensor", k, below)
            op = "aten.bitwise_or.Tensor" if change == "or" else "aten.bitwise_and.Tensor"
            mask = draft.call(op, mask, window)
    assert read(draft, mask) is None


def test_a_window_from_another_position_is_not_causal(draft):
    other = draft.x(1, dtype="int64", name="other")
    below = draft.call("aten.sub.Scalar", rows(draft, at=other), other=4, alpha=1)
    window = draft.call("aten.gt.Tensor", keys(draft), below)
    assert read(draft, draft.call("aten.bitwise_and.Tensor", causal(draft), window)) is None


def test_an_unknown_condition_spoils_a_mask(draft):
    padding = draft.x(1, 10, dtype="bool", name="padding")
    assert read(draft, draft.call("aten.bitwise_and.Tensor", causal(draft), padding)) is None


@pytest.mark.parametrize(
    ("number", "dtype", "held"), [(1e-50, "float32", 0.0), (-1e5, "float16", -INF)]
)
def test_numbers_are_those_that_the_dtype_holds(draft, number, dtype, held):
    value = draft.call("aten.full.default", size=(2, 3), fill_value=number, dtype=dtype)
    assert of(draft, value)[0].value == held


@pytest.mark.parametrize(("dtype", "factor"), [("int64", 2**62), ("int32", 2**30)])
def test_what_may_wrap_is_unknown(draft, dtype, factor):
    index = draft.call("aten.arange.start_step", start=0, end=4, step=1, dtype=dtype)
    found, _ = of(draft, draft.call("aten.mul.Scalar", index, other=factor))
    assert found is None


def test_masks_that_broadcast_along_queries_are_not_causal(draft):
    found, type = of(draft, causal(draft, 1))
    assert causal_mask(found, type, (1, 10)) == Causal("position", 0)
    assert causal_mask(found, type, (3, 10)) is None
    assert causal_mask(found, type, (1, 11)) is None


@pytest.mark.parametrize(("number", "shows"), [(0.0, True), (1.0, False), (-INF, False)])
def test_a_mask_of_one_number_shows_all_or_is_unknown(draft, number, shows):
    value = draft.call("aten.full.default", size=(3, 10), fill_value=number, dtype="float32")
    assert visible(of(draft, value)[0], "float32") == (Mask(frozenset()) if shows else None)


def pieces(draft, *spans):
    parts = [
        draft.call("aten.arange.start_step", start=a, end=b, step=s, dtype="int64")
        for a, b, s in spans
    ]
    return of(draft, draft.call("aten.cat.default", *parts, tensors=len(parts), dim=0))[0]


@pytest.mark.parametrize(
    ("spans", "joined"),
    [
        (((0, 3, 1), (3, 7, 1)), Affine(0, (1,))),
        (((5, 6, 1), (8, 9, 1)), Affine(5, (3,))),  # of one number each
        (((5, 6, 1), (6, 9, 1)), Affine(5, (1,))),
        (((2, 8, 2), (8, 9, 1), (10, 14, 2)), Affine(2, (2,))),
        (((0, 3, 1), (4, 7, 1)), None),
        (((0, 3, 1), (3, 9, 2)), None),
        (((5, 6, 1), (8, 9, 1), (12, 13, 1)), None),
        (((0, 3, 1), (4, 5, 1)), None),
    ],
)
def test_pieces_that_go_on_are_one_range(draft, spans, joined):
    assert pieces(draft, *spans) == joined


def test_pieces_of_which_one_is_unknown_are_unknown(draft):
    parts = arange(draft, 3), draft.x(2, dtype="int64", name="others")
    assert of(draft, draft.call("aten.cat.default", *parts, tensors=2, dim=0))[0] is None


@pytest.mark.parametrize(("number", "sums"), [(1, (1, 1)), (3, (3, 3)), (0, (0, 0))])
def test_running_sums_of_one_number_are_affine(draft, number, sums):
    value = draft.call("aten.full.default", size=(4,), fill_value=number, dtype="int64")
    found, _ = of(draft, draft.call("aten.cumsum.default", value, dim=0))
    first, step = sums
    assert found == Affine(first, (step,))


@pytest.mark.parametrize("truth", [True, False])
def test_running_sums_of_one_truth_are_affine(draft, truth):
    value = draft.call("aten.full.default", size=(4,), fill_value=truth, dtype="bool")
    found, _ = of(draft, draft.call("aten.cumsum.default", value, dim=0))
    assert found == (Affine(1, (1,)) if truth else Affine(0, (0,)))


def test_running_sums_of_a_range_are_unknown(draft):
    assert of(draft, draft.call("aten.cumsum.default", arange(draft, 4), dim=0))[0] is None


def test_running_sums_of_a_mask_are_unknown(draft):
    assert of(draft, draft.call("aten.cumsum.default", causal(draft), dim=1))[0] is None
