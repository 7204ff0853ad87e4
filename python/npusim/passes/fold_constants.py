"""Computes at compile time what depends on nothing: ranges, masks, fills and ops over them.

Values up to 64 KiB become constants of the graph. Larger ones stay nodes, which the init method
runs once at load, as does everything that depends on weights; a larger fill becomes `aten.full`,
which does not need the tensor whose shape it took. An `expand` that ends a chain stays an expand
of a constant: repeating elements costs nothing, storing them does.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.abi.scalar_numpy import Array, decode, encode
from npusim.analysis.evaluate import evaluate, fill_value
from npusim.ir.graph import Constant, Graph, Node
from npusim.ir.rewrite import drop_dead
from npusim.ir.rewriter import become, reading
from npusim.targets.target_config import TargetConfig

LARGEST_BYTES = 64 * 1024  # of a constant that folding makes


def fold_constants(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with every small value that is known now turned into a constant."""
    known: dict[str, Array] = {
        c.name: decode(c.data, c.type) for c in graph.constants if c.type.nbytes <= LARGEST_BYTES
    }
    for node in graph.nodes:
        with reading(node):
            array = _value(node, graph, known)
        if array is not None:
            known[node.output.name] = array
    return _materialise(graph, known)


def _value(node: Node, graph: Graph, known: dict[str, Array]) -> Array | None:
    """Returns the node's result, rounded and wrapped as its dtype stores it, if it is known."""
    if len(node.outputs) != 1 or node.is_symbolic or node.type.nbytes > LARGEST_BYTES:
        return None
    array = evaluate(node, graph, known)
    if array is None or array.shape != node.type.shape:
        return None
    return decode(encode(array, node.type.dtype), node.type)


def _materialise(graph: Graph, known: dict[str, Array]) -> Graph:
    """Replaces the nodes that define known values by constants."""
    nodes: list[Node] = []
    constants: list[Constant] = []
    for node in graph.nodes:
        value = node.outputs[0]
        if value.name in known and node.op != "aten.expand.default":
            data = encode(known[value.name], value.type.dtype)
            constants.append(Constant(value.name, value.type, data))
        else:
            nodes.append(_without_operand(node))
    changed = replace(graph, nodes=tuple(nodes), constants=graph.constants + tuple(constants))
    return graph if changed == graph else drop_dead(changed)


def _without_operand(node: Node) -> Node:
    """Returns a fill as `aten.full`, which reads no tensor; any other node as it is."""
    number = fill_value(node)
    if number is None or node.op == "aten.full.default":
        return node
    attrs = {"size": node.type.shape, "fill_value": number, "dtype": node.type.dtype}
    return become(node, "aten.full.default", (), attrs)
