"""move_repetition: angles repeated for both halves of a head are computed once."""

import pytest

from npusim.passes.move_repetition import move_repetition


def repeated(draft, y, dim=-1, count=2):
    return draft.call("aten.cat.default", *[y] * count, tensors=count, dim=dim)


@pytest.mark.parametrize("order", [1, -1])
def test_angles(draft, check_pass, order):
    factors = draft.x(1, 3, 1), draft.w(4)
    y = draft.call("aten.mul.Tensor", *factors[::order])
    check_pass(move_repetition, draft.graph(draft.call("aten.cos.default", repeated(draft, y))))


@pytest.mark.parametrize("change", ["wide", "computed", "read", "other"])
def test_other_concatenations_stay(draft, check_pass, change):
    x = draft.x(3, 4 if change == "wide" else 1)
    y = draft.call(
        "aten.mul.Tensor", x, draft.x(4, name="z") if change == "computed" else draft.w(4)
    )
    z = draft.call("aten.exp.default", y) if change == "other" else y
    joined = draft.call("aten.cat.default", y, z, tensors=2, dim=1)
    check_pass(move_repetition, draft.graph(joined, *([y] if change == "read" else [])))


@pytest.mark.parametrize("order", [1, -1])
def test_permuted_angles(draft, check_pass, order):
    factors = draft.w(4, 1), draft.x(2, 1, 3)
    y = draft.call("aten.mul.Tensor", *factors[::order])
    y = draft.call("aten.permute.default", y, dims=(0, 2, 1))
    check_pass(move_repetition, draft.graph(draft.call("aten.cos.default", repeated(draft, y))))


def test_a_product_read_before_its_permutation_stays(draft, cpu):
    y = draft.call("aten.mul.Tensor", draft.w(4, 1), draft.x(2, 1, 3))
    turned = draft.call("aten.permute.default", y, dims=(0, 2, 1))
    graph = draft.graph(repeated(draft, turned), y)
    assert move_repetition(graph, cpu) == graph
