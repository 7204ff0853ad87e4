"""A Graph as text a person can read and diff: a header, one line a node, the outputs.

    graph resnet18(x: float32[1, 3, 224, 224])
      %conv2d = aten.conv2d.default(%x, conv1.weight, None) stride=(2, 2) -> float32[...]  # conv1
      return output=%add

The text is for reading, logs and golden tests; it is not parsed back (that is JSON's job).
"""

from __future__ import annotations

from npusim.ir.graph import Attr, Graph, Node


def format_graph(graph: Graph, *, sources: bool = True) -> str:
    """Returns the graph as text.

    Args:
        graph: what to print.
        sources: append module paths as comments; without them, moving the model's code does not
            change the text.
    """
    weights = {w.name for w in graph.weights}
    constants = {c.name for c in graph.constants}
    arguments = ", ".join(f"{v.name}: {v.type}" for v in graph.inputs)
    lines = [f"graph {graph.name}({arguments})"]
    for weight in graph.weights:
        notes = "".join(f" = {alias}" for alias in weight.aliases)
        notes += "" if weight.persistent else " (not in the state_dict)"
        key = "" if weight.key == weight.name else f" from {weight.key}"
        lines.append(f"  weight {weight.name}: {weight.type}{key}{notes}")
    lines += [f"  constant {c.name}: {c.type} ({len(c.data)} bytes)" for c in graph.constants]
    lines += [f"  state {s.name}: {s.type}" for s in graph.states]
    static = weights | constants
    lines += [f"  {format_node(node, static=static, sources=sources)}" for node in graph.nodes]
    results = ", ".join(f"{o.name}={_operand(o.value, static)}" for o in graph.outputs)
    lines += [f"  update {u.name} = {_operand(u.value, static)}" for u in graph.updates]
    lines.append(f"  return {results}")
    return "\n".join(lines) + "\n"


def format_node(
    node: Node, *, static: frozenset[str] | set[str] = frozenset(), sources: bool = True
) -> str:
    """Returns a node as one line; names in `static` (weights, constants) stand without a %."""
    results = ", ".join(f"%{v.name}" for v in node.outputs)
    operands = ", ".join(_operand(i, static) for i in node.inputs)
    attrs = "".join(f" {key}={_attr(value)}" for key, value in node.attrs.items())
    types = ", ".join(str(v.type) for v in node.outputs)
    module = f"  # {node.source.module}" if sources and node.source and node.source.module else ""
    return f"{results} = {node.op}({operands}){attrs} -> {types}{module}"


def _operand(name: str | None, static: frozenset[str] | set[str]) -> str:
    if name is None:
        return "None"
    return name if name in static else f"%{name}"


def _attr(value: Attr) -> str:
    if isinstance(value, tuple):
        return f"({', '.join(map(_attr, value))}{',' if len(value) == 1 else ''})"
    return repr(value)
