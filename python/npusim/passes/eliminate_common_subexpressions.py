"""Computes equal things once: nodes with the same op, inputs and attributes, equal constants.

Random ops are left alone: two draws are two values.
"""

from __future__ import annotations

from npusim.ir.graph import Constant, Graph, Node
from npusim.ir.rewrite import substitute
from npusim.ir.rewriter import Rewriter, rewrite
from npusim.targets.target_config import TargetConfig

_RANDOM = ("rand", "dropout", "bernoulli", "normal_", "multinomial", "exponential", "uniform")


def eliminate_common_subexpressions(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with each repeated computation replaced by the first of its kind."""
    graph = substitute(graph, _equal_constants(graph.constants))
    seen: dict[tuple[object, ...], str] = {}

    def visit(node: Node, rewriter: Rewriter) -> str | None:
        if len(node.outputs) != 1 or any(word in node.op for word in _RANDOM):
            return None
        # repr tells 1, 1.0, True and -0.0 apart, which compare equal, and lets nan equal nan.
        key = (node.op, node.inputs, repr(sorted(node.attrs.items())), node.type)
        first = seen.setdefault(key, node.output.name)
        return None if first == node.output.name else first

    return rewrite(graph, visit)


def _equal_constants(constants: tuple[Constant, ...]) -> dict[str, str]:
    """Maps every constant that repeats an earlier one to that one."""
    first: dict[tuple[object, ...], str] = {}
    names = {c.name: first.setdefault((c.type, c.data), c.name) for c in constants}
    return {name: kept for name, kept in names.items() if name != kept}
