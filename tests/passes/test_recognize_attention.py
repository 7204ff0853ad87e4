"""recognize_attention: written-out attention becomes the op; a constant future mask, causal."""

import numpy as np
import pytest
import torch

import npusim
from npusim.ops.reference import run_graph
from npusim.passes.recognize_attention import recognize_attention


def heads(draft, name, length=5):
    x = draft.x(2, length, 3, 4, name=name)
    return draft.call("aten.permute.default", x, dims=(0, 2, 1, 3))


def transposed(draft, k):
    return draft.call("aten.transpose.int", k, dim0=-2, dim1=-1)


def finish(draft, scores, v):
    y = draft.call("aten.softmax.int", scores, dim=-1)
    return draft.call("aten.matmul.default", y, v)


def future(length):
    return np.triu(np.full((length, length), -np.inf, np.float32), 1)


@pytest.mark.parametrize("masked", [False, True])
def test_scaled(draft, check_pass, masked):
    q, k, v = (heads(draft, n) for n in "qkv")
    y = draft.call("aten.matmul.default", q, transposed(draft, k))
    y = draft.call("aten.div.Scalar", y, other=2.0)
    if masked:
        y = draft.call("aten.add.Tensor", y, draft.x(2, 1, 1, 5, name="mask"), alpha=1)
    check_pass(recognize_attention, draft.graph(finish(draft, y, v)))


def test_scaled_query_of_three_dimensions(draft, check_pass):
    q, k, v = (draft.x(6, 5, 4, name=n) for n in "qkv")
    q = draft.call("aten.mul.Scalar", q, other=0.5)
    y = draft.call("aten.bmm.default", q, transposed(draft, k))
    y = draft.call("aten.softmax.int", y, dim=-1)
    check_pass(recognize_attention, draft.graph(draft.call("aten.bmm.default", y, v)))


def test_keys_permuted_at_once(draft, check_pass):
    q, v = heads(draft, "q"), heads(draft, "v")
    k = draft.call("aten.permute.default", draft.x(2, 5, 3, 4, name="k"), dims=(0, 2, 3, 1))
    y = draft.call("aten.matmul.default", q, k)
    check_pass(recognize_attention, draft.graph(finish(draft, y, v)))


def test_constant_future_mask(draft, check_pass):
    q, k, v = (heads(draft, n) for n in "qkv")
    y = draft.call("aten.matmul.default", q, transposed(draft, k))
    y = draft.call("aten.mul.Scalar", y, other=0.5)
    y = draft.call("aten.add.Tensor", y, draft.c(future(5)), alpha=1)
    check_pass(recognize_attention, draft.graph(finish(draft, y, v)))


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_future_mask_of_the_op(draft, check_pass, dtype):
    mask = future(5) == 0 if dtype == "bool" else future(5)
    mask = draft.call("aten.unsqueeze.default", draft.c(mask, dtype), dim=0)
    y = draft.call("aten.scaled_dot_product_attention.default",
                   *(heads(draft, n) for n in "qkv"), mask)  # fmt: skip
    check_pass(recognize_attention, draft.graph(y))


def test_another_constant_mask_stays_a_mask(draft, check_pass):
    mask = draft.c(future(5).T)
    y = draft.call("aten.scaled_dot_product_attention.default",
                   *(heads(draft, n) for n in "qkv"), mask)  # fmt: skip
    check_pass(recognize_attention, draft.graph(y))


def test_read_weights_and_broadcast_keys_stay(draft, check_pass):
    q, k, v = (heads(draft, n) for n in "qkv")
    weights = draft.call("aten.softmax.int", draft.call("aten.matmul.default", q,
                         transposed(draft, k)), dim=-1)  # fmt: skip
    shared = draft.call("aten.permute.default", draft.x(2, 1, 5, 4, name="k1"), dims=(0, 1, 3, 2))
    y = finish(draft, draft.call("aten.matmul.default", q, shared), v)
    check_pass(
        recognize_attention,
        draft.graph(draft.call("aten.matmul.default", weights, v), weights, y),
    )


def repeated(draft, x, count=2):
    b, g, s, d = draft.types[x].shape
    x = draft.call("aten.unsqueeze.default", x, dim=2)
    x = draft.call("aten.expand.default", x, size=(b, g, count, s, d))
    return draft.call("aten.view.default", x, size=(b, g * count, s, d))


@pytest.mark.parametrize("written_out", [True, False])
def test_repeated_heads_are_read_once(draft, check_pass, written_out):
    q = draft.x(2, 6, 5, 4, name="q")
    k, v = (repeated(draft, heads(draft, n)) for n in "kv")
    if written_out:
        y = finish(draft, draft.call("aten.matmul.default", q, transposed(draft, k)), v)
    else:
        y = draft.call("aten.scaled_dot_product_attention.default", q, k, v, None, is_causal=True)
    check_pass(recognize_attention, draft.graph(y))


def test_values_repeated_alone_stay(draft, check_pass):
    q, k = (draft.x(2, 6, 5, 4, name=n) for n in "qk")
    y = draft.call("aten.scaled_dot_product_attention.default", q, k,
                   repeated(draft, heads(draft, "v")), None)  # fmt: skip
    check_pass(recognize_attention, draft.graph(y))


def test_softmax_in_float32(draft, check_pass):
    q, k, v = (draft.x(2, 3, 5, 4, name=n, dtype="bfloat16") for n in "qkv")
    y = draft.call("aten.matmul.default", q, transposed(draft, k))
    y = draft.call("aten.mul.Scalar", y, other=0.5)
    y = draft.call("aten.add.Tensor", y, draft.x(1, 1, 5, 5, name="mask", dtype="bfloat16"))
    y = draft.call("aten.softmax.int", y, dim=-1, dtype="float32")
    y = draft.call("aten._to_copy.default", y, dtype="bfloat16")
    check_pass(recognize_attention, draft.graph(draft.call("aten.matmul.default", y, v)))


def written(draft, mask):
    q, k, v = (heads(draft, n) for n in "qkv")
    scores = draft.call("aten.matmul.default", q, transposed(draft, k))
    return finish(draft, draft.call("aten.add.Tensor", scores, mask, alpha=1), v)


@pytest.mark.parametrize("least", [-1e4, -1e9, -3.4e38])
def test_a_finite_mask_is_not_causal_unless_nothing_outweighs_it(draft, cpu, least):
    mask = np.triu(np.full((5, 5), least, np.float32), 1)
    result = recognize_attention(draft.graph(written(draft, draft.c(mask))), cpu)
    assert not result.nodes[-1].attrs["is_causal"]
    assert len(result.nodes[-1].inputs) == 4


def test_the_least_number_hides(draft, cpu):
    mask = np.triu(np.full((5, 5), np.finfo(np.float32).min, np.float32), 1)
    result = recognize_attention(draft.graph(written(draft, draft.c(mask))), cpu)
    assert result.nodes[-1].attrs["is_causal"]


@pytest.mark.parametrize("least", [-np.inf, np.finfo(np.float32).min])
def test_a_row_that_sees_nothing_is_what_it_was(draft, cpu, least):
    """NaN under -infinity, the mean under a finite number: also where only the run knows it."""
    graph = draft.graph(written(draft, draft.x(2, 1, 5, 5, name="mask")))
    result = recognize_attention(graph, cpu)
    assert result.nodes[-1].op == "aten.scaled_dot_product_attention.default"
    mask = torch.zeros(2, 1, 5, 5)
    mask[0, 0, 1], mask[1, 0, 2, 3] = float(least), float(least)
    inputs = [mask, *(torch.randn(2, 5, 3, 4) for _ in "qkv")]
    (expected,), (actual,) = (run_graph(g, inputs, {}) for g in (graph, result))
    torch.testing.assert_close(actual, expected, equal_nan=True)
    native = npusim.load(npusim.compile(graph))
    torch.testing.assert_close(native(*inputs)[0], expected, equal_nan=True)


def test_one_mask_is_marked_once(draft, cpu):
    mask = draft.x(2, 1, 5, 5, name="mask")
    twice = [written(draft, mask) for _ in range(2)]
    result = recognize_attention(draft.graph(*twice), cpu)
    assert [n.op for n in result.nodes].count("aten.amax.default") == 1


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_a_row_that_is_repeated_for_each_query_is_not_causal(draft, cpu, dtype):
    row = np.array([[0, -np.inf, -np.inf, -np.inf, -np.inf]], np.float32)
    mask = draft.c(row == 0 if dtype == "bool" else row, dtype)
    mask = draft.call("aten.expand.default", mask, size=(1, 5, 5))
    y = draft.call("aten.scaled_dot_product_attention.default",
                   *(heads(draft, n) for n in "qkv"), mask)  # fmt: skip
    result = recognize_attention(draft.graph(y), cpu)
    assert not result.nodes[-1].attrs.get("is_causal", False)
    assert result.nodes[-1].inputs[3] is not None
