"""Cutting a part out of a graph: what crosses the cut becomes inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Container

from npusim.ir.graph import Graph, Output, Value
from npusim.ir.symbolic import dim_of, symbols_of
from npusim.ir.types import TensorType
from npusim.ir.verify import symbol_of_dimension


def subgraph(
    graph: Graph,
    nodes: Collection[str],
    outputs: Collection[str],
    *,
    states: Collection[str] = (),
    name: str = "",
) -> Graph:
    """Returns the graph of some nodes of another, in their order; its inputs are `live_inputs`.

    Args:
        nodes: names of nodes.
        outputs: values that the part returns: made by its nodes, or weights and constants.
        states: those that the part keeps and updates itself; the others are inputs, by their value
            before the call.
        name: of the part; by default the graph's.
    """
    chosen = tuple(node for node in graph.nodes if node.name in nodes)
    used = {i for node in chosen for i in node.inputs} | set(outputs)
    return Graph(
        name or graph.name,
        tuple(Value(i, graph.types[i]) for i in live_inputs(graph, nodes, states)),
        tuple(Output(value, value) for value in outputs),
        tuple(w for w in graph.weights if w.name in used),
        tuple(c for c in graph.constants if c.name in used),
        chosen,
        tuple(s for s in graph.states if s.name in states),
        tuple(u for u in graph.updates if u.name in states),
    )


def live_inputs(graph: Graph, nodes: Collection[str], states: Collection[str] = ()) -> list[str]:
    """Returns the values that some nodes read, and neither make nor find stored as a weight, a
    constant or one of `states`, in the order of use."""
    chosen = [node for node in graph.nodes if node.name in nodes]
    made = {value.name for node in chosen for value in node.outputs}
    stored = {w.name for w in graph.weights} | {c.name for c in graph.constants} | set(states)
    read = dict.fromkeys(i for node in chosen for i in node.inputs if i is not None)
    return [i for i in read if i not in made and i not in stored]


def live_outputs(graph: Graph, nodes: Collection[str]) -> list[str]:
    """Returns the values of some nodes that others read, or that the graph returns or keeps."""
    chosen = [node for node in graph.nodes if node.name in nodes]
    wanted = {i for node in graph.nodes if node.name not in nodes for i in node.inputs}
    wanted.update(graph.output_values)
    return [value.name for node in chosen for value in node.outputs if value.name in wanted]


def size_witnesses(graph: Graph, taken: Container[str] = ()) -> tuple[Value, ...]:
    """Returns the inputs that a part of a graph lacks: one for each symbolic size that none tells.

    A witness of size n is n bytes that nobody reads.

    Args:
        taken: names that the witnesses must not have.
    """
    shapes = tuple(value.type.shape for value in graph.inputs)
    told = {found[0] for shape in shapes for found in map(symbol_of_dimension, shape) if found}
    used = set(symbols_of(shapes))
    for node in graph.nodes:
        used |= symbols_of(tuple(v.type.shape for v in node.outputs))
        used |= symbols_of(tuple(node.attrs.values()))
    witnesses = []
    for symbol in sorted(used - told, key=lambda s: s.name):
        name = f"size.{symbol.name}"
        while name in taken:
            name += "_"
        witnesses.append(Value(name, TensorType("uint8", (dim_of(symbol),))))
    return tuple(witnesses)
