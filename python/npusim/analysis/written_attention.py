"""Reads attention that was written out: softmax(cap(q·kᵀ * scale) + mask)·v, and repeated heads.

cap(s) is c * tanh(s / c), or s. Conversions between float dtypes on the way are looked through:
attention computes in float32 and rounds once. Owns the reading; what becomes of it is decided by
the passes.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.analysis.compose import scalar_program
from npusim.analysis.match import Operand, instruction
from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, permutation
from npusim.ir.graph import Node
from npusim.ir.rewriter import Rewriter
from npusim.ir.types import TensorType, is_float

PRODUCTS = ("aten.matmul.default", "aten.bmm.default")


@dataclass(frozen=True)
class WrittenAttention:
    """The operands of an attention that was written out.

    Attributes:
        transposed: keys as the product reads them, [..., size, length]: a permutation's result.
        softcap: 0 for none.
        mask: what is added to the scores, if anything.
    """

    q: str
    transposed: str
    v: str
    scale: float
    softcap: float
    mask: str | None


def written_attention(node: Node, rewriter: Rewriter) -> WrittenAttention | None:
    """Returns the attention whose last product is `node`; None when it is no such thing."""
    if node.op not in PRODUCTS or node.type.rank not in (3, 4):
        return None
    weights, v = node.inputs
    if weights is None or v is None:
        return None
    weights, reader = _uncast(weights, node, rewriter)
    softmax = rewriter.producer(weights)
    if softmax is None or softmax.op != "aten.softmax.int" or softmax.inputs[0] is None:
        return None
    if softmax.attrs["dim"] not in (-1, softmax.type.rank - 1) or not is_float(softmax.type.dtype):
        return None
    if not rewriter.only_feeds(weights, reader):
        return None
    return _scores(softmax, v, rewriter)


def _scores(softmax: Node, v: str, rewriter: Rewriter) -> WrittenAttention | None:
    """Looks behind a softmax for cap(product * scale) + mask."""
    value, reader = _uncast(softmax.inputs[0] or "", softmax, rewriter)
    total = instruction(value, "add", rewriter, reader)
    if total is not None:
        type, node = rewriter.types[value], _producer(value, rewriter)
        for scores, other in (total, total[::-1]):
            if isinstance(scores, str) and (isinstance(other, str) or other == 0):
                whole = rewriter.types[scores].shape == type.shape
                found = _capped_product(scores, node, rewriter) if whole else None
                if found is not None:
                    mask = other if isinstance(other, str) else None
                    return _attention(*found, v, mask, rewriter)
    found = _capped_product(value, reader, rewriter)
    return None if found is None else _attention(*found, v, None, rewriter)


def _attention(
    product: Node, scale: float, softcap: float, v: str, mask: str | None, rewriter: Rewriter
) -> WrittenAttention | None:
    q, transposed = product.inputs
    if q is None or transposed is None:
        return None
    types = [rewriter.types[i] for i in (q, transposed, v)]
    same_batch = all(t.shape[:-2] == types[0].shape[:-2] for t in types)
    producer = rewriter.producer(transposed)
    if not same_batch or producer is None or producer.op not in PERMUTATIONS:
        return None  # keys that are not transposed here would have to be copied
    if len({t.dtype for t in types}) != 1:
        return None
    return WrittenAttention(q, transposed, v, scale, softcap, mask)


def _capped_product(
    value: str, reader: Node, rewriter: Rewriter
) -> tuple[Node, float, float] | None:
    """Returns a product, the number it is multiplied by, and the cap after that or 0.

    c * tanh(f * s) is the cap c of c * f * s.
    """
    outer, inner, after = _scaled(value, reader, rewriter)
    tanh = instruction(inner, "tanh", rewriter, after)
    if tanh is None or not isinstance(tanh[0], str):
        found = _scaled_product(value, reader, rewriter)
        return None if found is None else (*found, 0.0)
    factor, inner, after = _scaled(tanh[0], _producer(inner, rewriter), rewriter)
    found = _scaled_product(inner, after, rewriter)
    if found is None or outer <= 0:
        return None
    product, scale = found
    return product, scale * factor * outer, outer


def _scaled_product(value: str, reader: Node, rewriter: Rewriter) -> tuple[Node, float] | None:
    """Returns a product and the number it is multiplied by, if `reader` alone reads the value."""
    scale, value, reader = _scaled(value, reader, rewriter)
    value, reader = _uncast(value, reader, rewriter)
    node = rewriter.producer(value)
    if node is None or node.op not in PRODUCTS or not rewriter.only_feeds(value, reader):
        return None
    return node, scale


def _scaled(value: str, reader: Node, rewriter: Rewriter) -> tuple[float, str, Node]:
    """Returns (factor, x, reader of x) for x times or divided by a number; factor 1 for others."""
    for opcode in ("mul", "div"):
        operands: list[Operand] | None = instruction(value, opcode, rewriter, reader)
        if operands is None:
            continue
        if opcode == "mul" and isinstance(operands[0], (int, float)):
            operands = operands[::-1]
        x, number = operands
        if isinstance(x, str) and isinstance(number, (int, float)) and _is_moderate(number):
            factor = float(number)
            return factor if opcode == "mul" else 1 / factor, x, _producer(value, rewriter)
    return 1.0, value, reader


def _is_moderate(number: float) -> bool:
    """Tells whether a factor makes neither 0 nor infinity of scores."""
    return 2.0**-32 <= abs(number) <= 2.0**32


def _uncast(value: str, reader: Node, rewriter: Rewriter) -> tuple[str, Node]:
    """Returns what stands behind conversions between float dtypes, and who reads that."""
    while is_conversion(rewriter.producer(value), rewriter) and rewriter.only_feeds(value, reader):
        reader = _producer(value, rewriter)
        value = reader.inputs[0] or ""
    return value, reader


def is_conversion(node: Node | None, rewriter: Rewriter) -> bool:
    """Tells whether a node only converts one float dtype to another."""
    if node is None or len(node.inputs) != 1 or node.inputs[0] is None:
        return False
    program = scalar_program(node, rewriter)
    if program is None or not is_float(node.type.dtype):
        return False
    copies = len(program.body) == 1 and program.body[0].op in ("copy", "to_f", "to_d")
    return copies and is_float(rewriter.types[node.inputs[0]].dtype)


def _producer(value: Operand, rewriter: Rewriter) -> Node:
    node = rewriter.producer(str(value))
    assert node is not None
    return node


def transposed_back(value: str, like: Node, rewriter: Rewriter) -> str:
    """Returns a permuted value with its last two dimensions swapped, as one permutation."""
    producer = _producer(value, rewriter)
    type = rewriter.types[value]
    (source,) = producer.inputs
    dims = permutation(producer, type.rank)
    dims = (*dims[:-2], dims[-1], dims[-2])
    assert source is not None
    if dims == tuple(range(type.rank)):
        return source
    shape = (*type.shape[:-2], type.shape[-1], type.shape[-2])
    swapped = TensorType(type.dtype, shape)
    return rewriter.emit("aten.permute.default", (source,), swapped, {"dims": dims}, like=like)


def unrepeated(value: str, rewriter: Rewriter) -> str:
    """Returns keys or values before each head was repeated; the value itself if none was.

    Repeating is [b, g, s, d] -> [b, g, 1, s, d] -> [b, g, n, s, d] -> [b, g * n, s, d].
    """
    merged = rewriter.producer(value)
    if merged is None or merged.op not in RESHAPES or merged.type.rank != 4:
        return value
    repeated = rewriter.producer(merged.inputs[0])
    if repeated is None or repeated.op != "aten.expand.default" or repeated.type.rank != 5:
        return value
    split = rewriter.producer(repeated.inputs[0])
    if split is None or split.op not in RESHAPES or split.inputs[0] is None:
        return value
    b, g, n, s, d = repeated.type.shape
    source = split.inputs[0]
    shapes = (merged.type.shape, split.type.shape, rewriter.types[source].shape)
    return source if shapes == ((b, g * n, s, d), (b, g, 1, s, d), (b, g, s, d)) else value
