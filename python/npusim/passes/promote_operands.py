"""Converts 0-d operands to the dtype that PyTorch takes them in, where results do not say it.

Among tensors of one kind (integers, floats), those with dimensions decide, so that an int64 of no
dimensions wraps beside a tensor of uint8. Later passes move and broadcast operands, after which
nobody can tell; the conversion stands in the graph from here on. Comparisons and logic need it.
Arithmetic does not, as the dtype of its result says it, but for one case: a right operand of one
element is not rounded in products and quotients of 16-bit floats, and becomes float32. (So does
the left one where otherwise the right one would decide the dtype; the result is cast.)
"""

from __future__ import annotations

from dataclasses import replace

from npusim.abi.scalar import holds
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Rewriter, become, rewrite
from npusim.ops.inference.promotion import result_dtype
from npusim.targets.target_config import TargetConfig

_COMPARISONS = frozenset(
    (
        *(f"aten.{name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge")),
        *(f"aten.logical_{name}.default" for name in ("and", "or", "xor")),
    )
)
_WIDE = frozenset(
    ("aten.mul.Tensor", "aten.div.Tensor", "aten.div.Tensor_mode", "aten.floor_divide.default")
)
_HALVES = ("float16", "bfloat16")


def promote_operands(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with 0-d operands in the dtype of those that they are compared with."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Node | None:
    if node.op in _WIDE and node.type.dtype in _HALVES:
        return _with_wide_right(node, rewriter)
    if node.op not in _COMPARISONS:
        return None
    common = result_dtype(*(rewriter.types[i] for i in node.inputs if i is not None))
    inputs = [_converted(i, common, node, rewriter) for i in node.inputs if i is not None]
    return replace(node, inputs=tuple(inputs)) if tuple(inputs) != node.inputs else None


def _with_wide_right(node: Node, rewriter: Rewriter) -> Node | None:
    """Returns a product or quotient with a right operand of one element in float32, if it is
    beyond."""
    x, y = node.inputs
    assert x is not None and y is not None
    type = rewriter.types[y]
    rounded = type.dtype not in ("float32", "float64") and not holds(node.type.dtype, type.dtype)
    if any(size != 1 for size in type.shape) or not rounded:
        return None
    wide = _cast(y, "float32", node, rewriter)
    if rewriter.types[x].rank and not type.rank:
        return replace(node, inputs=(x, wide))
    operands = (_cast(x, "float32", node, rewriter), wide)
    result = replace(node.type, dtype="float32")
    product = rewriter.emit(node.op, operands, result, node.attrs, like=node)
    return become(node, "aten._to_copy.default", (product,), {"dtype": node.type.dtype})


def _converted(value: str, dtype: str, node: Node, rewriter: Rewriter) -> str:
    type = rewriter.types[value]
    if type.rank or holds(dtype, type.dtype):
        return value
    return _cast(value, dtype, node, rewriter)


def _cast(value: str, dtype: str, node: Node, rewriter: Rewriter) -> str:
    wanted = replace(rewriter.types[value], dtype=dtype)
    return rewriter.emit("aten._to_copy.default", (value,), wanted, {"dtype": dtype}, like=node)
