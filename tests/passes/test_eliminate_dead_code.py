"""eliminate_dead_code: what no output depends on goes."""

from npusim.passes.eliminate_dead_code import eliminate_dead_code


def test_unused_nodes_weights_and_constants_go(draft, check_pass):
    x, unused = draft.x(2), draft.x(2, name="unused")
    draft.call("aten.exp.default", draft.call("aten.add.Tensor", unused, draft.w(2)))
    draft.c([1.0])
    check_pass(eliminate_dead_code, draft.graph(draft.call("aten.relu.default", x)))
