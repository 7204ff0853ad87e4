"""Running a partition in PyTorch: every node by its operator's schema, or its OpDef's reference.

Owns the order of calls and when values are let go. Imports torch; only the executor imports this
file, and only for a plan that needs PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from npusim.ir.graph import Graph, Node
from npusim.ops.reference import check_node, constant_tensor, run_node


class HostRun:
    """A partition's graph with its weights, called as often as needed.

    Args:
        graph: of the partition.
        weights: its weights by their names in the graph.

    Raises:
        Error: an operator refuses its operands or attributes, or gives other results than the
            graph says. Asked on tensors without data, before any data is touched: kernels of
            PyTorch trust what the functions around them have checked.
    """

    def __init__(self, graph: Graph, weights: Mapping[str, Tensor]) -> None:
        for node in graph.nodes:
            check_node(node, graph.types)
        self._stored = {w.name: weights[w.name] for w in graph.weights}
        self._stored.update((c.name, constant_tensor(c)) for c in graph.constants)
        self._outputs = tuple(output.value for output in graph.outputs)
        self._steps = tuple(zip(graph.nodes, _last_uses(graph, set(self._outputs)), strict=True))

    def __call__(self, given: Callable[[str], Tensor], made: Callable[[str, Tensor], None]) -> None:
        """Runs the nodes in order.

        Args:
            given: returns an input by its name; called when the first node reads it, so that what
                is still on its way holds up nobody else.
            made: called with every output's value and tensor, as soon as it is there.

        Raises:
            Error: an operator refused its operands, or gave other results than the graph says.
        """
        values = dict(self._stored)
        waited = set(self._outputs)
        with torch.no_grad():
            for node, done in self._steps:
                operands = [None if i is None else _fetched(i, values, given) for i in node.inputs]
                results = run_node(node, operands)
                for value, result in zip(node.outputs, results, strict=True):
                    values[value.name] = result
                    if value.name in waited:
                        made(value.name, result)
                        waited.remove(value.name)
                for name in done:
                    del values[name]
        for name in self._outputs:  # that no node makes
            if name in waited:
                made(name, values[name])


def _fetched(name: str, values: dict[str, Tensor], given: Callable[[str], Tensor]) -> Tensor:
    if name not in values:
        values[name] = given(name)
    return values[name]


def _last_uses(graph: Graph, kept: set[str]) -> list[list[str]]:
    """Returns, for each node, the values that nobody reads behind it."""
    last: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        last.update((v.name, index) for v in node.outputs)
        last.update((i, index) for i in _operands(node))
    done: list[list[str]] = [[] for _ in graph.nodes]
    for name, index in last.items():
        if name not in kept:
            done[index].append(name)
    return done


def _operands(node: Node) -> list[str]:
    return [i for i in node.inputs if i is not None]
