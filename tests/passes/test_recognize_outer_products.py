"""recognize_outer_products: what has no sum is pointwise."""

import numpy as np
import pytest

import npusim
from npusim.passes.recognize_outer_products import recognize_outer_products


@pytest.mark.parametrize("op", ["matmul", "mm", "bmm"])
def test_products_over_one_element(draft, check_pass, op):
    batch = {"matmul": (3, 1), "mm": (), "bmm": (2,)}[op]
    other = {"matmul": (2,), "mm": (), "bmm": (2,)}[op]
    a, b = draft.x(*batch, 4, 1), draft.x(*other, 1, 5, name="z")
    y = draft.call(f"aten.{op}.default", a, b)
    check_pass(recognize_outer_products, draft.graph(draft.call("aten.cos.default", y)))


@pytest.mark.parametrize("shapes", [((4, 2), (2, 5)), ((1,), (1, 5)), ((4, 1), (1,)), ((1,), (1,))])
def test_others_stay(draft, cpu, shapes):
    a, b = draft.x(*shapes[0]), draft.x(*shapes[1], name="z")
    graph = draft.graph(draft.call("aten.matmul.default", a, b))
    assert recognize_outer_products(graph, cpu) == graph


def test_an_infinity_times_nothing_is_no_number(draft):
    graph = draft.graph(draft.call("aten.matmul.default", draft.x(3, 1), draft.x(1, 2, name="z")))
    program = npusim.compile(graph, "cpu")
    left = np.array([[np.inf], [0.0], [-2.0]], np.float32)
    (got,) = npusim.load(program, weights={})(left, np.array([[0.0, np.nan]], np.float32))
    np.testing.assert_array_equal(got, [[np.nan, np.nan], [0, np.nan], [0, np.nan]])
