"""Graph files of other tools: how they are recognised, and which frontend reads them.

Owns the table. Readers live in `npusim.frontends` and are imported when a file asks for one, so
that reading npusim's own graphs needs nothing but the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from npusim.ir.graph import Graph


def _is_pytorch_ir(tree: Mapping[str, Any]) -> bool:
    return "format" not in tree and {"graph_inputs", "graph_outputs", "nodes"} <= set(tree)


# Recognises JSON-able data -> the module whose `graph_of(tree)` makes a graph of it.
READERS: tuple[tuple[Callable[[Mapping[str, Any]], bool], str], ...] = (
    (_is_pytorch_ir, "npusim.frontends.pytorch_ir"),
)


def read_foreign(tree: object) -> Graph | None:
    """Returns the graph of a file of another tool, or None when no reader knows it.

    Raises:
        GraphError: a reader knows it, and it is not what that tool writes.
    """
    if isinstance(tree, Mapping):
        for recognises, reader in READERS:
            if recognises(tree):
                graph: Graph = import_module(reader).graph_of(tree)
                return graph
    return None
