"""fuse_pointwise: chains become one program; nothing is ever computed twice."""

import pytest

from npusim.passes.fuse_pointwise import fuse_pointwise
from npusim.targets import TargetConfig


def test_chain(draft, check_pass):
    y = draft.call("aten.mul.Scalar", draft.x(2, 3), other=2.0)
    y = draft.call("aten.exp.default", y)
    check_pass(fuse_pointwise, draft.graph(draft.call("aten.neg.default", y)))


def test_tree_with_broadcasting(draft, check_pass):
    x = draft.x(2, 3, 4)
    a = draft.call("aten.mul.Tensor", x, draft.w(3, 1, name="scale"))
    b = draft.call("aten.add.Tensor", a, draft.w(3, 1, name="shift"), alpha=2)
    c = draft.call("aten.sigmoid.default", draft.x(2, 3, 4, name="gate"))
    check_pass(fuse_pointwise, draft.graph(draft.call("aten.mul.Tensor", b, c)))


def test_a_shared_value_is_not_computed_twice(draft, check_pass):
    y = draft.call("aten.exp.default", draft.x(2, 3))
    z = draft.call("aten.neg.default", y)
    check_pass(fuse_pointwise, draft.graph(draft.call("aten.abs.default", y), z))


@pytest.mark.parametrize(("target", "programs"), [("cpu", 3), ("cuda:sm_90a", 2)])
def test_generated_code_does_quick_formulas_again(draft, target, programs):
    """A sum and a comparison for two readers, but an exponential before them only once."""
    x = draft.call("aten.exp.default", draft.x(2, 3))
    y = draft.call("aten.add.Scalar", x, other=1.0, alpha=1)
    inside = draft.call("aten.gt.Scalar", y, other=2.0)
    results = [draft.call(f"aten.{op}.default", y) for op in ("tanh", "erf")]
    results = [draft.call("aten.mul.Tensor", r, inside) for r in results]
    result = fuse_pointwise(draft.graph(*results), TargetConfig.named(target))
    counts = [sum(n.op == "aten.exp.default" for n in result.nodes), len(result.nodes)]
    assert counts == ([0, programs + 1] if target == "cpu" else [1, programs + 1])


def test_a_value_read_twice_by_one_node_fuses(draft, check_pass):
    y = draft.call("aten.exp.default", draft.x(2, 3))
    check_pass(fuse_pointwise, draft.graph(draft.call("aten.mul.Tensor", y, y)))


def test_a_smaller_producer_stays(draft, check_pass):
    gate = draft.call("aten.sigmoid.default", draft.x(2, 1, name="gate"))
    check_pass(fuse_pointwise, draft.graph(draft.call("aten.mul.Tensor", draft.x(2, 3), gate)))


def test_weight_arithmetic_stays_at_load(draft, check_pass):
    scale = draft.call("aten.rsqrt.default", draft.call("aten.add.Scalar", draft.w(3, name="var"),
                       other=1e-5, alpha=1))  # fmt: skip
    check_pass(fuse_pointwise, draft.graph(draft.call("aten.mul.Tensor", draft.x(3), scale)))


def test_uniform_constants_become_literals(draft, check_pass):
    y = draft.call("aten.where.self", draft.x(2, 3, dtype="bool", name="mask"), draft.x(2, 3),
                   draft.c(-1e9))  # fmt: skip
    full = draft.call("aten.full.default", size=(2, 3), fill_value=0.5)
    check_pass(fuse_pointwise, draft.graph(draft.call("aten.add.Tensor", y, full)))


def test_a_constant_that_gives_the_shape_stays(draft, check_pass):
    full = draft.call("aten.full.default", size=(2, 3), fill_value=0.5)
    check_pass(fuse_pointwise, draft.graph(draft.call("aten.add.Tensor", draft.x(3), full)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "bool", "int64"])
def test_intermediates_keep_their_dtype(draft, check_pass, dtype):
    y = draft.call("aten.mul.Scalar", draft.x(40), other=100.5)
    y = draft.call("aten._to_copy.default", y, dtype=dtype)
    if dtype != "bool":
        y = draft.call("aten.mul.Tensor", y, draft.call("aten.neg.default", y))
    y = draft.call("aten._to_copy.default", y, dtype="float32")
    check_pass(fuse_pointwise, draft.graph(draft.call("aten.div.Scalar", y, other=2)))


def test_limits_of_the_target(draft, check_pass, cpu):
    y = draft.x(4)
    for index in range(cpu.pointwise_inputs + 3):
        y = draft.call("aten.add.Tensor", y, draft.x(4, name=f"x{index}"))
    result = check_pass(fuse_pointwise, draft.graph(y))
    assert all(len(n.inputs) <= cpu.pointwise_inputs for n in result.nodes)
