"""Cutting a part out of a graph: what crosses the cut becomes inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from npusim.ir.graph import Graph, Output, Value


def subgraph(graph: Graph, nodes: Collection[str], outputs: Iterable[str], name: str = "") -> Graph:
    """Returns the graph of some nodes of another, in their order.

    Whatever the nodes read that is neither made by them nor a weight or constant becomes an input,
    in the order of its first use; so does a state, by its value before the call.

    Args:
        nodes: names of nodes.
        outputs: values that the nodes make, and that the part returns.
        name: of the part; by default the graph's.
    """
    chosen = tuple(node for node in graph.nodes if node.name in nodes)
    made = {value.name for node in chosen for value in node.outputs}
    read = dict.fromkeys(i for node in chosen for i in node.inputs if i is not None)
    stored = {w.name for w in graph.weights} | {c.name for c in graph.constants}
    return Graph(
        name or graph.name,
        tuple(Value(i, graph.types[i]) for i in read if i not in made and i not in stored),
        tuple(Output(value, value) for value in outputs),
        tuple(w for w in graph.weights if w.name in read),
        tuple(c for c in graph.constants if c.name in read),
        chosen,
    )


def live_outputs(graph: Graph, nodes: Collection[str]) -> list[str]:
    """Returns the values of some nodes that others read, or that the graph returns or keeps."""
    chosen = [node for node in graph.nodes if node.name in nodes]
    wanted = {i for node in graph.nodes if node.name not in nodes for i in node.inputs}
    wanted.update(graph.output_values)
    return [value.name for node in chosen for value in node.outputs if value.name in wanted]
