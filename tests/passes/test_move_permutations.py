"""move_permutations: products take rows in the order they lie in."""

from npusim.ops.fused import NO_EPILOGUE
from npusim.passes.move_permutations import move_permutations


def _linear(draft, x, k=8, n=6):
    return draft.call("npu.linear", x, draft.w(n, k), None, None, **NO_EPILOGUE)


def test_swapped_rows_are_swapped_behind_the_product(draft, check_pass):
    x = draft.call("aten.permute.default", draft.x(3, 5, 8), dims=(1, 0, 2))
    y = draft.call("aten.view.default", _linear(draft, x), size=(5, 3, 2, 3))
    check_pass(move_permutations, draft.graph(draft.call("aten.exp.default", y)))


def test_rows_of_heads_joined_before_the_product(draft, check_pass):
    x = draft.call("aten.permute.default", draft.x(3, 2, 5, 4), dims=(2, 0, 1, 3))
    x = draft.call("aten.view.default", x, size=(15, 8))
    y = draft.call("aten.view.default", _linear(draft, x), size=(5, 3, 6))
    y = draft.call("aten.permute.default", y, dims=(1, 0, 2))
    check_pass(move_permutations, draft.graph(draft.call("aten.exp.default", y)))


def test_a_result_that_is_computed_with_keeps_its_order(draft, check_pass):
    x = draft.call("aten.permute.default", draft.x(3, 5, 8), dims=(1, 0, 2))
    check_pass(move_permutations, draft.graph(draft.call("aten.exp.default", _linear(draft, x))))


def test_a_result_of_the_graph_keeps_its_order(draft, check_pass):
    x = draft.call("aten.permute.default", draft.x(3, 5, 8), dims=(1, 0, 2))
    check_pass(move_permutations, draft.graph(_linear(draft, x)))


def test_rows_in_order_stay(draft, check_pass):
    x = draft.call("aten.permute.default", draft.x(3, 8, 5), dims=(0, 2, 1))
    y = draft.call("aten.view.default", _linear(draft, x), size=(15, 6))
    check_pass(move_permutations, draft.graph(draft.call("aten.exp.default", y)))


def test_a_permutation_that_a_reshape_cuts_across_stays(draft, check_pass):
    x = draft.call("aten.permute.default", draft.x(3, 5, 8), dims=(1, 0, 2))
    x = draft.call("aten.view.default", x, size=(10, 12))
    y = draft.call("aten.view.default", _linear(draft, x, k=12), size=(60,))
    check_pass(move_permutations, draft.graph(draft.call("aten.exp.default", y)))
