"""The JSON form of a Graph, specified in docs/ir.md. Owns reading and writing it.

A file is hostile until `verify_graph` has passed: unknown keys, wrong types, duplicate keys,
absurd numbers and nesting are refused, with the JSON path of what is wrong.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from npusim.errors import GraphError, SymbolicSizeError
from npusim.files import kind_of, printable_path, read_whole, write_atomic
from npusim.ir.foreign import read_foreign
from npusim.ir.graph import Attr, Constant, Graph, Node, Output, Source, Value, Weight
from npusim.ir.size_text import parse_size
from npusim.ir.symbolic import Symbol, is_symbolic, symbol
from npusim.ir.types import TensorType
from npusim.ir.verify import verify_graph
from npusim.version import install_hint

FORMAT = "npusim.ir"
VERSION = (1, 3)
_STATIC_VERSION = (1, 2)  # of what has no symbolic sizes

# What a file may be taken for a graph that is none, and how to come to one, or do without.
_MAKERS = {
    "an ONNX model": "Import it: npusim import FILE.onnx -o FILE.json --weights FILE.safetensors",
    "a program": "It is compiled already: npusim run.",
    "a partition plan": "It is compiled already: npusim run.",
    "safetensors": "It holds weights alone; `npusim extract` writes graphs.",
}

_T = TypeVar("_T")


def save_graph(graph: Graph, path: str | Path) -> None:
    """Writes the graph as JSON, whole or not at all; one node a line, so that files diff well."""
    write_atomic(path, graph_to_text(graph).encode())


def load_graph(path: str | Path) -> Graph:
    """Reads and verifies a graph: npusim's own, or one of another tool (`ir/foreign.py`).

    Raises:
        GraphError: the file cannot be read, is not a graph, is of an unknown version, or breaks
            an invariant.
    """
    data = read_bytes(path)
    try:
        return read_foreign(tree := parse_any(data)) or graph_from_json(tree)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def read_bytes(path: str | Path) -> bytes:
    """Returns a file's content; GraphError when it cannot be read."""
    try:
        return read_whole(path)
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        reason = getattr(error, "strerror", None) or str(error)
        raise GraphError(f"{printable_path(path)} cannot be read: {reason}.") from None


def graph_to_text(graph: Graph) -> str:
    """Returns the JSON text: list elements one a line, everything within them compact."""
    fields = []
    for key, value in graph_to_json(graph).items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            items = ",\n  ".join(_dump(item) for item in value)
            fields.append(f" {_dump(key)}: [\n  {items}\n ]")
        else:
            fields.append(f" {_dump(key)}: {_dump(value)}")
    return "{\n" + ",\n".join(fields) + "\n}\n"


def graph_from_text(text: str | bytes) -> Graph:
    """Parses JSON text into a verified graph; GraphError when it is not one."""
    return graph_from_json(parse_json(text))


def parse_any(text: str | bytes) -> object:
    """Parses JSON of npusim or of another tool, which may write NaN and Infinity; else GraphError.

    Raises:
        GraphError: not JSON, or npusim's own file with what its specification does not have.
    """
    strange: list[str] = []
    tree = _loads(text, lambda word: strange.append(word) or float(word))  # type: ignore[func-returns-value]
    if strange and isinstance(tree, Mapping) and "format" in tree:
        _refuse_constant(strange[0])
    return tree


def parse_json(text: str | bytes) -> object:
    """Parses JSON as the specification has it: no key twice, no NaN; GraphError otherwise."""
    return _loads(text, _refuse_constant)


def _loads(text: str | bytes, constant: Callable[[str], float]) -> object:
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=constant)
    except GraphError:
        raise
    except RecursionError:
        raise GraphError("The JSON is nested too deeply for a graph.") from None
    except ValueError as error:  # JSONDecodeError, bad UTF-8, an integer of thousands of digits
        kind = kind_of(text[:64]) if isinstance(text, bytes) else "text"
        if kind in _MAKERS:
            raise GraphError(f"This is {kind}, not a graph.", hint=_MAKERS[kind]) from None
        raise GraphError(f"This is not JSON: {error}.") from None


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """Returns the graph as JSON-able data (dicts, lists, strings, numbers)."""
    return {
        "format": FORMAT,
        "version": list(VERSION if graph.symbols else _STATIC_VERSION),
        "name": graph.name,
        **({"symbols": [_symbol_out(s) for s in graph.symbols]} if graph.symbols else {}),
        "inputs": [_value_out(v) for v in graph.inputs],
        "outputs": [{"name": o.name, "value": o.value} for o in graph.outputs],
        "weights": [_weight_out(w) for w in graph.weights],
        "constants": [_constant_out(c) for c in graph.constants],
        "nodes": [_node_out(n) for n in graph.nodes],
        "states": [_value_out(s) for s in graph.states],
        "updates": [{"state": u.name, "value": u.value} for u in graph.updates],
    }


def graph_from_json(tree: object) -> Graph:
    """Returns the verified graph that JSON-able data describes.

    What nodes declare to give is held to their operators as well, where npusim has a rule for them.

    Raises:
        GraphError: not a graph, another version, or an invariant is broken; says where.
    """
    lenient = _check_header(tree)
    root = _Fields(tree, "$", lenient)
    root.take("format", _str)
    root.take("version", _any)
    for name, size in root.items("symbols", _symbol_in, optional=True):
        if name in root.symbols:
            raise GraphError(f"$.symbols has {name!r} twice.")
        root.symbols[name] = size
    graph = Graph(
        name=root.take("name", _str),
        inputs=root.items("inputs", _value_in),
        outputs=root.items("outputs", _output_in),
        weights=root.items("weights", _weight_in),
        constants=root.items("constants", _constant_in),
        nodes=root.items("nodes", _node_in),
        states=root.items("states", _value_in, optional=True),
        updates=root.items("updates", _update_in, optional=True),
    )
    root.close()
    # By name, as the readers of `ir/foreign.py`: operators build on this part, not it on them.
    check: Callable[[Graph], Graph] = import_module("npusim.ops.check_types").check_types
    return check(verify_graph(graph))


def _check_header(tree: object) -> bool:
    """Checks format and version; returns whether a newer minor may carry unknown keys."""
    if not isinstance(tree, Mapping) or tree.get("format") != FORMAT:
        raise GraphError(f'This is not an npusim graph: "format" must be "{FORMAT}".')
    return check_version(tree, "graph", VERSION) > VERSION[1]


def check_version(tree: Mapping[str, Any], what: str, known: tuple[int, int]) -> int:
    """Checks the major version of a JSON file; returns the minor one.

    Args:
        what: the kind of file, in messages.
        known: the newest version that is read.

    Raises:
        GraphError: it says no version, or another major one; then also which npusim to install,
            where a newer file says so.
    """
    version = tree.get("version")
    if not (
        isinstance(version, (list, tuple))
        and len(version) == 2
        and all(type(part) is int and part >= 0 for part in version)
    ):
        raise GraphError("$.version must be [major, minor], two integers.")
    major, minor = version
    if major != known[0]:
        newer = major > known[0]
        raise GraphError(
            f"The {what} is of version {major}.{minor}; this npusim reads version {known[0]}.x.",
            hint=f"{install_hint(tree.get('npusim'))}, or extract it again here."
            if newer
            else "Extract it again.",
        )
    return int(minor)


# ---- writing ----


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _symbol_out(symbol: Symbol) -> dict[str, Any]:
    return {"name": symbol.name, "min": symbol.low, "max": symbol.high}


def _type_out(type: TensorType) -> dict[str, Any]:
    shape = [str(d) if is_symbolic(d) else d for d in type.shape]
    fields: dict[str, Any] = {"dtype": type.dtype, "shape": shape}
    if type.order is not None:
        fields["order"] = list(type.order)
    return fields


def _value_out(value: Value) -> dict[str, Any]:
    return {"name": value.name, **_type_out(value.type)}


def _weight_out(weight: Weight) -> dict[str, Any]:
    fields = {"name": weight.name, "key": weight.key, **_type_out(weight.type)}
    if weight.aliases:
        fields["aliases"] = list(weight.aliases)
    if not weight.persistent:
        fields["persistent"] = False
    return fields


def _constant_out(constant: Constant) -> dict[str, Any]:
    data = base64.b64encode(constant.data).decode("ascii")
    return {"name": constant.name, **_type_out(constant.type), "data": data}


def _node_out(node: Node) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": node.name,
        "op": node.op,
        "inputs": list(node.inputs),
        "outputs": [_value_out(v) for v in node.outputs],
        "attrs": {key: _attr_out(value) for key, value in node.attrs.items()},
    }
    if node.source is not None:
        source = node.source
        fields["source"] = {"module": source.module, "file": source.file, "line": source.line}
    return fields


def _attr_out(attr: Attr) -> Any:
    if isinstance(attr, tuple):
        return [_attr_out(item) for item in attr]
    if isinstance(attr, float) and not math.isfinite(attr):
        return {"float": repr(attr)}
    if is_symbolic(attr):
        return {"size": str(attr)}
    return attr


# ---- reading ----


class _Fields:
    """A JSON object being read: every key is taken once, then `close` refuses the rest."""

    def __init__(
        self, tree: object, path: str, lenient: bool, symbols: dict[str, int] | None = None
    ) -> None:
        if not isinstance(tree, Mapping):
            raise GraphError(f"{path} must be an object, not {_kind(tree)}.")
        self.tree, self.path, self.lenient = tree, path, lenient
        self.symbols = {} if symbols is None else symbols  # of the graph, by name
        self.taken: set[str] = set()

    def take(self, key: str, read: Callable[[object, str], _T], default: Any = ...) -> _T:
        self.taken.add(key)
        if key not in self.tree:
            if default is ...:
                raise GraphError(f"{self.path}.{key} is missing.")
            return default  # type: ignore[no-any-return]
        return read(self.tree[key], f"{self.path}.{key}")

    def items(
        self, key: str, read: Callable[[_Fields], _T], *, optional: bool = False
    ) -> tuple[_T, ...]:
        """Reads a list of objects; an optional one may be missing and is then empty."""
        return self.take(
            key,
            lambda tree, path: tuple(
                self._item(item, f"{path}[{i}]", read) for i, item in enumerate(_list(tree, path))
            ),
            () if optional else ...,
        )

    def _item(self, tree: object, path: str, read: Callable[[_Fields], _T]) -> _T:
        fields = _Fields(tree, path, self.lenient, self.symbols)
        result = read(fields)
        fields.close()
        return result

    def close(self) -> None:
        unknown = [key for key in self.tree if key not in self.taken]
        if unknown and not self.lenient:
            raise GraphError(f"{self.path} has an unknown key {unknown[0]!r}.")


def _symbol_in(fields: _Fields) -> tuple[str, int]:
    name = fields.take("name", _str)
    try:
        return name, symbol(name, fields.take("min", _int), fields.take("max", _int))
    except SymbolicSizeError as error:
        raise GraphError(f"{fields.path}: {error}") from None


def _size(tree: object, path: str, symbols: Mapping[str, int]) -> int:
    if not isinstance(tree, str):
        return _int(tree, path)
    try:
        return parse_size(tree, symbols)
    except SymbolicSizeError as error:
        raise GraphError(f"{path}: {error}") from None


def _sizes(fields: _Fields) -> Callable[[object, str], tuple[int, ...]]:
    return lambda tree, path: tuple(
        _size(item, f"{path}[{i}]", fields.symbols) for i, item in enumerate(_list(tree, path))
    )


def _type_in(fields: _Fields) -> TensorType:
    return TensorType(
        fields.take("dtype", _str),
        fields.take("shape", _sizes(fields)),
        fields.take("order", _ints, None),
    )


def _value_in(fields: _Fields) -> Value:
    return Value(fields.take("name", _str), _type_in(fields))


def _output_in(fields: _Fields) -> Output:
    return Output(fields.take("name", _str), fields.take("value", _str))


def _update_in(fields: _Fields) -> Output:
    return Output(fields.take("state", _str), fields.take("value", _str))


def _weight_in(fields: _Fields) -> Weight:
    return Weight(
        fields.take("name", _str),
        fields.take("key", _str),
        _type_in(fields),
        fields.take("aliases", _strings, ()),
        fields.take("persistent", _bool, True),
    )


def _constant_in(fields: _Fields) -> Constant:
    return Constant(fields.take("name", _str), _type_in(fields), fields.take("data", _bytes))


def _node_in(fields: _Fields) -> Node:
    return Node(
        fields.take("name", _str),
        fields.take("op", _str),
        fields.take("inputs", _operands),
        fields.items("outputs", _value_in),
        fields.take("attrs", _attrs(fields.symbols), {}),
        fields.take("source", lambda t, p: fields._item(t, p, _source_in), None),
    )


def _source_in(fields: _Fields) -> Source:
    return Source(
        fields.take("module", _str, ""), fields.take("file", _str, ""), fields.take("line", _int, 0)
    )


def _any(tree: object, path: str) -> object:
    return tree


def _str(tree: object, path: str) -> str:
    return _typed(tree, path, str, "a string")


def _bool(tree: object, path: str) -> bool:
    return _typed(tree, path, bool, "true or false")


def _int(tree: object, path: str) -> int:
    if isinstance(tree, bool):
        raise GraphError(f"{path} must be an integer, not true or false.")
    return _typed(tree, path, int, "an integer")


def _list(tree: object, path: str) -> list[Any]:
    if not isinstance(tree, (list, tuple)):
        raise GraphError(f"{path} must be a list, not {_kind(tree)}.")
    return list(tree)


def _ints(tree: object, path: str) -> tuple[int, ...]:
    return tuple(_int(item, f"{path}[{i}]") for i, item in enumerate(_list(tree, path)))


def _strings(tree: object, path: str) -> tuple[str, ...]:
    return tuple(_str(item, f"{path}[{i}]") for i, item in enumerate(_list(tree, path)))


def _operands(tree: object, path: str) -> tuple[str | None, ...]:
    items = enumerate(_list(tree, path))
    return tuple(None if item is None else _str(item, f"{path}[{i}]") for i, item in items)


def _bytes(tree: object, path: str) -> bytes:
    try:
        return base64.b64decode(_str(tree, path), validate=True)
    except (binascii.Error, ValueError) as error:
        raise GraphError(f"{path} is not base64: {error}.") from None


def _attrs(symbols: Mapping[str, int]) -> Callable[[object, str], dict[str, Attr]]:
    def read(tree: object, path: str) -> dict[str, Attr]:
        if not isinstance(tree, Mapping):
            raise GraphError(f"{path} must be an object, not {_kind(tree)}.")
        return {
            _str(key, path): _attr(item, f"{path}.{key}", symbols) for key, item in tree.items()
        }

    return read


def _attr(tree: object, path: str, symbols: Mapping[str, int], depth: int = 0) -> Attr:
    if depth > 16:
        raise GraphError(f"{path} is nested too deeply.")
    if isinstance(tree, (list, tuple)):
        return tuple(_attr(v, f"{path}[{i}]", symbols, depth + 1) for i, v in enumerate(tree))
    if isinstance(tree, Mapping):
        special = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
        if list(tree) == ["size"]:
            return _size(_str(tree["size"], path), path, symbols)
        if list(tree) != ["float"] or tree["float"] not in list(special):
            raise GraphError(
                f'{path}: the only objects here are {{"float": "inf", "-inf" or "nan"}} and '
                '{"size": …}.'
            )
        return special[tree["float"]]
    if isinstance(tree, float) and not math.isfinite(tree):
        raise GraphError(f"{path} is beyond float64.")
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    raise GraphError(f"{path} must be a JSON value, not {_kind(tree)}.")


def _typed(tree: object, path: str, kind: type[_T], what: str) -> _T:
    if not isinstance(tree, kind):
        raise GraphError(f"{path} must be {what}, not {_kind(tree)}.")
    return tree


def _kind(tree: object) -> str:
    return {
        dict: "an object",
        list: "a list",
        str: "a string",
        bool: "true or false",
        int: "an integer",
        float: "a number",
        type(None): "null",
    }.get(type(tree), "that")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise GraphError(f"The JSON has the key {twice!r} twice in one object.")
    return tree


def _refuse_constant(text: str) -> float:
    raise GraphError(f"{text} is not JSON.")
