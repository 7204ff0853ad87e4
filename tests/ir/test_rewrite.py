"""The rewriting toolbox: order, substitution, dead code, names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.errors import GraphError
from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.rewrite import (
    GraphBuilder,
    Names,
    drop_dead,
    rebuild,
    substitute,
    topological,
)
from npusim.ir.types import TensorType
from npusim.ir.verify import verify_graph

F32 = TensorType("float32", (2,))


def chain(*ops: str) -> Graph:
    builder = GraphBuilder("chain")
    value = builder.input("x", F32)
    for op in ops:
        value = builder.node(f"aten.{op}.default", [value], F32)
    builder.output("output", value)
    return builder.build()


def node(name: str, *inputs: str) -> Node:
    return Node(name, f"aten.{name}.default", inputs, (Value(name, F32),))


def test_names_are_fresh() -> None:
    graph = chain("relu", "relu")
    assert [n.name for n in graph.nodes] == ["relu", "relu_1"]
    names = Names(graph)
    assert [names.fresh("relu"), names.fresh("relu"), names.fresh("y")] == ["relu_2", "relu_3", "y"]
    assert "y" in names
    assert "z" not in names


def test_substitution_follows_chains_and_reaches_outputs() -> None:
    graph = chain("relu", "exp", "tanh")
    after = substitute(graph, {"tanh": "exp", "exp": "relu"})
    assert after.outputs == (Output("output", "relu"),)
    assert after.nodes[2].inputs == ("relu",)
    assert substitute(graph, {}) is graph
    with pytest.raises(GraphError, match="circle"):
        substitute(graph, {"exp": "relu", "relu": "exp"})


def test_rebuild_sorts_only_what_must_move() -> None:
    graph = chain("relu")
    nodes = [node("c", "b"), node("d", "x"), node("b", "x")]
    after = rebuild(graph, nodes, [Output("o", "c")])
    assert [n.name for n in verify_graph(after).nodes] == ["b", "c", "d"]


def test_circles_are_refused() -> None:
    with pytest.raises(GraphError, match="depends on its own result"):
        topological([node("a", "b"), node("b", "a")])
    with pytest.raises(GraphError, match="depends on its own result"):
        topological([node("a", "a")])


def test_nodes_that_share_a_name_are_kept_for_the_validator() -> None:
    twice = (node("a", "x"), replace(node("a", "x"), outputs=(Value("b", F32),)))
    assert topological(twice) == twice


@given(st.permutations(range(12)))
def test_any_order_is_sorted(order: list[int]) -> None:
    nodes = [node(f"n{i}", *(f"n{j}" for j in range(max(0, i - 3), i))) for i in range(12)]
    result = topological([nodes[i] for i in order])
    assert sorted(n.name for n in result) == sorted(n.name for n in nodes)
    seen: set[str] = set()
    for n in result:
        assert seen.issuperset(i for i in n.inputs if i)
        seen.add(n.name)


def test_a_long_chain_needs_no_recursion() -> None:
    nodes = [node("n0", "x"), *(node(f"n{i}", f"n{i - 1}") for i in range(1, 20_000))]
    assert topological(nodes[::-1]) == tuple(nodes)


def test_dead_nodes_weights_and_constants_go() -> None:
    builder = GraphBuilder()
    x = builder.input("x", F32)
    unused = builder.input("unused", F32)
    w = builder.weight("w", F32)
    builder.weight("dead_weight", F32)
    c = builder.constant("dead_constant", F32, bytes(8))
    builder.node("aten.add.Tensor", [unused, c], F32, name="dead")
    pair = builder.nodes("aten.max.dim", [x], [F32, F32], name="pair")
    builder.output("o", builder.node("aten.add.Tensor", [pair[1], w], F32, name="live"))
    after = drop_dead(builder.build())
    assert [n.name for n in after.nodes] == ["pair", "live"]
    assert [w.name for w in after.weights] == ["w"]
    assert not after.constants
    assert len(after.inputs) == 2
