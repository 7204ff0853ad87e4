"""Removes nodes, weights and constants that no output depends on.

No op has effects, so whatever is not read can go; graph inputs stay, as the caller passes them.
"""

from __future__ import annotations

from npusim.ir.graph import Graph
from npusim.ir.rewrite import drop_dead
from npusim.targets.target_config import TargetConfig


def eliminate_dead_code(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with only what its outputs need."""
    return drop_dead(graph)
