"""Converts the 0-d operand of a comparison to the dtype that PyTorch compares in.

Among tensors of one kind (integers, floats), those with dimensions decide, so that an int64 of no
dimensions wraps beside a tensor of uint8. Later passes move and broadcast operands, after which
nobody can tell; the conversion stands in the graph from here on. Arithmetic needs none: the dtype
of its result says it.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.abi.scalar import holds
from npusim.ir.graph import Graph, Node
from npusim.ir.rewriter import Rewriter, rewrite
from npusim.ops.inference.promotion import result_dtype
from npusim.targets.target_config import TargetConfig

_COMPARISONS = frozenset(f"aten.{name}.Tensor" for name in ("eq", "ne", "lt", "le", "gt", "ge"))


def promote_operands(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with 0-d operands in the dtype of those that they are compared with."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Node | None:
    if node.op not in _COMPARISONS:
        return None
    common = result_dtype(*(rewriter.types[i] for i in node.inputs if i is not None))
    inputs = [_converted(i, common, node, rewriter) for i in node.inputs if i is not None]
    return replace(node, inputs=tuple(inputs)) if tuple(inputs) != node.inputs else None


def _converted(value: str, dtype: str, node: Node, rewriter: Rewriter) -> str:
    type = rewriter.types[value]
    if type.rank or holds(dtype, type.dtype):
        return value
    attrs = {"dtype": dtype}
    wanted = replace(type, dtype=dtype)
    return rewriter.emit("aten._to_copy.default", (value,), wanted, attrs, like=node)
