"""eliminate_common_subexpressions: equal computations happen once."""

from npusim.passes.eliminate_common_subexpressions import eliminate_common_subexpressions


def test_equal_chains_merge(draft, check_pass):
    x = draft.x(2, 3)
    a = draft.call("aten.exp.default", draft.call("aten.neg.default", x))
    b = draft.call("aten.exp.default", draft.call("aten.neg.default", x))
    check_pass(eliminate_common_subexpressions, draft.graph(draft.call("aten.add.Tensor", a, b)))


def test_an_attribute_tells_nodes_apart(draft, check_pass):
    x = draft.x(2, 3, dtype="int64")
    a = draft.call("aten.add.Scalar", x, other=1, alpha=1)
    b = draft.call("aten.add.Scalar", x, other=1.0, alpha=1)
    check_pass(eliminate_common_subexpressions, draft.graph(a, b))


def test_equal_constants_merge(draft, check_pass):
    x = draft.x(2)
    a = draft.call("aten.add.Tensor", x, draft.c([1.0, 2.0], name="first"))
    b = draft.call("aten.add.Tensor", x, draft.c([1.0, 2.0], name="second"))
    check_pass(eliminate_common_subexpressions, draft.graph(draft.call("aten.mul.Tensor", a, b)))


def test_outputs_may_share_a_value(draft, check_pass):
    x = draft.x(2)
    outputs = [draft.call("aten.exp.default", x) for _ in range(2)]
    check_pass(eliminate_common_subexpressions, draft.graph(*outputs))
