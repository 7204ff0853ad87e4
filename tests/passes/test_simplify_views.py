"""simplify_views: chains of reshapes and permutations become one, or none."""

from npusim.passes.simplify_views import simplify_views


def test_reshapes_join(draft, check_pass):
    y = draft.call("aten.view.default", draft.x(2, 3, 4), size=(6, 4))
    y = draft.call("aten.unsqueeze.default", y, dim=0)
    check_pass(simplify_views, draft.graph(draft.call("aten.squeeze.dim", y, dim=0)))


def test_reshapes_cancel(draft, check_pass):
    x = draft.x(2, 3)
    y = draft.call("aten.view.default", draft.call("aten.unsqueeze.default", x, dim=0), size=(2, 3))
    check_pass(simplify_views, draft.graph(draft.call("aten.exp.default", y)))


def test_permutations_join(draft, check_pass):
    y = draft.call("aten.permute.default", draft.x(2, 3, 4), dims=(2, 0, 1))
    check_pass(simplify_views, draft.graph(draft.call("aten.transpose.int", y, dim0=0, dim1=-1)))


def test_transposes_cancel(draft, check_pass):
    y = draft.call("aten.transpose.int", draft.x(2, 3, 4), dim0=1, dim1=2)
    y = draft.call("aten.permute.default", y, dims=(0, 2, 1))
    check_pass(simplify_views, draft.graph(draft.call("aten.exp.default", y)))


def test_moving_an_extent_of_one_is_a_reshape(draft, check_pass):
    y = draft.call("aten.permute.default", draft.x(1, 3, 4), dims=(1, 0, 2))
    check_pass(simplify_views, draft.graph(draft.call("aten.view.default", y, size=(3, 4))))


def test_a_view_with_other_users_is_passed_by(draft, check_pass):
    y = draft.call("aten.view.default", draft.x(2, 3), size=(3, 2))
    z = draft.call("aten.view.default", y, size=(6,))
    check_pass(simplify_views, draft.graph(draft.call("aten.exp.default", y), z))


def test_heads_split_off_after_a_permutation(draft, check_pass):
    """As attention layers do: batch and heads become one extent, and part again behind."""
    y = draft.call("aten.view.default", draft.x(5, 3, 8), size=(5, 6, 4))
    y = draft.call("aten.permute.default", y, dims=(1, 0, 2))
    y = draft.call("aten.view.default", y, size=(3, 2, 5, 4))
    check_pass(simplify_views, draft.graph(draft.call("aten.exp.default", y)))


def test_long_chains_cancel(draft, check_pass):
    y = draft.call("aten.permute.default", draft.x(3, 5, 8), dims=(1, 0, 2))
    y = draft.call("aten.view.default", y, size=(15, 8))
    y = draft.call("aten.view.default", y, size=(5, 3, 8))
    y = draft.call("aten.permute.default", y, dims=(1, 0, 2))
    check_pass(simplify_views, draft.graph(draft.call("aten.exp.default", y)))


def test_extents_without_common_factors_begin_a_new_chain(draft, check_pass):
    y = draft.call("aten.view.default", draft.x(4, 6), size=(3, 8))
    y = draft.call("aten.permute.default", y, dims=(1, 0))
    y = draft.call("aten.view.default", y, size=(2, 4, 3))
    y = draft.call("aten.permute.default", y, dims=(0, 2, 1))
    y = draft.call("aten.permute.default", y, dims=(2, 0, 1))
    check_pass(simplify_views, draft.graph(draft.call("aten.exp.default", y)))


def test_nothing_in_an_empty_tensor_is_regrouped(draft, check_pass):
    y = draft.call("aten.view.default", draft.x(0, 6), size=(3, 0))
    y = draft.call("aten.permute.default", y, dims=(1, 0))
    y = draft.call("aten.view.default", y, size=(0, 3, 1))
    check_pass(simplify_views, draft.graph(draft.call("aten.exp.default", y)))
