"""fuse_gated_linear: an activated product times another one becomes one op over both weights."""

import pytest

from npusim.passes.canonicalize_linear import canonicalize_linear
from npusim.passes.fuse_gated_linear import fuse_gated_linear


def fused(graph, target):
    return fuse_gated_linear(canonicalize_linear(graph, target), target)


def linear(draft, x, width=6, bias=False):
    dtype = draft.types[x].dtype
    w, b = draft.w(width, 8, dtype=dtype), draft.w(width, dtype=dtype) if bias else None
    return draft.call("aten.linear.default", x, w, b)


def data(draft, *shape, name="x", dtype="bfloat16"):
    return draft.x(*shape, name=name, dtype=dtype)


def act(draft, x, name="silu"):
    attrs = {"approximate": "tanh"} if name == "gelu" else {}
    return draft.call(f"aten.{name}.default", x, **attrs)


@pytest.mark.parametrize("biases", [(False, False), (True, True), (False, True)])
@pytest.mark.parametrize("swap", [False, True])
def test_two_weights(draft, check_pass, biases, swap):
    x = data(draft, 2, 5, 8)
    gate, up = (linear(draft, x, bias=b) for b in biases)
    factors = act(draft, gate, "gelu"), up
    y = draft.call("aten.mul.Tensor", *(factors[::-1] if swap else factors))
    check_pass(fused, draft.graph(y))


@pytest.mark.parametrize("op", ["split.Tensor", "split_with_sizes.default", "slice.Tensor"])
def test_one_weight(draft, check_pass, op):
    y = linear(draft, data(draft, 2, 5, 8), 12, bias=True)
    if op == "slice.Tensor":
        halves = [draft.call("aten.slice.Tensor", y, dim=2, start=s, end=s + 6) for s in (0, 6)]
    else:
        sizes = {"split_size": 6} if op == "split.Tensor" else {"split_sizes": (6, 6)}
        halves = draft.call(f"aten.{op}", y, dim=-1, **sizes)
    y = draft.call("aten.mul.Tensor", halves[1], act(draft, halves[0]))
    check_pass(fused, draft.graph(y))


def test_the_second_half_as_gate_stays(draft, check_pass):
    up, gate = draft.call("aten.split.Tensor", linear(draft, data(draft, 2, 8), 12), split_size=6,
                          dim=-1)  # fmt: skip
    check_pass(fused, draft.graph(draft.call("aten.mul.Tensor", act(draft, gate), up)))


@pytest.mark.parametrize("change", ["read", "other_input", "no_activation", "both", "itself"])
def test_near_misses_stay(draft, check_pass, change):
    x = data(draft, 2, 8)
    a, b = (
        linear(draft, x),
        linear(draft, data(draft, 2, 8, name="z") if change == "other_input" else x),
    )
    gate = a if change == "no_activation" else act(draft, a)
    if change == "both":
        b = act(draft, b)
    y = draft.call("aten.mul.Tensor", gate, a if change == "itself" else b)
    check_pass(fused, draft.graph(y, *([a] if change == "read" else [])))


def test_float32_stays(draft, check_pass):
    x = data(draft, 2, 8, dtype="float32")
    y = draft.call("aten.mul.Tensor", act(draft, linear(draft, x)), linear(draft, x))
    check_pass(fused, draft.graph(y))


@pytest.mark.parametrize("bounds", [((0, 12, 2), (6, 12, 1)), ((0, 6, 1), (5, 11, 1))])
def test_slices_that_are_no_halves_stay(draft, check_pass, bounds):
    y = linear(draft, data(draft, 2, 5, 8), 12)
    gate, up = (
        draft.call("aten.slice.Tensor", y, dim=2, start=a, end=b, step=s) for a, b, s in bounds
    )
    check_pass(fused, draft.graph(draft.call("aten.mul.Tensor", up, act(draft, gate))))


def test_halves_counted_from_the_end(draft, check_pass):
    y = linear(draft, data(draft, 2, 5, 8), 12)
    gate = draft.call("aten.slice.Tensor", y, dim=-1, end=-6)
    up = draft.call("aten.slice.Tensor", y, dim=-1, start=-6)
    result = check_pass(fused, draft.graph(draft.call("aten.mul.Tensor", act(draft, gate), up)))
    assert [n.op for n in result.nodes] == ["npu.gated_linear"]


def test_what_changes_a_linear_on_the_way_stays(draft, check_pass):
    x = data(draft, 2, 5, 8)
    sums = draft.call("aten.cumsum.default", linear(draft, x), dim=2)
    check_pass(
        fused, draft.graph(draft.call("aten.mul.Tensor", act(draft, sums), linear(draft, x)))
    )
