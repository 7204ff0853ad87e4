"""Edge values give after every pass, and compiled, what they give in PyTorch.

`NPUSIM_EDGE_GRAPHS=10000 pytest tests/properties/test_edge_values.py` draws more;
`python -m tests.properties.search FIRST COUNT edges` prints every finding and goes on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npusim import passes
from npusim.ir.graph import Graph, Node
from npusim.ir.printer import format_graph
from npusim.targets.target_config import TargetConfig
from tests.properties.edge_agreement import disagreement
from tests.properties.edge_graphs import edge_graph

_GRAPHS = int(os.environ.get("NPUSIM_EDGE_GRAPHS", "60"))


@settings(
    max_examples=_GRAPHS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)
@given(random=st.randoms(use_true_random=False), seed=st.integers(0, 2**20))
def test_edge_values(random: Random, seed: int) -> None:
    graph = edge_graph(random)
    problem = disagreement(graph, seed)
    assert problem is None, f"{problem}\n{format_graph(graph)}"


def _changed(op: str, change: Callable[[Node], Node]) -> Callable[[Graph, TargetConfig], Graph]:
    """Returns a pass that changes every node of an op."""

    def broken(graph: Graph, target: TargetConfig) -> Graph:
        return replace(graph, nodes=tuple(change(n) if n.op == op else n for n in graph.nodes))

    return broken


def _rectified(node: Node) -> Node:
    """Takes a lower bound for a relu, as a tolerance once did for small ones."""
    if node.attrs.get("max") is not None:
        return node
    return replace(node, op="aten.relu.default", attrs={}, inputs=node.inputs[:1])


def _unmasked(node: Node) -> Node:
    return replace(node, inputs=(*node.inputs[:3], None))


def _scaled(node: Node) -> Node:
    """Scales the scores of float32 by a thousandth too much."""
    scale = node.attrs.get("scale")
    if not isinstance(scale, float) or node.type.dtype != "float32":
        return node
    return replace(node, attrs={**node.attrs, "scale": scale * 1.001})


def _biasless(node: Node) -> Node:
    """Drops the biases of 16-bit floats."""
    return node if node.type.dtype == "float32" else replace(node, inputs=(*node.inputs[:2], None))


_ATTENTION = "aten.scaled_dot_product_attention.default"


@pytest.mark.parametrize(
    ("op", "change"),
    [
        ("aten.clamp.default", _rectified),
        (_ATTENTION, _unmasked),
        (_ATTENTION, _scaled),
        ("aten.linear.default", _biasless),
        ("aten.conv2d.default", _biasless),
    ],
)
def test_a_broken_pass_is_found(
    op: str, change: Callable[[Node], Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "PIPELINE", (_changed(op, change),))
    graphs = ((n, edge_graph(Random(n))) for n in range(400))
    found = (disagreement(graph, n) for n, graph in graphs if any(x.op == op for x in graph.nodes))
    assert any(problem is not None and "after broken" in problem for problem in found)
