"""A compiled program as notebooks show it."""

from __future__ import annotations

from collections.abc import Sequence

from npusim.errors import Error
from npusim.ir.graph import Graph
from npusim.ir.notebook import picture, table, tensors
from npusim.program.program import CompiledProgram, TensorSpec


def program_html(program: CompiledProgram) -> str:
    """Returns a table of the methods, and a picture of the graph if the program carries it."""
    rows = [
        (m.name, spec_text(m.inputs), spec_text(m.outputs), len(m.commands), m.arena_bytes)
        for m in program.methods
    ]
    head = ("method", "inputs", "outputs", "commands", "temporary bytes")
    return table(repr(program), head, rows) + picture(_graph(program))


def spec_text(specs: Sequence[TensorSpec]) -> str:
    """Returns the names, dtypes and shapes of inputs or outputs."""
    return tensors((s.name, f"{s.dtype}{list(s.shape)}") for s in specs)


def _graph(program: CompiledProgram) -> Graph | None:
    try:
        return program.graph
    except Error:  # of a later npusim, say: what cannot be drawn is not what was asked for
        return None
