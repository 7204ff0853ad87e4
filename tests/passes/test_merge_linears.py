"""merge_linears: the projections of one attention become one product."""

import pytest

from npusim.passes.canonicalize_linear import canonicalize_linear
from npusim.passes.merge_linears import merge_linears


def merged(graph, target):
    return merge_linears(canonicalize_linear(graph, target), target)


def projection(draft, x, width=12, bias=True):
    y = draft.call("aten.linear.default", x, draft.w(width, 8), draft.w(width) if bias else None)
    y = draft.call("aten.view.default", y, size=(2, 5, 3, width // 3))
    return draft.call("aten.permute.default", y, dims=(0, 2, 1, 3))


def attend(draft, *operands):
    return draft.call("aten.scaled_dot_product_attention.default", *operands, None)


@pytest.mark.parametrize("biases", [(True, True, True), (True, False, True), (False,) * 3])
def test_query_key_value(draft, check_pass, biases):
    x = draft.x(2, 5, 8)
    y = attend(draft, *(projection(draft, x, bias=b) for b in biases))
    check_pass(merged, draft.graph(y))


def test_cross_attention_merges_keys_and_values(draft, check_pass):
    x, memory = draft.x(2, 5, 8), draft.x(2, 5, 8, name="memory")
    operands = projection(draft, x), projection(draft, memory), projection(draft, memory, 6)
    check_pass(merged, draft.graph(attend(draft, *operands)))


def test_each_attention_keeps_its_own(draft, check_pass):
    memory = draft.x(2, 5, 8, name="memory")
    outputs = []
    for name in "ab":
        q = draft.x(2, 3, 5, 4, name=name)
        outputs.append(attend(draft, q, projection(draft, memory), projection(draft, memory)))
    check_pass(merged, draft.graph(*outputs))


def test_other_readers_prevent_it(draft, check_pass):
    x = draft.x(2, 5, 8)
    k = projection(draft, x)
    y = attend(draft, projection(draft, x), k, draft.x(2, 3, 5, 4, name="v"))
    check_pass(merged, draft.graph(y, draft.call("aten.exp.default", k)))


def test_views_that_need_dense_rows_prevent_it(draft, check_pass):
    x = draft.x(2, 5, 8)
    operands = []
    for _ in range(3):
        y = draft.call("aten.linear.default", x, draft.w(12, 8), None)
        operands.append(draft.call("aten.view.default", y, size=(2, 3, 5, 4)))
    check_pass(merged, draft.graph(attend(draft, *operands)))


def over_cache(draft, x, normed=False, length=5):
    """Attention over a cache of projections that are turned and appended, perhaps normed before."""
    y = [draft.call("aten.linear.default", x, draft.w(width, 8), None) for width in (16, 8, 8)]
    y = [draft.call("aten.view.default", p, size=(1, length, -1, 4)) for p in y]
    if normed:
        y[:2] = [draft.call("aten.rms_norm.default", p, draft.w(4), normalized_shape=(4,), eps=1e-6)
                 for p in y[:2]]  # fmt: skip
    y = [draft.call("aten.permute.default", p, dims=(0, 2, 1, 3)) for p in y]
    angles = [draft.x(1, length, 4, name=name) for name in ("cos", "sin")]
    caches = [draft.x(1, 2, 16, 4, name=name) for name in ("keys", "values")]
    position = draft.x(1, dtype="int64", name="position")
    q, k, v = draft.call("npu.rope_append", *y, *angles, *caches, position,
                         interleaved=False, rotary_dim=4)  # fmt: skip
    y = draft.call("npu.cached_attention", q, k, v, position, scale=0.5, softcap=0.0, window=0)
    return y, k, v


def test_rotation_and_append_take_strided_rows(draft, check_pass):
    check_pass(merged, draft.graph(*over_cache(draft, draft.x(1, 5, 8))))


@pytest.mark.parametrize("length", [1, 5])
def test_norms_of_heads_take_the_rows_of_one_token(draft, check_pass, length):
    check_pass(merged, draft.graph(*over_cache(draft, draft.x(1, length, 8), True, length)))


def test_rotation_and_append_on_their_own(draft, check_pass):
    x, position = draft.x(1, 5, 8), draft.x(1, dtype="int64", name="position")
    k, v = (draft.call("aten.linear.default", x, draft.w(8, 8), None) for _ in "kv")
    k, v = (draft.call("aten.view.default", p, size=(1, 5, 2, 4)) for p in (k, v))
    k, v = (draft.call("aten.permute.default", p, dims=(0, 2, 1, 3)) for p in (k, v))
    angles = [draft.x(1, 5, 4, name=name) for name in ("cos", "sin")]
    k = draft.call("npu.rope", k, *angles, interleaved=False, rotary_dim=4)
    k, v = (draft.call("npu.cache_append", p, draft.x(1, 2, 16, 4, name=n), position)
            for p, n in ((k, "keys"), (v, "values")))  # fmt: skip
    q = draft.x(1, 4, 5, 4, name="q")
    y = draft.call("npu.cached_attention", q, k, v, position, scale=0.5, softcap=0.0, window=0)
    check_pass(merged, draft.graph(y))
