"""What of a graph a target cannot run, and why: asked by lowering it, without keeping the result.

So the answer is the compiler's own: an op's lowering decides by dtype, rank and shape which kernels
it emits, and what it emits is held to the target's list.
"""

from __future__ import annotations

from npusim.ir.graph import Graph, Node, Value
from npusim.ir.types import HOST_DTYPES
from npusim.lowering.constraints import Refusal, op_constraint, unsupported
from npusim.lowering.context import Lowering
from npusim.targets import TargetConfig


def unsupported_nodes(graph: Graph, target: TargetConfig) -> list[tuple[Node, str]]:
    """Returns every node the target cannot run, with the reason.

    Args:
        graph: as passes leave it; before them, what only fused nodes can do is refused.

    Raises:
        UnsupportedOpError: it cannot hand out an input, weight or constant as it came, for which
            no node is to blame.
    """
    found, lines = _tried(graph, target)
    if lines:
        refused = [Refusal(graph, node, why) for node, why in found]
        raise unsupported(graph.name, target.name, refused, lines)
    return found


def _tried(graph: Graph, target: TargetConfig) -> tuple[list[tuple[Node, str]], list[str]]:
    """Returns the nodes a target cannot run, and lines about values that it cannot hand out."""
    found = {n.name: why for n in graph.nodes if (why := op_constraint(n, graph)) is not None}
    unbound: list[str] = []
    if not foreign_values(graph):
        trial = Lowering(target, trial=True)
        trial.method("trial", graph)
        unbound = trial.unbound
        for refusal in trial.refused:
            found.setdefault(refusal.node.name, refusal.why)
    return [(node, found[node.name]) for node in graph.nodes if node.name in found], unbound


def foreign_values(graph: Graph) -> list[Value]:
    """Returns the values of a graph whose dtype no device has."""
    return [Value(n, t) for n, t in graph.types.items() if t.dtype in HOST_DTYPES]


def check_supported(graph: Graph, target: TargetConfig) -> None:
    """Raises UnsupportedOpError that lists all nodes the target cannot run."""
    found, lines = _tried(graph, target)
    told = {name for node, _ in found for name in (*node.inputs, *(v.name for v in node.outputs))}
    strange = [v for v in foreign_values(graph) if v.name not in told]
    if found or strange or lines:
        lines += [f"  value {v.name}: dtype {v.type.dtype}, which no device has" for v in strange]
        refused = [Refusal(graph, node, why) for node, why in found]
        raise unsupported(graph.name, target.name, refused, lines)
