"""A node of a graph as a graph of its own: what is asked about it without its neighbours."""

from __future__ import annotations

from dataclasses import replace

from npusim.ir.graph import Constant, Graph, Node, Output, Value, Weight
from npusim.ir.subgraph import size_witnesses


def single(node: Node, graph: Graph) -> Graph:
    """Returns a graph of one node; what was known at load stays known at load."""
    constants = {c.name: c for c in graph.constants}
    inputs: dict[str, Value] = {}
    weights: dict[str, Weight] = {}
    read: dict[str, Constant] = {}
    for name in node.inputs:
        if name is None:
            continue
        if name in constants:
            read[name] = constants[name]
        elif name in graph.static_values:
            weights[name] = Weight(name, name, graph.types[name])
        else:
            inputs[name] = Value(name, graph.types[name])
    outputs = tuple(Output(v.name, v.name) for v in node.outputs)
    leaves = (tuple(weights.values()), tuple(read.values()))
    alone = Graph(node.name, tuple(inputs.values()), outputs, *leaves, (node,))
    return replace(alone, inputs=(*alone.inputs, *size_witnesses(alone, graph.types)))


def signature(node: Node, graph: Graph) -> object:
    """Returns what a graph of one node depends on, but for names."""
    static = graph.static_values
    operands = tuple(None if i is None else (graph.types[i], i in static) for i in node.inputs)
    results = tuple(v.type for v in node.outputs)
    return node.op, operands, results, repr(sorted(node.attrs.items()))
