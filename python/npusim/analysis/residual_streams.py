"""Residual streams: values that go from sum to sum without a product between them.

What is rounded there stays: nothing averages it, and each sum adds another rounding to it.
"""

from __future__ import annotations

from collections.abc import Callable

from npusim.ir.graph import Graph, Node

Passing = Callable[[Node], tuple[tuple[str, ...], bool]]


def residual_streams(graph: Graph, passing: Passing, least: int) -> frozenset[str]:
    """Returns the values between the first and the last sum of each stream.

    Args:
        passing: the operands of a node that come through it without being multiplied by another
            one and summed, and whether the node adds anything to them.
        least: sums that make a stream.
    """
    before, behind = dict[str, int](), dict[str, int]()
    ways = [(node, *passing(node)) for node in graph.nodes]
    for node, operands, adds in ways:
        most = max((before.get(i, 0) for i in operands), default=0) + adds
        before.update((v.name, most) for v in node.outputs)
    for node, operands, adds in reversed(ways):
        most = max((behind.get(v.name, 0) for v in node.outputs), default=0) + adds
        behind.update((i, max(most, behind.get(i, 0))) for i in operands)
    return frozenset(
        value for value, sums in before.items() if sums and sums + behind.get(value, 0) >= least
    )
