"""canonicalize_linear: products by weights become npu.linear, others stay."""

from npusim.passes.canonicalize_linear import canonicalize_linear


def test_linear(draft, check_pass):
    y = draft.call("aten.linear.default", draft.x(2, 3, 4), draft.w(5, 4), draft.w(5))
    check_pass(canonicalize_linear, draft.graph(y))


def test_addmm_of_a_transposed_weight(draft, check_pass):
    w = draft.call("aten.t.default", draft.w(5, 4))
    check_pass(
        canonicalize_linear,
        draft.graph(draft.call("aten.addmm.default", draft.w(5), draft.x(3, 4), w)),
    )


def test_matmul_transposes_the_weight(draft, check_pass):
    y = draft.call("aten.matmul.default", draft.x(2, 3, 4), draft.w(4, 5))
    check_pass(canonicalize_linear, draft.graph(y))


def test_vector(draft, check_pass):
    y = draft.call("aten.matmul.default", draft.x(4), draft.w(4, 5))
    check_pass(canonicalize_linear, draft.graph(y))


def test_scaled_addmm_stays(draft, check_pass):
    y = draft.call("aten.addmm.default", draft.w(5), draft.x(3, 4), draft.w(4, 5), beta=2)
    check_pass(canonicalize_linear, draft.graph(y))


def test_computed_and_wide_operands_stay(draft, check_pass):
    a = draft.call("aten.matmul.default", draft.x(3, 4), draft.x(4, 5))
    b = draft.call("aten.mm.default", draft.x(3, 4, dtype="float64"),
                   draft.w(4, 5, dtype="float64"))  # fmt: skip
    c = draft.call("aten.matmul.default", draft.w(3, 4), draft.x(4, 5))
    check_pass(canonicalize_linear, draft.graph(a, b, c))
