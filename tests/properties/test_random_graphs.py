"""Random graphs give what PyTorch gives.

`NPUSIM_RANDOM_GRAPHS=10000 pytest tests/properties` draws more; `python -m tests.properties.search`
goes on after a failure, and prints every one.
"""

from __future__ import annotations

import os
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npusim.ir.printer import format_graph
from tests.properties.agreement import disagreement
from tests.properties.random_graphs import random_graph

_GRAPHS = int(os.environ.get("NPUSIM_RANDOM_GRAPHS", "150"))


@settings(
    max_examples=_GRAPHS,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)
@given(random=st.randoms(use_true_random=False), seed=st.integers(0, 2**20))
def test_random_graph(random: Random, seed: int) -> None:
    graph = random_graph(random)
    problem = disagreement(graph, seed)
    assert problem is None, f"{problem}\n{format_graph(graph)}"
