"""fuse_rope_append: one op prepares an attention over a cache, unless somebody looks in between."""

import pytest

from npusim.passes.fuse_rope_append import fuse_rope_append

ATTRS = {"interleaved": False, "rotary_dim": 4}
ATTENTION = {"scale": 0.5, "softcap": 0.0, "window": 0}


def angles(draft, suffix=""):
    return [draft.x(1, 3, 4, name=name + suffix) for name in ("cos", "sin")]


def cache(draft, name):
    return draft.x(1, 2, 16, 6, name=f"{name}_cache")


def build(draft, change=""):
    """Returns (attention, turned q, turned k, keys, values)."""
    position = draft.x(1, dtype="int64", name="position")
    tables = angles(draft)
    q = draft.call("npu.rope", draft.x(1, 4, 3, 6, name="q"), *tables, **ATTRS)
    others = angles(draft, "2") if change == "tables" else tables
    if change == "shape":  # each reads the tables through a view of its own
        flat = [draft.call("aten.view.default", t, size=(3, 4)) for t in tables]
        others = [draft.call("aten.view.default", t, size=(1, 3, 4)) for t in flat]
    k = draft.call("npu.rope", draft.x(1, 2, 3, 6, name="k"), *others, **ATTRS)
    keys = draft.call("npu.cache_append", k, cache(draft, "k"), position)
    v = draft.x(1, 2, 3, 6, name="v")
    if change == "depends":
        rows = draft.call("aten.slice.Tensor", keys, dim=2, start=0, end=3)
        v = draft.call("aten.add.Tensor", v, rows, alpha=1)
    at = draft.x(1, dtype="int64", name="other") if change == "position" else position
    values = draft.call("npu.cache_append", v, cache(draft, "v"), at)
    y = draft.call("npu.cached_attention", q, keys, values, position, **ATTENTION)
    return y, q, k, keys, values


@pytest.mark.parametrize("tables", ["", "shape"])
def test_caches_are_seen_outside(draft, check_pass, tables):
    y, _, _, keys, values = build(draft, tables)
    check_pass(fuse_rope_append, draft.graph(y, keys, values))


def test_a_cache_is_read_again_before_the_attention(draft, check_pass):
    y, _, _, keys, _ = build(draft)
    check_pass(fuse_rope_append, draft.graph(draft.call("aten.exp.default", keys), y))


@pytest.mark.parametrize("change", ["tables", "position", "depends", "read_q", "read_k"])
def test_what_does_not_belong_together_stays(draft, check_pass, change):
    y, q, k, _, _ = build(draft, change)
    extra = {"read_q": [q], "read_k": [k]}.get(change, [])
    check_pass(fuse_rope_append, draft.graph(y, *extra))
