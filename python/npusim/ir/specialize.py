"""Giving symbolic sizes their values: a graph for any sizes becomes one for these sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from npusim.errors import ShapeError
from npusim.ir.graph import Graph, Node, Value
from npusim.ir.symbolic import describe, dim_of, evaluate, is_symbolic, substituted
from npusim.ir.verify import symbol_of_dimension, verify_graph


def specialize(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Returns the graph with symbolic sizes fixed; those not given stay symbolic.

    Args:
        sizes: values by the symbols' names, each within its symbol's bounds.

    Raises:
        ShapeError: an unknown symbol, or a value outside of its bounds.
    """
    known = {s.name: s for s in graph.symbols}
    for name, size in sizes.items():
        symbol = known.get(name)
        if symbol is None:
            raise ShapeError(
                f"graph {graph.name!r} has no symbolic size {name!r}; it has: "
                f"{describe(graph.symbols) or 'none'}."
            )
        if not symbol.low <= size <= symbol.high:
            raise ShapeError(f"{name} is {size}; {symbol.low} … {symbol.high} is possible.")
    if not sizes:
        return graph
    values = {**{s.name: dim_of(s) for s in graph.symbols}, **sizes}
    fixed = replace(
        graph,
        inputs=tuple(_value(v, values) for v in graph.inputs),
        nodes=tuple(_node(n, values) for n in graph.nodes),
    )
    return verify_graph(fixed)


def at_shapes(graph: Graph, shapes: Sequence[Sequence[int]]) -> Graph:
    """Returns the graph with the symbolic sizes that shapes of all its inputs imply.

    Raises:
        ShapeError: as `bind_sizes`.
    """
    if not graph.symbols:
        return graph
    return specialize(graph, bind_sizes([(v.name, v.type.shape) for v in graph.inputs], shapes))


def _value(value: Value, sizes: Mapping[str, int]) -> Value:
    if not is_symbolic(value.type.shape):
        return value
    return replace(value, type=replace(value.type, shape=substituted(value.type.shape, sizes)))


def _node(node: Node, sizes: Mapping[str, int]) -> Node:
    if not node.is_symbolic:
        return node
    attrs = {key: substituted(attr, sizes) for key, attr in node.attrs.items()}
    return replace(node, outputs=tuple(_value(v, sizes) for v in node.outputs), attrs=attrs)


def bind_sizes(
    inputs: Sequence[tuple[str, Sequence[int]]], shapes: Sequence[Sequence[int]]
) -> dict[str, int]:
    """Returns the values of the symbols that given shapes of all inputs imply.

    Args:
        inputs: (name, shape) of each input; shapes may hold symbolic sizes.
        shapes: what a caller gives, in the same order.

    Raises:
        ShapeError: a rank or a dimension does not fit; names the input, the dimension, its value
            and what is possible there.
    """
    sizes: dict[str, int] = {}
    for (name, wanted), given in zip(inputs, shapes, strict=True):
        if len(wanted) != len(given):
            raise ShapeError(
                f"input {name} has {len(given)} dimensions ({list(given)}), expected "
                f"{len(wanted)} ({_list(wanted)})."
            )
        for axis, (size, value) in enumerate(zip(wanted, given, strict=True)):
            found = symbol_of_dimension(size)
            if found is None or found[0].name in sizes:
                continue
            symbol, factor, constant = found
            where = f"input {name}: dimension {axis} is {value}"
            if (value - constant) % factor:
                raise ShapeError(f"{where}, which is not of the form {size}.")
            solved = (value - constant) // factor
            if not symbol.low <= solved <= symbol.high:
                low, high = factor * symbol.low + constant, factor * symbol.high + constant
                raise ShapeError(f"{where}; {size} is {low} … {high} ({describe([symbol])}).")
            sizes[symbol.name] = solved
    for (name, wanted), given in zip(inputs, shapes, strict=True):
        for axis, (size, value) in enumerate(zip(wanted, given, strict=True)):
            expected = evaluate(size, sizes)
            if expected != value:
                known = ", ".join(f"{k} = {v}" for k, v in sizes.items())
                because = f"{size} = {expected} ({known})" if is_symbolic(size) else f"{expected}"
                raise ShapeError(f"input {name}: dimension {axis} is {value}, expected {because}.")
    return sizes


def _list(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"
