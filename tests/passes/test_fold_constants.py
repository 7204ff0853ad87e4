"""fold_constants: what depends on nothing is computed at compile time."""

import pytest

from npusim.passes.fold_constants import fold_constants


def test_causal_mask(draft, check_pass):
    rows = draft.call("aten.arange.start_step", start=0, end=4, step=1)
    columns = draft.call("aten.unsqueeze.default", rows, dim=-1)
    future = draft.call("aten.gt.Tensor", rows, columns)
    lowest = draft.call("aten.full.default", size=(4, 4), fill_value=float("-inf"))
    zero = draft.call("aten.scalar_tensor.default", s=0, dtype="float32")
    mask = draft.call("aten.where.self", future, lowest, zero)
    check_pass(fold_constants, draft.graph(draft.call("aten.add.Tensor", draft.x(4, 4), mask)))


def test_a_final_expand_stays(draft, check_pass):
    row = draft.call("aten.arange.default", end=3, dtype="float32")
    wide = draft.call("aten.expand.default", row, size=(5, 3))
    check_pass(fold_constants, draft.graph(draft.call("aten.add.Tensor", draft.x(5, 3), wide)))


def test_a_large_fill_loses_its_operand(draft, check_pass):
    x = draft.x(256, 256)
    ones = draft.call("aten.ones_like.default", x)
    check_pass(fold_constants, draft.graph(draft.call("aten.add.Tensor", draft.x(1), ones)))


def test_weights_are_left_to_the_init_method(draft, check_pass):
    scaled = draft.call("aten.mul.Scalar", draft.w(3), other=2.0)
    check_pass(fold_constants, draft.graph(draft.call("aten.add.Tensor", draft.x(3), scaled)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int8", "uint8", "bool"])
def test_dtypes(draft, check_pass, dtype):
    values = draft.call("aten.arange.default", end=300, dtype="int64")
    values = draft.call("aten.mul.Scalar", values, other=7)
    check_pass(
        fold_constants, draft.graph(draft.call("aten._to_copy.default", values, dtype=dtype))
    )


def test_shape_ops(draft, check_pass):
    x = draft.c([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    y = draft.call("aten.slice.Tensor", x, dim=1, start=-2, end=9223372036854775807, step=1)
    y = draft.call("aten.cat.default", y, draft.call("aten.flip.default", y, dims=(0,)), tensors=2)
    y = draft.call("aten.repeat.default", y, repeats=(1, 2))
    y = draft.call("aten.select.int", draft.call("aten.t.default", y), dim=0, index=-1)
    y = draft.call("aten.cumsum.default", y, dim=0)
    eye = draft.call("aten.tril.default", draft.call("aten.eye.default", n=4), diagonal=-1)
    y = draft.call("aten.stack.default", y, draft.call("aten.select.int", eye, dim=0, index=1),
                   tensors=2)  # fmt: skip
    check_pass(fold_constants, draft.graph(y))
