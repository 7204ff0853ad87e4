"""Removes nodes that compute their own input: copies, casts to the same dtype, dropout at rest.

A pointwise op counts when its formula says so (x + 0, x * 1, x / 1) and neither dtype nor shape
changes. One liberty is taken: -0.0 + 0 is -0.0 afterwards.
"""

from __future__ import annotations

from npusim.ir.graph import Graph, Node
from npusim.ops.scalar import ScalarProgram
from npusim.passes.compose import scalar_program
from npusim.passes.rewriter import Rewriter, rewrite
from npusim.passes.shapes import PERMUTATIONS, RESHAPES, permutation
from npusim.targets.target_config import TargetConfig

_COPIES = frozenset(
    f"aten.{name}"
    for name in (
        *("alias.default", "alias_copy.default", "clone.default", "contiguous.default"),
        *("detach.default", "detach_copy.default", "lift_fresh.default", "lift_fresh_copy.default"),
        *("_to_copy.default", "to.dtype", "to.dtype_layout", "to.device", "to.other"),
        *("type_as.default", "positive.default", "_conj.default", "resolve_conj.default"),
    )
)
_DROPOUTS = frozenset(
    f"aten.{name}.default"
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
)
# Ops that give their input back whenever the shape did not change.
_SAME_SHAPE = RESHAPES | {"aten.expand.default", "aten.slice.Tensor", "aten.narrow.default"}


def remove_noops(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with the uses of every no-op reading its input instead."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> str | None:
    if not node.inputs or node.inputs[0] is None or len(node.outputs) != 1:
        return None
    x = rewriter.types[node.inputs[0]]
    if (x.dtype, x.shape) != (node.type.dtype, node.type.shape):
        return None
    return node.inputs[0] if _is_noop(node, rewriter) else None


def _is_noop(node: Node, rewriter: Rewriter) -> bool:
    """Tells whether a node, known to keep dtype and shape, gives its first input back."""
    if node.op in _COPIES or node.op in _SAME_SHAPE:
        return True
    if node.op in _DROPOUTS:
        return not node.attrs.get("train", True) or node.attrs.get("p") == 0.0
    if node.op in PERMUTATIONS:
        rank = node.type.rank
        return permutation(node, rank) == tuple(range(rank))
    if node.op in ("aten.constant_pad_nd.default", "aten.repeat.default", "aten.cat.default"):
        return len(node.inputs) == 1  # the shape did not change: nothing padded, repeated, joined
    program = scalar_program(node, rewriter)
    return program is not None and len(node.inputs) == 1 and _is_identity(program)


def _is_identity(program: ScalarProgram) -> bool:
    if len(program.body) != 1:
        return False
    op = program.body[0]
    neutral = {"add": 0, "sub": 0, "mul": 1, "div": 1, "pow": 1}
    if op.op == "copy":
        return op.args == (0,)
    if op.op not in neutral or len(op.args) != 2:
        return False
    literal = ("const", neutral[op.op])
    return op.args == (0, literal) or (op.op in ("add", "mul") and op.args == (literal, 0))
