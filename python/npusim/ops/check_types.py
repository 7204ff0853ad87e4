"""Holding the types that a graph declares to what its operators give.

A file may say anything; a kernel trusts what the graph says of its operands and leaves of its
result as many elements as it is declared to have. So graphs are checked when they are read and
before they are compiled, by rules that need no PyTorch (`ops/inference`). Nodes of operators that
npusim has no rule for are left to whoever runs them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from npusim.errors import Error, GraphError, ShapeError, SymbolicSizeError, at
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import find
from npusim.ir.symbolic import Symbol, is_symbolic, substituted, symbols_of
from npusim.ir.types import HOST_DTYPES, TensorType
from npusim.ops.inference import inference

_MAX_VALUES = 64  # up to so many choices of symbols, all are tried; of more the corners and middles

Types = tuple[TensorType, ...]


def check_types(graph: Graph, known: Graph | None = None) -> Graph:
    """Checks every node that npusim has a rule for, and returns the graph.

    Args:
        known: a graph that has passed; its nodes are not checked again where their operands have
            the types they had.

    Raises:
        GraphError: an operator refuses its operands or attributes, or gives other types than the
            node declares; names the node, its place in the model's code, and what was expected.
    """
    passed = {id(node) for node in known.nodes} if known is not None else set()
    before = known.types if known is not None else {}
    for node in graph.nodes:
        same = id(node) in passed and all(
            name is None or graph.types[name] == before.get(name) for name in node.inputs
        )
        if not same:
            check_node(node, graph.types)
    return graph


def check_node(node: Node, types: Mapping[str, TensorType]) -> None:
    """Checks one node; see `check_types`.

    Args:
        types: the types of the values it reads (`Graph.types`).
    """
    operands = [None if i is None else types[i].with_order(None) for i in node.inputs]
    declared = tuple(v.type.with_order(None) for v in node.outputs)
    if any(t is not None and t.dtype in HOST_DTYPES for t in (*operands, *declared)):
        return  # no device has them: PyTorch runs the node, and compares
    try:
        given = inferred(node.op, operands, node.attrs)
        if given is None or _same(given, declared):
            return
    except SymbolicSizeError:
        given = declared
    except Error as error:
        raise GraphError(f"{_place(node)}: {error}") from None
    if is_symbolic(tuple(t.shape for t in (*operands, *declared) if t is not None)):
        _check_at_values(node, operands, declared)
    else:
        raise _mismatch(node, declared, given)


def inferred(
    op: str, operands: Sequence[TensorType | None], attrs: Mapping[str, object]
) -> Types | None:
    """Returns the types that an operator gives, row-major; None when npusim has no rule for it.

    Raises:
        Error: it refuses the operands or attributes.
    """
    definition = find(op)
    rule = definition.infer if definition is not None and definition.infer else inference(op)
    if rule is None:
        return None
    try:
        result = rule(*operands, **attrs)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        # Rules of fused operators, and of a user's own, take attributes as they come.
        raise ShapeError(f"its operands or attributes are not those of the op: {error}.") from None
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def _check_at_values(node: Node, operands: Sequence[TensorType | None], declared: Types) -> None:
    """Checks a node at values of its symbols, where expressions alone do not decide."""
    everything = (operands, declared, dict(node.attrs))
    for sizes in _values(symbols_of(_structure(everything))):
        at_sizes = [None if t is None else _at(t, sizes) for t in operands]
        expected = tuple(_at(t, sizes) for t in declared)
        attrs = {key: substituted(value, sizes) for key, value in node.attrs.items()}
        said = ", ".join(f"{name}={size}" for name, size in sizes.items())
        try:
            given = inferred(node.op, at_sizes, attrs)
        except Error as error:
            raise GraphError(f"{_place(node)}: for {said}: {error}") from None
        if given is not None and not _same(given, expected):
            raise _mismatch(node, expected, given, f" for {said}")


def _structure(
    everything: tuple[Sequence[TensorType | None], Types, Mapping[str, object]],
) -> tuple[object, ...]:
    operands, declared, attrs = everything
    shapes = tuple(t.shape for t in (*operands, *declared) if t is not None)
    return (*shapes, *attrs.values())


def _values(symbols: frozenset[Symbol]) -> Iterator[dict[str, int]]:
    """Yields values of symbols: all there are when they are few, else bounds and some between."""
    ordered = sorted(symbols, key=lambda s: s.name)
    ranges: list[Sequence[int]] = [range(s.low, s.high + 1) for s in ordered]
    count = 1
    for choices in ranges:
        count *= len(choices)
    if count > _MAX_VALUES:
        ranges = [_some(choices) for choices in ranges]
    for number, values in enumerate(product(*ranges)):
        if number == 8 * _MAX_VALUES:
            return
        yield {s.name: value for s, value in zip(ordered, values, strict=True)}


def _some(choices: Sequence[int]) -> Sequence[int]:
    last = len(choices) - 1
    places = {0, 1, last // 2, last // 2 + 1, last - 1, last}
    return sorted({choices[p] for p in places if 0 <= p <= last})


def _at(type: TensorType, sizes: Mapping[str, int]) -> TensorType:
    return TensorType(type.dtype, substituted(type.shape, sizes))


def _same(given: Types, declared: Types) -> bool:
    return [(t.dtype, t.shape) for t in given] == [(t.dtype, t.shape) for t in declared]


def _place(node: Node) -> str:
    return f"node {node.name!r} ({node.op}){at(node.source)}"


def _mismatch(node: Node, declared: Types, given: Types, when: str = "") -> GraphError:
    return GraphError(
        f"{_place(node)} declares {_list(declared)}{when}, but the op gives {_list(given)}.",
        hint="Extract or import the model again.",
    )


def _list(types: Types) -> str:
    text = ", ".join(map(str, types[:8]))
    return text + (f" and {len(types) - 8} more" if len(types) > 8 else "") or "nothing"
