"""Edge values give after every pass, and compiled, what they give in PyTorch.

`NPUSIM_EDGE_GRAPHS=10000 pytest tests/properties/test_edge_values.py` draws more;
`python -m tests.properties.search FIRST COUNT edges` prints every finding and goes on.
"""

from __future__ import annotations

import os
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npusim import passes
from npusim.ir.graph import Graph
from npusim.ir.printer import format_graph
from npusim.targets.target_config import TargetConfig
from tests.properties.edge_agreement import disagreement
from tests.properties.edge_graphs import edge_graph

_GRAPHS = int(os.environ.get("NPUSIM_EDGE_GRAPHS", "120"))


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


def _rectifies(graph: Graph, target: TargetConfig) -> Graph:
    """Takes every lower bound for a relu, as a tolerance once did for small ones."""
    from dataclasses import replace

    nodes = (
        replace(n, op="aten.relu.default", attrs={}, inputs=n.inputs[:1])
        if n.op == "aten.clamp.default" and n.attrs.get("max") is None
        else n
        for n in graph.nodes
    )
    return replace(graph, nodes=tuple(nodes))


def test_a_broken_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "PIPELINE", (_rectifies, *passes.PIPELINE))
    found = (disagreement(edge_graph(Random(n)), n) for n in range(200))
    assert any(problem is not None and "after _rectifies" in problem for problem in found)
