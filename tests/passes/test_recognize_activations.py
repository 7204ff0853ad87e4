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


def tanh_gelu_by_sigmoid(draft, x):
    """As x·sigmoid(2z) for the z of its tanh: the tanh has to be taken for its exponentials."""
    cube = draft.call("aten.pow.Tensor_Scalar", x, exponent=3.0)
    y = draft.call("aten.add.Tensor", x, draft.call("aten.mul.Scalar", cube, other=0.044715))
    y = draft.call(
        "aten.sigmoid.default", draft.call("aten.mul.Scalar", y, other=1.5957691216057308)
    )
    return draft.call("aten.mul.Tensor", x, y)


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
    *(erf_gelu, erf_gelu_the_other_way, tanh_gelu, tanh_gelu_by_sigmoid, silu, silu_by_division),
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


_NEAR_ZERO = (1e-45, 1e-38, 1e-12, 1e-9, -1e-45, -1e-12, -1e-9)


@pytest.mark.parametrize("least", _NEAR_ZERO)
def test_a_clamp_beside_zero_is_no_relu(draft, cpu, least):
    x = draft.x(2, 3)
    clamped = draft.call("aten.clamp.default", x, min=least)
    larger = draft.call("aten.maximum.default", x, draft.c(least))
    above = draft.call("aten.gt.Scalar", x, other=least)
    chosen = draft.call("aten.where.ScalarOther", above, x, other=0.0)
    graph = draft.graph(clamped, larger, chosen)
    assert recognize_activations(graph, cpu) == graph


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
def test_what_differs_at_special_values_is_no_activation(draft, cpu, dtype):
    x = draft.x(2, 3, dtype=dtype)
    no_nan = draft.call("aten.gt.Scalar", x, other=0)
    no_nan = draft.call("aten.where.ScalarOther", no_nan, x, other=0.0)
    no_infinity = draft.call(
        "aten.clamp.default", x, min=0, max=6e4 if dtype == "float16" else 3e38
    )
    positive = draft.call("aten.le.Scalar", x, other=0)  # +0 for -0
    positive = draft.call("aten.where.ScalarSelf", positive, x, self=0.0)
    negative = draft.call("aten.lt.Scalar", x, other=0)  # -0 for what is below
    negative = draft.call("aten.where.ScalarSelf", negative, x, self=-0.0)
    both = draft.call("aten.add.Tensor", x, draft.call("aten.abs.default", x), alpha=1)
    half = draft.call("aten.mul.Scalar", both, other=0.5)  # NaN at -inf
    overflows = draft.call("aten.log1p.default", draft.call("aten.exp.default", x))
    graph = draft.graph(no_nan, no_infinity, positive, negative, half, overflows)
    assert recognize_activations(graph, cpu) == graph


@pytest.mark.parametrize(
    ("constant", "same"),
    [(math.sqrt(0.5), True), (0.7071067690849304, True), (0.70710683, False), (0.7071, False)],
)
def test_constants_are_those_of_the_definition(draft, cpu, constant, same):
    x = draft.x(2, 3)
    y = draft.call("aten.erf.default", draft.call("aten.mul.Scalar", x, other=constant))
    y = draft.call("aten.add.Scalar", y, other=1, alpha=1)
    y = draft.call("aten.mul.Tensor", draft.call("aten.mul.Scalar", x, other=0.5), y)
    graph = recognize_activations(draft.graph(y), cpu)
    assert [node.op == "aten.gelu.default" for node in graph.nodes] == (
        [True] if same else [False] * 5
    )


def test_a_choice_that_keeps_nan_is_a_relu(draft, check_pass):
    x = draft.x(2, 3)
    below = draft.call("aten.lt.Scalar", x, other=0)
    check_pass(
        recognize_activations, draft.graph(draft.call("aten.where.ScalarSelf", below, x, self=0.0))
    )
