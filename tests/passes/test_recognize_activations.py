"""recognize_activations: written-out activations become the ops they are, in any spelling."""

import math

import pytest

from npusim.passes.recognize_activations import recognize_activations


def erf_gelu(draft, x):
    y = draft.call("aten.div.Scalar", x, other=math.sqrt(2))
    y = draft.call("aten.add.Scalar", draft.call("aten.erf.default", y), other=1, alpha=1)
    return draft.call("aten.mul.Tensor", draft.call("aten.mul.Scalar", x, other=0.5), y)


def erf_gelu_the_other_way(draft, x):
    y = draft.call("aten.mul.Tensor", x, draft.c(0.7071067811865475, name="root"))
    y = draft.call("aten.add.Tensor", draft.call("aten.erf.default", y), draft.c(1.0), alpha=1)
    return draft.call("aten.mul.Scalar", draft.call("aten.mul.Tensor", y, x), other=0.5)


def tanh_gelu(draft, x):
    cube = draft.call("aten.pow.Tensor_Scalar", x, exponent=3.0)
    y = draft.call("aten.add.Tensor", x, draft.call("aten.mul.Scalar", cube, other=0.044715))
    y = draft.call("aten.tanh.default", draft.call("aten.mul.Scalar", y, other=0.7978845608028654))
    y = draft.call("aten.add.Scalar", y, other=1.0)
    return draft.call("aten.mul.Tensor", draft.call("aten.mul.Scalar", x, other=0.5), y)


def silu(draft, x):
    return draft.call("aten.mul.Tensor", draft.call("aten.sigmoid.default", x), x)


def silu_by_division(draft, x):
    y = draft.call("aten.exp.default", draft.call("aten.neg.default", x))
    return draft.call("aten.div.Tensor", x, draft.call("aten.add.Scalar", y, other=1))


def hardswish(draft, x):
    y = draft.call("aten.add.Scalar", x, other=3)
    y = draft.call("aten.hardtanh.default", y, min_val=0.0, max_val=6.0)
    return draft.call("aten.div.Scalar", draft.call("aten.mul.Tensor", x, y), other=6)


def hardsigmoid(draft, x):
    y = draft.call("aten.clamp.default", draft.call("aten.add.Scalar", x, other=3), min=0, max=6)
    return draft.call("aten.div.Scalar", y, other=6)


def mish(draft, x):
    y = draft.call("aten.log1p.default", draft.call("aten.exp.default", x))
    return draft.call("aten.mul.Tensor", x, draft.call("aten.tanh.default", y))


def relu(draft, x):
    return draft.call("aten.clamp_min.default", x, min=0)


SPELLINGS = (
    *(erf_gelu, erf_gelu_the_other_way, tanh_gelu, silu, silu_by_division),
    *(hardswish, hardsigmoid, mish, relu),
)


@pytest.mark.parametrize("spelling", SPELLINGS, ids=lambda s: s.__name__)
def test_spelling(draft, check_pass, spelling):
    x = draft.call("aten.exp.default", draft.x(2, 3))
    check_pass(recognize_activations, draft.graph(spelling(draft, x)))


def test_similar_formulas_stay(draft, check_pass):
    x = draft.x(2, 3)
    quick = draft.call("aten.sigmoid.default", draft.call("aten.mul.Scalar", x, other=1.702))
    quick = draft.call("aten.mul.Tensor", x, quick)
    gate = draft.call("aten.mul.Tensor", x, draft.call("aten.sigmoid.default", draft.x(2, 3)))
    check_pass(recognize_activations, draft.graph(quick, gate))


def test_a_piece_that_is_read_elsewhere_stays(draft, check_pass):
    x = draft.x(2, 3)
    y = draft.call("aten.sigmoid.default", x)
    check_pass(recognize_activations, draft.graph(draft.call("aten.mul.Tensor", x, y), y))


@pytest.mark.parametrize("most", [100.0, 255, 65535])
def test_a_clamp_at_a_large_number_is_no_relu(draft, cpu, most):
    graph = draft.graph(draft.call("aten.clamp.default", draft.x(2, 3), min=0, max=most))
    assert recognize_activations(graph, cpu) == graph


@pytest.mark.parametrize("least", [0.1, 1e-3])
def test_a_threshold_above_zero_is_no_relu(draft, cpu, least):
    x = draft.x(2, 3)
    above = draft.call("aten.gt.Scalar", x, other=least)
    graph = draft.graph(draft.call("aten.where.ScalarOther", above, x, other=0.0))
    assert recognize_activations(graph, cpu) == graph
