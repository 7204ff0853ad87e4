"""A long search for graphs that disagree: `python -m tests.properties.search FIRST COUNT [edges]`.

With `edges`, the graphs and data of `edge_graphs.py`, each pass alone and all together.

Graph n is drawn with seed n, so a finding is named by its number. Prints each finding and goes on.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from random import Random

from npusim.ir.printer import format_graph
from tests.properties import agreement, edge_agreement
from tests.properties.edge_graphs import edge_graph
from tests.properties.random_graphs import random_graph


def search(first: int, count: int, *, edges: bool = False) -> Counter[str]:
    """Draws graphs first … first+count-1, prints those that disagree, and counts nodes by op."""
    ops: Counter[str] = Counter()
    for number in range(first, first + count):
        graph = (edge_graph if edges else random_graph)(Random(number))
        ops.update(node.op for node in graph.nodes)
        try:
            problem = (edge_agreement if edges else agreement).disagreement(graph, number)
        except Exception:  # whatever escapes is the finding
            problem = traceback.format_exc(limit=-4)
        if problem is not None:
            print(f"== {number}: {problem}\n{format_graph(graph)}", flush=True)
        if (number - first) % 1000 == 999:
            print(f"-- {number - first + 1} graphs", flush=True)
    return ops


if __name__ == "__main__":
    counted = search(int(sys.argv[1]), int(sys.argv[2]), edges="edges" in sys.argv[3:])
    print(f"{sum(counted.values())} nodes of {len(counted)} ops: {dict(counted.most_common())}")
