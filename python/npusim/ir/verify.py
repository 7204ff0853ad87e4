"""What a legal Graph is, checked. Runs after extraction, after loading and after every pass.

Owns the invariants that hold for all graphs, whatever their ops; what an op demands of its
operands is checked by its reference (`npusim.ops.reference.check_node`) and its lowering.
"""

from __future__ import annotations

from collections.abc import Iterable

from npusim.errors import GraphError, at
from npusim.ir.graph import Graph, Node
from npusim.ir.symbolic import Symbol, bounds, describe, is_symbolic, symbols_of, upper
from npusim.ir.types import DTYPES, HOST_DTYPES, TensorType

INT64_MAX = 2**63 - 1
_MAX_NAME = 4096
_MAX_RANK = 64
_MAX_NESTING = 16


def verify_graph(graph: Graph) -> Graph:
    """Checks every invariant and returns the graph.

    Raises:
        GraphError: names the first node or value that breaks an invariant, and which one.
    """
    _check_name(graph.name, "The graph's name", empty=True)
    defined = _check_leaves(graph)
    _unique((n.name for n in graph.nodes), "Two nodes are named")
    for node in graph.nodes:
        _check_node(node, defined)
    _check_outputs(graph, defined)
    _check_updates(graph, defined)
    _check_symbols(graph)
    return graph


def symbol_of_dimension(size: int) -> tuple[Symbol, int, int] | None:
    """Returns (symbol, a, b) when a dimension is a * symbol + b with a > 0, else None.

    Such a dimension of an input tells the symbol's value.
    """
    if not is_symbolic(size):
        return None
    terms = dict(size.terms)  # type: ignore[attr-defined]
    constant = terms.pop((), 0)
    if len(terms) != 1:
        return None
    ((monomial, factor),) = terms.items()
    if factor < 0 or len(monomial) != 1 or monomial[0][1] != 1:
        return None
    atom = monomial[0][0]
    return (atom, factor, constant) if isinstance(atom, Symbol) else None


def _check_symbols(graph: Graph) -> None:
    """Every symbol in use is told by a dimension of an input, and has one pair of bounds."""
    _unique((s.name for s in graph.symbols), "Two symbolic sizes with different bounds are named")
    sizes = (size for value in graph.inputs for size in value.type.shape)
    told = {found[0] for found in map(symbol_of_dimension, sizes) if found is not None}
    kept = [w.name for w in graph.weights] + [c.name for c in graph.constants]
    for name in (*kept, *(s.name for s in graph.states)):
        if is_symbolic(graph.types[name].shape):
            raise GraphError(
                f"{name!r} has shape {list(graph.types[name].shape)}; only inputs, and what is "
                "computed from them, have symbolic sizes."
            )
    used = [("the inputs' shapes", symbols_of(tuple(v.type.shape for v in graph.inputs)))]
    for node in graph.nodes if graph.symbols or any(n.is_symbolic for n in graph.nodes) else ():
        where = f"node {node.name!r} ({node.op}){at(node.source)}"
        used.append((where, symbols_of(tuple(v.type.shape for v in node.outputs))))
        used.append((where, symbols_of(tuple(node.attrs.values()))))
    for where, symbols in used:
        for symbol in symbols - told:
            raise GraphError(
                f"{where}: no dimension of an input tells the size {symbol.name} "
                f"({symbol.low} … {symbol.high}): one must be it, or a multiple plus a number."
            )


def _check_leaves(graph: Graph) -> set[str]:
    """Checks inputs, weights, constants and states; returns the values they define."""
    defined: set[str] = set()
    leaves = (
        ("input", graph.inputs),
        ("weight", graph.weights),
        ("constant", graph.constants),
        ("state", graph.states),
    )
    for kind, values in leaves:
        for value in values:
            where = f"{kind} {value.name!r}"
            _define(value.name, defined, where)
            _check_type(value.type, where)
    _unique((k for w in graph.weights for k in (w.key, *w.aliases)), "Two weights have the key")
    for weight in graph.weights:
        for key in (weight.key, *weight.aliases):
            _check_name(key, f"A key of weight {weight.name!r}")
    for constant in graph.constants:
        if len(constant.data) != constant.type.nbytes:
            raise GraphError(
                f"constant {constant.name!r} is {constant.type}, {constant.type.nbytes} bytes, "
                f"but holds {len(constant.data)}."
            )
    return defined


def _check_node(node: Node, defined: set[str]) -> None:
    where = f"node {node.name!r} ({node.op}){at(node.source)}"
    _check_name(node.name, f"The name of {where}")
    _check_name(node.op, f"The op of {where}")
    if "." not in node.op:
        raise GraphError(f"{where}: an op is written namespace.name[.overload].")
    for index, name in enumerate(node.inputs):
        if name is not None and name not in defined:
            raise GraphError(f"{where}: operand {index}, {name!r}, is not defined before it.")
    for key, attr in node.attrs.items():
        _check_name(key, f"An attribute's name of {where}")
        _check_attr(attr, f"{where}: attribute {key!r}")
    if not node.outputs:
        raise GraphError(f"{where} has no outputs.")
    for value in node.outputs:
        _define(value.name, defined, where)
        _check_type(value.type, f"{where}: output {value.name!r}")


def _check_outputs(graph: Graph, defined: set[str]) -> None:
    if not graph.outputs and not graph.updates:
        raise GraphError(f"graph {graph.name!r} has no outputs.")
    _unique((o.name for o in graph.outputs), "Two outputs are named")
    for output in graph.outputs:
        _check_name(output.name, "An output's name")
        if output.value not in defined:
            raise GraphError(
                f"output {output.name!r} shows {output.value!r}, which is not defined."
            )


def _check_updates(graph: Graph, defined: set[str]) -> None:
    states = {s.name: s.type for s in graph.states}
    _unique((u.name for u in graph.updates), "Two updates are of the state")
    for update in graph.updates:
        if update.name not in states:
            raise GraphError(f"there is an update of {update.name!r}, which is not a state.")
        if update.value not in defined:
            raise GraphError(
                f"the update of {update.name!r} shows {update.value!r}, which is not defined."
            )
        new, old = graph.types[update.value], states[update.name]
        if (new.dtype, new.shape) != (old.dtype, old.shape):
            raise GraphError(f"state {update.name!r} is {old}, but its update is {new}.")


def _define(name: str, defined: set[str], where: str) -> None:
    _check_name(name, f"The name of a value of {where}")
    if name in defined:
        raise GraphError(f"{where} defines {name!r}, which is already defined.")
    defined.add(name)


def _unique(names: Iterable[str], message: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise GraphError(f"{message} {name!r}.")
        seen.add(name)


def _check_name(name: object, what: str, *, empty: bool = False) -> None:
    if not isinstance(name, str) or not (name or empty) or len(name) > _MAX_NAME:
        raise GraphError(f"{what} must be a string of 1 to {_MAX_NAME} characters.")
    if not _is_unicode(name):
        raise GraphError(f"{what} is not valid Unicode.")
    if not name.isprintable():
        raise GraphError(f"{what}, {name!r}, contains characters that cannot be printed.")


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def _check_type(type: TensorType, where: str) -> None:
    if type.dtype not in DTYPES and type.dtype not in HOST_DTYPES:
        known = ", ".join((*DTYPES, *HOST_DTYPES))
        raise GraphError(f"{where} has dtype {type.dtype!r}; known are {known}.")
    if len(type.shape) > _MAX_RANK:
        raise GraphError(
            f"{where} has {len(type.shape)} dimensions; at most {_MAX_RANK} are legal."
        )
    for size in type.shape:
        if not _is_int(size) or bounds(size)[0] < 0:
            known = f" ({describe(symbols_of((size,)))})" if is_symbolic(size) else ""
            raise GraphError(
                f"{where} has shape {list(type.shape)}{known}; dimensions are ints, 0 or more."
            )
    if max(map(upper, type.shape), default=0) > INT64_MAX or type.greatest_bytes > INT64_MAX:
        raise GraphError(f"{where} has shape {list(type.shape)}, beyond what 64 bits can address.")
    if type.order is None:
        return
    if not all(map(_is_int, type.order)) or sorted(type.order) != list(range(type.rank)):
        raise GraphError(
            f"{where} has storage order {type.order}, not a permutation of its {type.rank} "
            "dimensions."
        )
    if type.order == tuple(range(type.rank)):
        raise GraphError(f"{where} spells row-major order out; it is written None.")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_attr(attr: object, where: str, depth: int = 0) -> None:
    if depth > _MAX_NESTING:
        raise GraphError(f"{where} is nested more than {_MAX_NESTING} deep.")
    if isinstance(attr, tuple):
        for item in attr:
            _check_attr(item, where, depth + 1)
    elif _is_int(attr):
        low, high = bounds(attr)  # type: ignore[arg-type]
        if not -INT64_MAX - 1 <= low <= high <= INT64_MAX:
            raise GraphError(f"{where} holds {attr}, beyond 64 bits.")
    elif isinstance(attr, str):
        if not _is_unicode(attr):
            raise GraphError(f"{where} is not valid Unicode.")
    elif not (attr is None or isinstance(attr, (bool, float))):
        raise GraphError(
            f"{where} holds a {type(attr).__name__}; legal are None, bool, int, float, str and "
            "tuples of these."
        )
