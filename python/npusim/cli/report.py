"""The Markdown report of `npusim info --report`: statistics, then the graph as mermaid."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from npusim.cli.answer import amount
from npusim.ir.graph import Graph
from npusim.pictures import to_mermaid


def markdown(facts: dict[str, Any], graph: Graph | None) -> str:
    """Returns the report of `graph_facts` or `program_facts`; `graph` is drawn when present."""
    parameters = facts["parameters"]
    lines = [
        f"# {_text(facts['name'] or facts['kind'])}",
        "",
        f"* kind: {facts['kind']}",
        *([f"* target: {_text(facts['target'])}"] if "target" in facts else []),
        f"* parameters: {parameters['elements']:,} in {parameters['tensors']} tensors, "
        f"{amount(parameters['bytes'])}",
        "",
    ]
    lines += _program(facts) if facts["kind"] == "program" else _interface(facts)
    lines += _table("Operators", ("op", "count"), facts["ops"].items())
    if graph is not None:
        lines += ["## Graph", "", "```mermaid", to_mermaid(graph).rstrip(), "```", ""]
    return "\n".join(lines)


def _program(facts: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for method in facts["methods"]:
        lines += [f"## Method {_text(method['name'])}", "", f"{method['commands']} commands.", ""]
        lines += _interface(method)
    lines += [f"The init method has {facts['init_commands']} commands.", ""]
    memory = ((name, amount(size)) for name, size in facts["memory"].items())
    buffers = ((kind, b["count"], amount(b["bytes"])) for kind, b in facts["buffers"].items())
    lines += _table("Memory", ("part", "size"), memory)
    lines += _table("Buffers", ("kind", "count", "size"), buffers)
    return lines + _table("Kernels", ("kernel", "commands"), facts["kernels"].items())


def _interface(facts: dict[str, Any]) -> list[str]:
    rows = [
        (label, t["name"], t["dtype"], f"[{', '.join(map(str, t['shape']))}]")
        for label, key in (("input", "inputs"), ("output", "outputs"))
        for t in facts[key]
    ]
    return _table("Inputs and outputs", ("", "name", "dtype", "shape"), rows)


def _table(title: str, header: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    cells = [f"| {' | '.join(_text(str(cell)) for cell in row)} |" for row in rows]
    rule = f"|{'---|' * len(header)}"
    return [f"## {title}", "", f"| {' | '.join(header)} |", rule, *cells, ""]


def _text(text: str) -> str:
    """Names come from files: keeps them from being read as Markdown or HTML."""
    for mark in "\\`*_|<>[]#":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
