"""The validator: sound graphs pass, and every broken invariant is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from npusim.errors import GraphError
from npusim.ir.graph import Graph, Node, Output, Source, Value
from npusim.ir.rewrite import GraphBuilder
from npusim.ir.types import TensorType
from npusim.ir.verify import verify_graph

F32 = TensorType("float32", (2, 3))


def chain() -> Graph:
    builder = GraphBuilder("chain")
    x = builder.input("x", F32)
    w = builder.weight("w", F32)
    y = builder.node("aten.add.Tensor", [x, w], F32, {"alpha": 1})
    z = builder.node("aten.relu.default", [y], F32, source=Source("act", "model.py", 7))
    builder.output("output", z)
    return builder.build()


def with_node(graph: Graph, index: int, **changes: object) -> Graph:
    nodes = list(graph.nodes)
    nodes[index] = replace(nodes[index], **changes)  # type: ignore[arg-type]
    return replace(graph, nodes=tuple(nodes))


def test_a_sound_graph_is_returned() -> None:
    assert verify_graph(chain()) is not None


def test_inputs_and_weights_may_be_outputs() -> None:
    outputs = (Output("a", "x"), Output("b", "w"), Output("c", "x"))
    verify_graph(replace(chain(), outputs=outputs))


BROKEN: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "use before definition": (
        lambda g: replace(g, nodes=g.nodes[::-1]),
        r"node 'relu' \(aten.relu.default\) \(act, model.py:7\): operand 0, 'add', is not defined",
    ),
    "use of nothing": (lambda g: with_node(g, 0, inputs=("x", "v")), "operand 1, 'v'"),
    "two definitions": (
        lambda g: with_node(g, 1, outputs=(Value("x", F32),)),
        "defines 'x', which is already defined",
    ),
    "two nodes of a name": (lambda g: with_node(g, 1, name="add"), "Two nodes are named 'add'"),
    "no results": (lambda g: with_node(g, 1, outputs=()), "has no outputs"),
    "an op without a namespace": (lambda g: with_node(g, 1, op="relu"), "namespace.name"),
    "an unknown dtype": (
        lambda g: with_node(g, 1, outputs=(Value("relu", TensorType("half", (1,))),)),
        "has dtype 'half'",
    ),
    "a negative dimension": (
        lambda g: with_node(g, 1, outputs=(Value("relu", TensorType("float32", (-1,))),)),
        "0 or more",
    ),
    "a dimension that is no int": (
        lambda g: with_node(g, 1, outputs=(Value("relu", TensorType("float32", (True,))),)),
        "dimensions are ints",
    ),
    "an order that is no permutation": (
        lambda g: with_node(g, 1, outputs=(Value("relu", replace(F32, order=(0, 2))),)),
        "not a permutation",
    ),
    "the identity as an order": (
        lambda g: with_node(g, 1, outputs=(Value("relu", replace(F32, order=(0, 1))),)),
        "it is written None",
    ),
    "a list as an attribute": (lambda g: with_node(g, 0, attrs={"a": [1]}), "holds a list"),
    "an object as an attribute": (lambda g: with_node(g, 0, attrs={"a": (F32,)}), "TensorType"),
    "a huge attribute": (lambda g: with_node(g, 0, attrs={"a": 2**63}), "beyond 64 bits"),
    "no outputs": (lambda g: replace(g, outputs=()), "'chain' has no outputs"),
    "an output of nothing": (lambda g: replace(g, outputs=(Output("o", "v"),)), "not defined"),
    "two outputs of a name": (lambda g: replace(g, outputs=g.outputs * 2), "Two outputs are named"),
    "two weights of a key": (
        lambda g: replace(g, weights=(*g.weights, replace(g.weights[0], name="v"))),
        "Two weights have the key 'w'",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_invariant_is_named(what: str) -> None:
    damage, message = BROKEN[what]
    with pytest.raises(GraphError, match=message):
        verify_graph(damage(chain()))


def test_a_node_of_several_outputs_has_no_single_one() -> None:
    node = Node("n", "a.b", (), (Value("v", F32), Value("w", F32)))
    with pytest.raises(GraphError, match="2 outputs, not one"):
        _ = node.output
