"""remove_noops: what computes its own input goes, what only looks like it stays."""

from npusim.passes.remove_noops import remove_noops


def test_copies_and_casts(draft, check_pass):
    x = draft.x(2, 3)
    y = draft.call("aten.clone.default", x)
    y = draft.call("aten.alias.default", y)
    y = draft.call("aten._to_copy.default", y, dtype="float32")
    y = draft.call("aten.dropout.default", y, p=0.5, train=False)
    check_pass(remove_noops, draft.graph(draft.call("aten.relu.default", y)))


def test_neutral_arithmetic(draft, check_pass):
    y = draft.call("aten.add.Scalar", draft.x(2, 3), other=0, alpha=1)
    y = draft.call("aten.mul.Scalar", y, other=1.0)
    y = draft.call("aten.div.Scalar", y, other=1)
    y = draft.call("aten.sub.Scalar", y, other=0, alpha=1)
    check_pass(remove_noops, draft.graph(draft.call("aten.exp.default", y)))


def test_promoting_arithmetic_stays(draft, check_pass):
    x = draft.x(2, 3, dtype="int64")
    check_pass(remove_noops, draft.graph(draft.call("aten.add.Scalar", x, other=0.0, alpha=1)))


def test_views_of_the_same_shape(draft, check_pass):
    y = draft.call("aten.view.default", draft.x(2, 3), size=(2, 3))
    y = draft.call("aten.expand.default", y, size=(2, 3))
    y = draft.call("aten.permute.default", y, dims=(0, 1))
    y = draft.call("aten.slice.Tensor", y, dim=0, start=0, end=9223372036854775807)
    y = draft.call("aten.constant_pad_nd.default", y, pad=(0, 0), value=0)
    y = draft.call("aten.cat.default", y, tensors=1)
    check_pass(remove_noops, draft.graph(draft.call("aten.exp.default", y)))


def test_square_transpose_stays(draft, check_pass):
    check_pass(remove_noops, draft.graph(draft.call("aten.t.default", draft.x(3, 3))))


def test_an_input_may_become_an_output(draft, check_pass):
    check_pass(remove_noops, draft.graph(draft.call("aten.clone.default", draft.x(2))))


def test_parts_without_elements(draft, check_pass):
    x, nothing = draft.x(2, 3), draft.x(2, 0, name="nothing")
    y = draft.call("aten.cat.default", x, nothing, tensors=2, dim=1)
    check_pass(remove_noops, draft.graph(draft.call("aten.exp.default", y)))


def test_neutral_constants(draft, check_pass):
    y = draft.call("aten.add.Tensor", draft.c([0], "int64"), draft.x(1, dtype="int64"), alpha=1)
    wider = draft.call("aten.add.Tensor", draft.c([0, 0], "int64"), y, alpha=1)
    z = draft.call("aten.sub.Tensor", draft.c(0, "int64"), y, alpha=1)
    check_pass(remove_noops, draft.graph(y, wider, z))


def test_padding_that_shifts_stays(draft, check_pass):
    y = draft.call("aten.constant_pad_nd.default", draft.x(2, 3), pad=(1, -1), value=0)
    check_pass(remove_noops, draft.graph(y))
