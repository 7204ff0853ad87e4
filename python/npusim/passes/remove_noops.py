"""Removes nodes that compute their own input: copies, casts to the same dtype, dropout at rest.

A pointwise op counts when its formula says so (x - 0, x * 1, x / 1) and neither dtype nor shape
changes. To add 0 to a float does not count, as it makes 0 of -0; to add -0 does.
"""

from __future__ import annotations

from math import copysign

from npusim.analysis.compose import scalar_program
from npusim.analysis.match import of_node
from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, ints, permutation
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Rewriter, rewrite
from npusim.targets.target_config import TargetConfig

_COPIES = frozenset(
    f"aten.{name}"
    for name in (
        *("alias.default", "alias_copy.default", "clone.default", "contiguous.default"),
        *("detach.default", "detach_copy.default", "lift_fresh.default", "lift_fresh_copy.default"),
        *("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other"),
        *("type_as.default", "positive.default"),
    )
)
_DROPOUTS = frozenset(
    f"aten.{name}.default"
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)
# Ops that give their input back whenever the shape did not change.
_SAME_SHAPE = RESHAPES | {"aten.expand.default", "aten.slice.Tensor", "aten.narrow.default"}
# Pointwise instructions and the second operand with which they give back the first.
_NEUTRAL = {"add": 0, "sub": 0, "mul": 1, "div": 1, "pow": 1, "copy": None}
_COMMUTES = ("add", "mul")


def remove_noops(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with the uses of every no-op reading its input instead."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> str | None:
    if not node.inputs or node.inputs[0] is None or len(node.outputs) != 1:
        return None
    if node.op == "aten.cat.default":
        return _only_part(node, rewriter)
    if node.op == "aten.copy.default":
        source = node.inputs[1]
        return source if source and rewriter.types[source] == node.type else None
    x = rewriter.types[node.inputs[0]]
    same = (x.dtype, x.shape) == (node.type.dtype, node.type.shape)
    if same and _is_noop(node):
        return node.inputs[0]
    return _neutral(node, rewriter)


def _only_part(node: Node, rewriter: Rewriter) -> str | None:
    """Returns what a concatenation joins with nothing but empty tensors, if that is its result."""
    parts = [i for i in node.inputs if i is not None and rewriter.types[i].numel]
    same = len(parts) == 1 and rewriter.types[parts[0]] == node.type
    return parts[0] if same else None


def _is_noop(node: Node) -> bool:
    """Tells whether a node, known to keep dtype and shape, gives its first input back."""
    if node.op in _COPIES or node.op in _SAME_SHAPE:
        return True
    if node.op in _DROPOUTS:
        return not node.attrs.get("train", True) or node.attrs.get("p") == 0.0
    if node.op in PERMUTATIONS:
        rank = node.type.rank
        return permutation(node, rank) == tuple(range(rank))
    if node.op == "aten.constant_pad_nd.default":
        return not any(ints(node, "pad"))
    return node.op == "aten.repeat.default"  # which did not change the shape


def _neutral(node: Node, rewriter: Rewriter) -> str | None:
    """Returns the operand that a pointwise node gives back, if that has its dtype and shape."""
    program = scalar_program(node, rewriter)
    if program is None or len(program.body) != 1:
        return None
    op = program.body[0].op
    operands = of_node(node, op, rewriter)
    if operands is None or op not in _NEUTRAL or len(operands) > 2:
        return None
    value, *rest = operands
    if op in _COMMUTES and isinstance(value, (int, float)):
        value, *rest = operands[::-1]
    if not isinstance(value, str) or rest not in ([], [_NEUTRAL[op]]):
        return None
    if op in ("add", "sub") and program.body[0].cls != "i":
        negative = copysign(1.0, rest[0]) < 0  # type: ignore[arg-type]
        if negative != (op == "add"):
            return None
    x = rewriter.types[value]
    return value if (x.dtype, x.shape) == (node.type.dtype, node.type.shape) else None
