"""A long search for graphs that disagree: `python -m tests.properties.search FIRST COUNT`.

Graph n is drawn with seed n, so a finding is named by its number. Prints each finding and goes on.
"""

from __future__ import annotations

import sys
import traceback
from collections import Counter
from random import Random

from npusim.ir.printer import format_graph
from tests.properties.agreement import disagreement
from tests.properties.random_graphs import random_graph


def search(first: int, count: int) -> Counter[str]:
    """Draws graphs first … first+count-1, prints those that disagree, and counts nodes by op."""
    ops: Counter[str] = Counter()
    for number in range(first, first + count):
        graph = random_graph(Random(number))
        ops.update(node.op for node in graph.nodes)
        try:
            problem = disagreement(graph, number)
        except Exception:  # whatever escapes is the finding
            problem = traceback.format_exc(limit=-4)
        if problem is not None:
            print(f"== {number}: {problem}\n{format_graph(graph)}", flush=True)
        if (number - first) % 1000 == 999:
            print(f"-- {number - first + 1} graphs", flush=True)
    return ops


if __name__ == "__main__":
    counted = search(int(sys.argv[1]), int(sys.argv[2]))
    print(f"{sum(counted.values())} nodes of {len(counted)} ops: {dict(counted.most_common())}")
