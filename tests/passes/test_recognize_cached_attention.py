"""recognize_cached_attention: proved masks over appended caches go, everything else stays."""

import pytest

from npusim.passes.recognize_cached_attention import recognize_cached_attention

ROWS = 16


def at(draft, name="position"):
    return draft.x(1, dtype="int64", name=name)


def append(draft, name, position, heads=2):
    x, cache = draft.x(1, heads, 3, 4, name=name), draft.x(1, heads, ROWS, 4, name=f"{name}_cache")
    return draft.call("npu.cache_append", x, cache, position)


def repeated(draft, x, count=2):
    b, g, s, d = draft.types[x].shape
    x = draft.call("aten.unsqueeze.default", x, dim=2)
    x = draft.call("aten.expand.default", x, size=(b, g, count, s, d))
    return draft.call("aten.view.default", x, size=(b, g * count, s, d))


def mask(draft, position, window=0, off=0):
    rows = draft.call("aten.arange.start_step", start=0, end=3, step=1, dtype="int64")
    rows = draft.call("aten.add.Tensor", rows, position, alpha=1)
    rows = draft.call("aten.view.default", rows, size=(1, 1, 3, 1))
    keys = draft.call("aten.arange.start_step", start=off, end=ROWS + off, step=1, dtype="int64")
    keys = draft.call("aten.view.default", keys, size=(1, 1, 1, ROWS))
    seen = draft.call("aten.le.Tensor", keys, rows)
    if window:
        below = draft.call("aten.sub.Scalar", rows, other=window, alpha=1)
        seen = draft.call("aten.bitwise_and.Tensor", seen,
                          draft.call("aten.gt.Tensor", keys, below))  # fmt: skip
    return seen


def attend(draft, k, v, seen, **attrs):
    q = draft.x(1, 4, 3, 4, name="q")
    return draft.call("aten.scaled_dot_product_attention.default", q, k, v, seen, **attrs)


def cached(draft, position):
    return [append(draft, name, position) for name in "kv"]


@pytest.mark.parametrize("window", [0, 5, ROWS])
def test_repeated_heads(draft, check_pass, window):
    position = at(draft)
    k, v = (repeated(draft, x) for x in cached(draft, position))
    y = attend(draft, k, v, mask(draft, position, window))
    check_pass(recognize_cached_attention, draft.graph(y))


def test_grouped_queries(draft, check_pass):
    position = at(draft)
    y = attend(draft, *cached(draft, position), mask(draft, position), enable_gqa=True, scale=0.3)
    check_pass(recognize_cached_attention, draft.graph(y))


def written_out(draft, position, cap, truth=False):
    q = draft.x(1, 4, 3, 4, name="q")
    k, v = (repeated(draft, x) for x in cached(draft, position))
    k = draft.call("aten.permute.default", k, dims=(0, 1, 3, 2))
    y = draft.call("aten.mul.Scalar", draft.call("aten.matmul.default", q, k), other=0.5)
    y = draft.call("aten.div.Scalar", y, other=cap[0])
    y = draft.call("aten.mul.Scalar", draft.call("aten.tanh.default", y), other=cap[1])
    hidden = mask(draft, position)
    if not truth:
        hidden = draft.call(
            "aten.where.ScalarOther", hidden, draft.c(0.0, name="zero"), other=-1e30
        )
    y = draft.call("aten.add.Tensor", y, hidden, alpha=1)
    y = draft.call("aten.softmax.int", y, dim=-1, dtype="float32")
    return draft.call("aten.matmul.default", y, v)


@pytest.mark.parametrize("cap", [(3.0, 3.0), (3.0, 2.0)])
def test_written_out_with_a_cap(draft, check_pass, cap):
    check_pass(recognize_cached_attention, draft.graph(written_out(draft, at(draft), cap)))


@pytest.mark.parametrize("change", ["negative_cap", "added_truth"])
def test_other_formulas_stay(draft, check_pass, change):
    cap = (3.0, -3.0 if change == "negative_cap" else 3.0)
    y = written_out(draft, at(draft), cap, truth=change == "added_truth")
    check_pass(recognize_cached_attention, draft.graph(y))


@pytest.mark.parametrize("change", ["off_by_one", "other_position", "unknown", "broadcast"])
def test_other_masks_stay(draft, check_pass, change):
    position = at(draft)
    k, v = (repeated(draft, x) for x in cached(draft, position))
    seen = mask(draft, position, off=1 if change == "off_by_one" else 0)
    if change == "other_position":
        seen = mask(draft, at(draft, "other"))
    elif change == "unknown":
        seen = draft.call("aten.bitwise_and.Tensor", seen, draft.x(1, 1, 1, ROWS, dtype="bool"))
    elif change == "broadcast":
        seen = draft.call("aten.slice.Tensor", seen, dim=2, start=0, end=1)
    check_pass(recognize_cached_attention, draft.graph(attend(draft, k, v, seen)))


def test_keys_that_nobody_appended_stay(draft, check_pass):
    position = at(draft)
    k = draft.x(1, 2, ROWS, 4, name="keys")
    y = attend(draft, k, append(draft, "v", position), mask(draft, position), enable_gqa=True)
    check_pass(recognize_cached_attention, draft.graph(y))
