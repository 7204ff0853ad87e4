"""recognize_cache_append: writes at position + arange become appends, other writes stay."""

import pytest

from npusim.passes.recognize_cache_append import recognize_cache_append


def index(draft, length=3, step=1, at=None):
    a = draft.call("aten.arange.start_step", start=0, end=length * step, step=step, dtype="int64")
    p = at or draft.x(1, dtype="int64", name="position")
    return draft.call("aten.add.Tensor", a, p, alpha=1)


def operands(draft, length=3, rows=20, batch=1):
    cache = draft.x(batch, 2, rows, 4, name="cache")
    return cache, draft.x(batch, 2, length, 4, name="x")


def put(draft, cache, at, x, dim=2):
    return draft.call("aten.index_put.default", cache, *[None] * dim, at, x,
                      indices=dim + 1, accumulate=False)  # fmt: skip


@pytest.mark.parametrize("length", [1, 3])
def test_index_put(draft, check_pass, length):
    cache, x = operands(draft, length, batch=2)
    check_pass(recognize_cache_append, draft.graph(put(draft, cache, index(draft, length), x)))


def test_index_copy_at_a_scalar_position(draft, check_pass):
    cache, x = operands(draft)
    at = index(draft, at=draft.x(dtype="int64", name="position"))
    y = draft.call("aten.index_copy.default", cache, at, x, dim=2)
    check_pass(recognize_cache_append, draft.graph(y))


def test_state_is_updated(draft, check_pass):
    _, x = operands(draft)
    cache = draft.state("keys", draft.types["cache"])
    draft.types["keys"] = draft.types["cache"]
    y = put(draft, cache, index(draft), x)
    draft.update("keys", y)
    check_pass(recognize_cache_append, draft.graph(draft.call("aten.exp.default", y)))


@pytest.mark.parametrize("change", ["step", "unknown", "accumulate", "broadcast", "heads"])
def test_other_writes_stay(draft, check_pass, change):
    cache, x = operands(draft)
    at = index(draft, step=2 if change == "step" else 1)
    if change == "unknown":
        at = draft.x(3, dtype="int64", name="index")
    if change == "heads":
        at = draft.x(1, dtype="int64", name="head")
        at = draft.call("aten.clamp.default", at, min=0, max=1)
        y = put(draft, cache, at, draft.x(1, 1, 20, 4, name="rows"), dim=1)
    elif change == "broadcast":
        y = put(draft, cache, at, draft.x(1, 1, 3, 4, name="row"))
    else:
        y = draft.call("aten.index_put.default", cache, None, None, at, x, indices=3,
                       accumulate=change == "accumulate")  # fmt: skip
    check_pass(recognize_cache_append, draft.graph(y))
