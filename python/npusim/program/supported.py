"""What of a graph a target cannot run, and why: asked before anything is lowered."""

from __future__ import annotations

from npusim.errors import SymbolicSizeError, UnsupportedOpError, at
from npusim.ir.graph import Graph, Node, Value
from npusim.ir.types import HOST_DTYPES
from npusim.ops.opdef import find
from npusim.targets import TargetConfig


def unsupported_nodes(graph: Graph, target: TargetConfig) -> list[tuple[Node, str]]:
    """Returns every node the target cannot run, with the reason."""
    reasons = ((node, unsupported_reason(node, graph)) for node in graph.nodes)
    return [(node, why) for node, why in reasons if why is not None]


def unsupported_reason(node: Node, graph: Graph) -> str | None:
    """Returns the constraint by which a node cannot be lowered, or None when it can."""
    definition = find(node.op)
    if definition is None:
        return "npusim does not know this operator"
    if definition.lower is None:
        return "no kernel implements this operator"
    operands = (graph.types[i] for i in node.inputs if i is not None)
    for tensor in (*operands, *(v.type for v in node.outputs)):
        if tensor.dtype in HOST_DTYPES:
            return f"dtype {tensor.dtype}, which no device has"
    try:
        return definition.supports(node, graph) if definition.supports is not None else None
    except SymbolicSizeError as error:
        return str(error).rstrip(".")


def foreign_values(graph: Graph) -> list[Value]:
    """Returns the values of a graph whose dtype no device has."""
    return [Value(n, t) for n, t in graph.types.items() if t.dtype in HOST_DTYPES]


def check_supported(graph: Graph, target: TargetConfig) -> None:
    """Raises UnsupportedOpError that lists all nodes the target cannot run."""
    found = unsupported_nodes(graph, target)
    told = {name for node, _ in found for name in (*node.inputs, *(v.name for v in node.outputs))}
    strange = [v for v in foreign_values(graph) if v.name not in told]
    if not found and not strange:
        return
    lines = []
    for node, why in found:
        kinds = ", ".join("none" if i is None else str(graph.types[i]) for i in node.inputs)
        lines.append(f"  {node.op}({kinds}){at(node.source)}: {why}")
    lines += [f"  value {v.name}: dtype {v.type.dtype}, which no device has" for v in strange]
    noun = "node" if len(lines) == 1 else "nodes"
    raise UnsupportedOpError(
        f"{len(lines)} {noun} of '{graph.name}' cannot run on target '{target.name}':\n"
        + "\n".join(lines),
        hint="\nReplace these operations in the model, register a lowering for them, or let "
        "PyTorch run them (npusim.partition).",
        nodes=tuple(node.name for node, _ in found),
    )
