"""recognize_softmax: written-out softmaxes become the op."""

from npusim.passes.recognize_softmax import recognize_softmax


def exponential(draft, x, dim):
    top = draft.call("aten.amax.default", x, dim=(dim,), keepdim=True)
    shifted = draft.call("aten.sub.Tensor", x, top, alpha=1)
    return shifted, draft.call("aten.exp.default", shifted)


def total(draft, e, dim):
    return draft.call("aten.sum.dim_IntList", e, dim=(dim,), keepdim=True, dtype=None)


def test_softmax(draft, check_pass):
    _, e = exponential(draft, draft.x(2, 3, 4), -2)
    y = draft.call("aten.div.Tensor", e, total(draft, e, 1))
    check_pass(recognize_softmax, draft.graph(y))


def test_softmax_without_the_maximum_stays(draft, check_pass):
    e = draft.call("aten.exp.default", draft.x(2, 3))
    check_pass(
        recognize_softmax, draft.graph(draft.call("aten.div.Tensor", e, total(draft, e, -1)))
    )


def test_log_softmax(draft, check_pass):
    shifted, e = exponential(draft, draft.x(2, 3), -1)
    y = draft.call("aten.log.default", total(draft, e, -1))
    check_pass(recognize_softmax, draft.graph(draft.call("aten.sub.Tensor", shifted, y, alpha=1)))


def test_log_softmax_by_logsumexp_stays(draft, check_pass):
    x = draft.x(2, 3)
    y = draft.call("aten.logsumexp.default", x, dim=(-1,), keepdim=True)
    check_pass(recognize_softmax, draft.graph(draft.call("aten.sub.Tensor", x, y, alpha=1)))


def test_internal_spellings(draft, check_pass):
    x = draft.x(2, 3)
    outputs = [
        draft.call(f"aten.{name}.default", x, dim=-1, half_to_float=False)
        for name in ("_softmax", "_log_softmax")
    ]
    check_pass(recognize_softmax, draft.graph(*outputs))


def test_other_normalisations_stay(draft, check_pass):
    e = draft.call("aten.exp.default", draft.x(3, 3))
    over_all = draft.call("aten.sum.dim_IntList", e, dim=(0, 1), keepdim=True, dtype=None)
    flat = draft.call("aten.sum.dim_IntList", e, dim=(0,), keepdim=False, dtype=None)
    outputs = [draft.call("aten.div.Tensor", e, s) for s in (over_all, flat)]
    check_pass(recognize_softmax, draft.graph(*outputs))


def test_float64_stays_what_has_kernels(draft, cpu):
    _, e = exponential(draft, draft.x(2, 3, 4, dtype="float64"), 1)
    graph = draft.graph(draft.call("aten.div.Tensor", e, total(draft, e, 1)))
    assert recognize_softmax(graph, cpu) == graph
