"""A Module: several graphs, the methods of one model, over shared weights and shared state.

A language model has two, `prefill` and `decode`. Weights with one key are one tensor, states of one
name are one state, whichever method reads or updates them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from npusim.errors import GraphError
from npusim.files import write_atomic
from npusim.ir.foreign import read_foreign
from npusim.ir.graph import Graph, Value
from npusim.ir.json import (
    check_version,
    graph_from_json,
    graph_to_json,
    parse_any,
    parse_json,
    read_bytes,
)
from npusim.ir.types import TensorType

FORMAT = "npusim.module"
VERSION = (1, 0)


@dataclass(frozen=True, repr=False)
class Module:
    """Methods over shared weights and state. Immutable.

    Attributes:
        name: the model's name.
        methods: the graphs by method name, in order; the first is the default.
        facts: JSON-able facts that travel with the program for whoever runs it, such as a
            language model's context length under "language_model".
    """

    name: str
    methods: Mapping[str, Graph]
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Module({self.name}: {', '.join(self.methods)})"

    def _repr_html_(self) -> str:
        return f"<b>{escape(repr(self))}</b>" + "".join(
            graph._repr_html_() for graph in self.methods.values()
        )

    def save(self, path: str | Path) -> None:
        """Writes the module as JSON (docs/ir.md); whole or not at all."""
        write_atomic(path, self.to_text().encode())

    def to_text(self) -> str:
        """Returns the JSON text that `save` writes."""
        return json.dumps(self._tree(), separators=(",", ":")) + "\n"

    def _tree(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": list(VERSION),
            "name": self.name,
            "facts": dict(self.facts),
            "methods": {name: graph_to_json(graph) for name, graph in self.methods.items()},
        }

    @classmethod
    def load(cls, path: str | Path) -> Module:
        """Reads a module and verifies it.

        Raises:
            GraphError: the file is not a module, is of an unknown version, or breaks an invariant.
        """
        try:
            return module_from_json(parse_json(read_bytes(path)))
        except GraphError as error:
            raise GraphError(f"{path}: {error}") from None


def load_ir(path: str | Path) -> Graph | Module:
    """Reads an IR file, whichever of the two it holds, or one of another tool; GraphError as
    their `load`."""
    try:
        tree = parse_any(read_bytes(path))
        if is_module(tree):
            return module_from_json(tree)
        return read_foreign(tree) or graph_from_json(tree)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def is_module(tree: object) -> bool:
    """Tells whether JSON-able data calls itself a module."""
    return isinstance(tree, Mapping) and tree.get("format") == FORMAT


def verify_module(module: Module) -> Module:
    """Checks that the methods agree on what they share, and returns the module.

    Raises:
        GraphError: no method, or two that give one state or one weight different types.
    """
    if not module.methods:
        raise GraphError(f"module {module.name!r} has no methods.")
    states: dict[str, TensorType] = {}
    weights: dict[str, TensorType] = {}
    for name, graph in module.methods.items():
        keyed = (Value(w.key, w.type) for w in graph.weights)
        for kind, table, values in (("state", states, graph.states), ("weight", weights, keyed)):
            for value in values:
                known = table.setdefault(value.name, value.type)
                if known != value.type:
                    raise GraphError(
                        f"{kind} {value.name!r} is {value.type} in method {name!r}, but {known} "
                        "in another."
                    )
    return module


def module_from_json(tree: object) -> Module:
    """Returns the verified module that JSON-able data describes; GraphError as `Module.load`."""
    if not is_module(tree) or not isinstance(tree, Mapping):
        raise GraphError(f'This is not an npusim module: "format" must be "{FORMAT}".')
    check_version(tree, "module", VERSION)
    name, methods, facts = (tree.get(key) for key in ("name", "methods", "facts"))
    if not isinstance(name, str) or not isinstance(methods, Mapping):
        raise GraphError("$.name must be a string and $.methods an object.")
    if not isinstance(facts, Mapping):
        raise GraphError("$.facts must be an object.")
    graphs = {str(key): graph_from_json(graph) for key, graph in methods.items()}
    return verify_module(Module(name, graphs, dict(facts)))
