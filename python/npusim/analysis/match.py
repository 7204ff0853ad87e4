"""Reading written-out formulas: which scalar instruction or reduction defines a value."""

from __future__ import annotations

from typing import Union

from npusim.analysis.compose import scalar_program
from npusim.analysis.shapes import ints
from npusim.analysis.uniform import uniform_value
from npusim.ir.graph import Node
from npusim.ir.rewriter import Rewriter

Operand = Union[str, float, int]  # a value's name, or a number

_REDUCTIONS = {
    "sum": ("aten.sum.dim_IntList",),
    "mean": ("aten.mean.dim",),
    "max": ("aten.amax.default",),
    "variance": ("aten.var.correction", "aten.var.dim"),
}


def instruction(
    value: Operand, opcode: str, rewriter: Rewriter, reader: Node | None = None
) -> list[Operand] | None:
    """Returns the operands of the scalar instruction that defines a value.

    Args:
        value: what to look behind; a number has nothing behind it.
        opcode: the instruction asked for.
        reader: if given, a node that must be the only one to read the value.

    Returns:
        Values and numbers in the instruction's order; None when another thing defines the value.
    """
    node = rewriter.producer(value) if isinstance(value, str) else None
    if node is None or (reader is not None and not rewriter.only_feeds(str(value), reader)):
        return None
    return of_node(node, opcode, rewriter)


def of_node(node: Node, opcode: str, rewriter: Rewriter) -> list[Operand] | None:
    """Returns the operands of a node that is one scalar instruction; None for another node."""
    program = scalar_program(node, rewriter)
    if program is None or len(program.body) != 1 or program.body[0].op != opcode:
        return None
    values = [i for i in node.inputs if i is not None]
    operands: list[Operand] = []
    for argument in program.body[0].args:
        value: Operand = argument[1] if isinstance(argument, tuple) else values[argument]
        number = uniform_value(value, rewriter) if isinstance(value, str) else None
        operands.append(value if number is None else number)
    return operands


def reduction(
    value: Operand, kind: str, rewriter: Rewriter, *, keepdim: bool = True
) -> tuple[str, tuple[int, ...]] | None:
    """Returns (operand, dimensions, none negative) of the reduction that defines a value.

    A variance counts only with divisor n; no reduction counts that changes the dtype.
    """
    node = rewriter.producer(value) if isinstance(value, str) else None
    if node is None or node.op not in _REDUCTIONS[kind]:
        return None
    x = node.inputs[0]
    if x is None or bool(node.attrs.get("keepdim", False)) != keepdim:
        return None
    if kind == "variance" and not _is_population(node):
        return None
    if node.type.dtype != rewriter.types[x].dtype or not node.attrs.get("dim"):
        return None
    rank = rewriter.types[x].rank
    return x, tuple(sorted(d % rank for d in ints(node, "dim")))


def _is_population(node: Node) -> bool:
    if node.op == "aten.var.dim":
        return node.attrs.get("unbiased", True) is False
    return node.attrs.get("correction", 1) == 0 and node.attrs.get("correction") is not None
