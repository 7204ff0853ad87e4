"""RMS norms before products, without a command of their own.

Few rows are normalised on the way. Of many, between two products, the first one leaves, beside y,
each row scaled by the norm's weight, and what the squares of the row add up to; the second
multiplies the scaled rows, and its rows of sums by one over the root of their mean. Owns when
products do that, and what passes from one to the other. In a method over pages, whose rows are of
many requests, they do it for any number of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from npusim.abi.kernels import SLOT_COLUMNS
from npusim.ir.graph import Graph, Node
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param
from npusim.lowering.view import View
from npusim.ops.paged import PAGED_ATTENTION

NORMED_LINEAR, NORMED_GATED_LINEAR = "npu.normed_linear", "npu.normed_gated_linear"

_FEW_ROWS = 16  # of which products take as long as their weights, and norms next to nothing


@dataclass(frozen=True)
class NormPart:
    """What a product has more than `linear`, as an RMS norm is on one of its sides.

    Attributes:
        stem: of its kernel.
        fields: of its parameters.
        reads: operands after the weights.
        writes: operands after y.
    """

    stem: str
    fields: Mapping[str, Param]
    reads: tuple[View, ...]
    writes: tuple[View, ...] = ()


def begins_with_norm(rows: int, most: int) -> bool:
    """Tells whether a product of so many rows of x can begin with their norm, in one command.

    Not of a number of rows that calls choose.

    Args:
        most: rows that the target normalises on the way.
    """
    return not is_symbolic(rows) and rows <= most


def is_over_pages(graph: Graph) -> bool:
    """Tells whether a graph's rows are of many requests, whose caches lie in pages."""
    return any(node.op == PAGED_ATTENTION for node in graph.nodes)


def leaves_norm(product: Node, types: Mapping[str, TensorType], over_pages: bool) -> bool:
    """Tells whether a product can leave those after it what they need of an RMS norm.

    Only bfloat16, in which rows that are not normalised yet do not overflow, and rows of whole
    chunks of 16 bytes. Their number is one that calls choose only in a graph over pages.
    """
    if product.op != "npu.linear":
        return False
    operands = [types[name] for name in (*product.inputs[:2], product.inputs[3]) if name]
    shapes = (product.type.shape, *(t.shape for t in operands))
    if is_symbolic([shape[-1] for shape in shapes]):
        return False
    rows = prod(product.type.shape[:-1])
    if not over_pages and (is_symbolic(rows) or rows <= _FEW_ROWS):
        return False
    dtypes = {product.type.dtype, *(t.dtype for t in operands)}
    return dtypes == {"bfloat16"} and all(s[-1] % 8 == 0 and s[-1] > 0 for s in shapes)


def part_before_norm(product: Node, low: Lowering) -> NormPart | None:
    """Returns what a product leaves for the norm that products after it begin with, if any."""
    norm = _norm_after(product, low.graph) if low.target.leaves_norms else None
    over_pages = norm is not None and is_over_pages(low.graph)
    if norm is None or not leaves_norm(product, low.graph.types, over_pages):
        return None
    y = product.type
    slots = -(-y.shape[-1] // (2 * SLOT_COLUMNS)) * 2
    scaled = low.temp(TensorType(y.dtype, y.shape))
    squares = low.temp(TensorType("float32", (slots, prod(y.shape[:-1]))))
    low.beside[product.output.name, norm] = scaled, squares
    weight = low.dense(low.view(norm))
    return NormPart("linear_before_norm", {"slots": slots}, (weight,), (scaled, squares))


def part_after_norm(product: Node, low: Lowering) -> tuple[View, NormPart] | None:
    """Returns the scaled rows that a product multiplies instead of x, if the one before left them.

    Args:
        product: `npu.normed_linear` or `npu.normed_gated_linear`.
    """
    x, norm = product.inputs[:2]
    assert x is not None and norm is not None
    if (x, norm) not in low.beside:
        return None
    scaled, squares = low.beside[x, norm]
    eps = product.attrs["eps"]
    assert isinstance(eps, (int, float))
    fields: Mapping[str, Param] = {"slots": squares.shape[0], "norm_eps": float(eps)}
    return scaled, NormPart("linear_behind_norm", fields, (squares,))


def _norm_after(product: Node, graph: Graph) -> str | None:
    """Returns the weight of the norm that the first reader of a product's result begins with."""
    y = product.output.name
    for reader in graph.users[y]:
        if reader.op in (NORMED_LINEAR, NORMED_GATED_LINEAR) and reader.inputs[0] == y:
            return reader.inputs[1]
    return None
