"""Recognises softmax and log-softmax that were written out.

exp(x - max) / sum(exp(x - max)) becomes aten.softmax.int, x - max - log(sum(exp(x - max)))
aten.log_softmax.int. So do PyTorch's internal spellings of both. What takes no maximum off stays:
its exponentials overflow, or are all 0, where those of the op are not. So does x - logsumexp(x),
which is -infinity beside an infinity, where log_softmax is NaN.
"""

from __future__ import annotations

from npusim.analysis.match import Operand, instruction, of_node, reduction
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import is_float
from npusim.targets.target_config import TargetConfig

_INTERNAL = {
    "aten._softmax.default": "aten.softmax.int",
    "aten._log_softmax.default": "aten.log_softmax.int",
}


def recognize_softmax(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with written-out softmaxes replaced by the op."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if node.op in _INTERNAL and not node.attrs.get("half_to_float", False):
        return _become(node, _INTERNAL[node.op], node.inputs[0], node.attrs["dim"])
    if len(node.outputs) != 1 or not is_float(node.type.dtype):
        return None
    if node.type.dtype == "float64":  # softmax has no kernel for it, what it is made of has
        return None
    quotient = of_node(node, "div", rewriter)
    if quotient is not None:
        return _softmax(node, quotient, rewriter)
    difference = of_node(node, "sub", rewriter)
    return None if difference is None else _log_softmax(node, difference, rewriter)


def _become(node: Node, op: str, x: str | None, dim: object) -> Node:
    return become(node, op, (x,), {"dim": dim, "dtype": None})  # type: ignore[dict-item]


def _softmax(node: Node, quotient: list[Operand], rewriter: Rewriter) -> Answer:
    exponential, total = quotient
    summed = reduction(total, "sum", rewriter)
    exponent = instruction(exponential, "exp", rewriter)
    if summed is None or exponent is None or summed[0] != exponential or len(summed[1]) != 1:
        return None
    if rewriter.uses(str(exponential)) != 2 or rewriter.uses(str(total)) != 1:
        return None
    x = _before_maximum(exponent[0], summed[1], rewriter)
    fits = isinstance(x, str) and rewriter.types[x] == node.type
    return _become(node, "aten.softmax.int", str(x), summed[1][0]) if fits else None


def _log_softmax(node: Node, difference: list[Operand], rewriter: Rewriter) -> Answer:
    shifted, total = difference
    logarithm = instruction(total, "log", rewriter, node)
    summed = None if logarithm is None else reduction(logarithm[0], "sum", rewriter)
    exponent = None if summed is None else instruction(summed[0], "exp", rewriter)
    if summed is None or exponent is None or exponent[0] != shifted or len(summed[1]) != 1:
        return None
    x = _before_maximum(shifted, summed[1], rewriter)
    fits = isinstance(x, str) and rewriter.types[x] == node.type
    return _become(node, "aten.log_softmax.int", str(x), summed[1][0]) if fits else None


def _before_maximum(value: Operand, dims: tuple[int, ...], rewriter: Rewriter) -> Operand | None:
    """Returns x for x - max(x) over the same dimensions, and None for any other value."""
    difference = instruction(value, "sub", rewriter)
    if difference is None:
        return None
    x, maximum = difference
    return x if reduction(maximum, "max", rewriter) == (x, dims) else None
