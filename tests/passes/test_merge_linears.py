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
