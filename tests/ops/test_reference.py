"""reference: graphs without operands, missing weights, and what a run keeps in memory."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from npusim.errors import ShapeError, WeightMismatchError
from npusim.ir.graph import Constant, Graph, Node, Output, Value, Weight
from npusim.ir.types import TensorType
from npusim.ops.attention import reference_cached_attention
from npusim.ops.reference import GraphRun, run_graph

_FOUR = TensorType("float32", (4,))


def test_a_graph_of_constants_runs_on_the_cpu() -> None:
    constant = Constant("c", _FOUR, torch.arange(4.0).numpy().tobytes())
    node = Node("n", "aten.neg.default", ("c",), (Value("y", _FOUR),), {})
    graph = Graph("g", (), (Output("y", "y"),), (), (constant,), (node,))
    assert torch.equal(run_graph(graph, [])[0], -torch.arange(4.0))


def test_weights_that_are_missing_are_named() -> None:
    node = Node("n", "aten.neg.default", ("w",), (Value("y", _FOUR),), {})
    graph = Graph("g", (), (Output("y", "y"),), (Weight("w", "a.w", _FOUR),), (), (node,))
    with pytest.raises(WeightMismatchError, match=r"a\.w"):
        run_graph(graph, [])
    assert torch.equal(run_graph(graph, [], {"a.w": torch.ones(4)})[0], -torch.ones(4))


def test_values_are_dropped_after_their_last_use() -> None:
    """Those that somebody read, and those that nobody does."""
    two = TensorType("float32", (2,))
    halves = (Value("a", two), Value("b", two))
    nodes = (
        Node("split", "aten.split.Tensor", ("x",), halves, {"split_size": 2, "dim": 0}),
        Node("exp", "aten.exp.default", ("a",), (Value("e", two),), {}),
        Node("neg", "aten.neg.default", ("e",), (Value("y", two),), {}),
    )
    graph = Graph("g", (Value("x", _FOUR),), (Output("y", "y"),), (), (), nodes)
    alive: dict[str, weakref.ref[torch.Tensor]] = {}
    run = GraphRun(graph, [torch.ones(4)])
    for node, results in run:
        gc.collect()
        if node.name == "exp":
            assert alive["b"]() is None
        if node.name == "neg":
            assert alive["a"]() is None
        alive |= {v.name: weakref.ref(t) for v, t in zip(node.outputs, results, strict=True)}
        del results
    gc.collect()
    assert alive["e"]() is None
    assert torch.equal(run.outputs()[0], -torch.ones(2).exp())


def test_a_position_outside_the_cache_is_refused() -> None:
    q, k = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 10, 8)
    rest = {"scale": 1.0, "softcap": 0.0, "window": 0}
    for position in (0, 7):
        reference_cached_attention(q, k, k, torch.tensor([position]), **rest)
    for position in (-1, 8):
        with pytest.raises(ShapeError, match="0 to 7"):
            reference_cached_attention(q, k, k, torch.tensor([position]), **rest)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_attention_over_a_cache_keeps_float64_and_rounds_others_once(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(1, 2, n, 8, dtype=dtype) for n in (3, 10, 10))
    y = reference_cached_attention(q, k, v, torch.tensor([7]), scale=0.3, softcap=0.0, window=0)
    scores = q.double() @ k.double().mT * 0.3
    hidden = torch.arange(10) > torch.arange(7, 10).unsqueeze(1)
    exact = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v.double()
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), exact, rtol=8 * eps, atol=8 * eps)
