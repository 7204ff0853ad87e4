"""Operands of products of bytes, made of what dequantizes, scales and biases."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.analysis.match import Operand
from npusim.analysis.quantized_values import (
    Dequantized,
    array_of,
    axis_after,
    bytes_of,
    dequantized,
    vector_of,
)
from npusim.ir.graph import Attr, Node
from npusim.ir.rewriter import Rewriter
from npusim.ir.types import TensorType
from npusim.ops.int8_reference import BYTES, INT8_CONV, INT8_MATMUL

PRODUCTS = (INT8_CONV, INT8_MATMUL)
X_ZERO, W_ZERO, SCALE, SUM_BIAS, BIAS, RESIDUAL, TERMS, Y_ZERO = range(2, 10)  # operands of them
_TO_INT32: dict[str, Attr] = {"dtype": "int32"}
_BIAS_ACCURACY = 2.0**-22  # relative: two roundings of a float32 product of scales


@dataclass(frozen=True)
class Pair:
    """Two values that bytes stand for: what an integer product takes of them."""

    x: str
    w: str
    x_zero: str | None
    w_zero: str | None
    scale: str


def pair_of(x: str, w: str, axis: int, node: Node, rewriter: Rewriter) -> Pair | None:
    """Returns the operands of an integer product; `axis` is the dimension of w that y keeps."""
    a, b = dequantized(x, rewriter), dequantized(w, rewriter)
    if a is None or b is None:
        return None
    types = rewriter.types
    if types[a.source].dtype not in BYTES or types[b.source].dtype not in BYTES:
        return None
    own = axis_after(b.views, axis, types[w].rank)
    x_zero, x_scale = _parameters(a, None, node, rewriter)
    w_zero, w_scale = _parameters(b, own, node, rewriter)
    if x_zero is None or x_scale is None or w_zero is None or w_scale is None:
        return None
    scale = times(x_scale, w_scale, node, rewriter)
    x, w = bytes_of(a, node, rewriter), bytes_of(b, node, rewriter)
    return Pair(x, w, x_zero or None, w_zero or None, scale)


def _parameters(
    of: Dequantized, axis: int | None, node: Node, rewriter: Rewriter
) -> tuple[str | None, str | None]:
    """Returns zero point and scale as vectors; "" for no zero point, None for one that differs
    along more than `axis`, which is None where it may not differ at all."""
    type = rewriter.types[of.source]
    along = -1 if axis is None else axis
    zero: str | None = ""
    if of.zero is not None and not is_zero(of.zero):
        zero = vector_of(of.zero, type.dtype, along, type.rank, node, rewriter)
    factor: Operand = 1.0 if of.scale is None else of.scale
    return zero, vector_of(factor, "float32", along, type.rank, node, rewriter)


def is_zero(operand: Operand) -> bool:
    """Tells whether an operand is the number 0."""
    return not isinstance(operand, str) and operand == 0


def times(a: str, b: str, like: Node, rewriter: Rewriter, op: str = "mul") -> str:
    """Returns the product (or quotient) of two vectors, known when both are."""
    first, second = array_of(a, rewriter), array_of(b, rewriter)
    if op == "mul" and first is not None and first.size == 1 and first[0] == 1:
        return b
    longer = max(rewriter.types[a].numel, rewriter.types[b].numel)
    type = TensorType("float32", (longer,))
    if first is None or second is None:
        return rewriter.emit(f"aten.{op}.Tensor", (a, b), type, like=like)
    function = np.multiply if op == "mul" else np.divide
    with np.errstate(all="ignore"):
        result = function(first.astype(np.float32), second.astype(np.float32))
    return rewriter.constant("scale", type, result.astype("<f4").tobytes())


def is_uniform(pair: Pair, rewriter: Rewriter) -> bool:
    """Tells whether all columns of w have the same zero point and scale."""
    vectors = (pair.w_zero, pair.scale)
    return all(v is None or rewriter.types[v].numel == 1 for v in vectors)


Operands = tuple["str | None", ...]


def operands_of(pair: Pair, bias: str | None, node: Node, rewriter: Rewriter) -> Operands | None:
    """Returns the operands of a product; None for a bias that it cannot take."""
    inputs: list[str | None] = [pair.x, pair.w, pair.x_zero, pair.w_zero, pair.scale]
    inputs += [None] * 5
    if bias is None:
        return tuple(inputs)
    return with_bias(tuple(inputs), bias, node, rewriter)


def with_bias(inputs: Operands, bias: str, node: Node, rewriter: Rewriter) -> Operands | None:
    """Adds a bias [n] to a product: as integers, where its scale is that of the sums."""
    if rewriter.types[bias].dtype != "float32" or rewriter.types[bias].rank != 1:
        return None
    changed = list(inputs)
    found = dequantized(bias, rewriter)
    scale = inputs[SCALE]
    if found is not None and scale is not None and _on_grid(found, scale, rewriter):
        changed[SUM_BIAS] = bytes_of(found, node, rewriter)
    else:
        changed[BIAS] = bias
    return tuple(changed)


def with_whole_bias(inputs: Operands, node: Node, rewriter: Rewriter) -> Operands:
    """Returns operands whose bias of floats is integers that count what the sums count.

    It is divided by the scale in float32 and rounded half to even.
    """
    bias, scale = inputs[BIAS], inputs[SCALE]
    if bias is None or scale is None:
        return inputs
    n = rewriter.types[bias].shape
    value, limit = times(bias, scale, node, rewriter, "div"), 2.0**31 - 128  # a float32
    floats, whole = TensorType("float32", n), TensorType("int32", n)
    value = rewriter.emit("aten.round.default", (value,), floats, like=node)
    bounds: dict[str, Attr] = {"min": -limit, "max": limit}
    value = rewriter.emit("aten.clamp.default", (value,), floats, bounds, like=node)
    value = rewriter.emit("aten._to_copy.default", (value,), whole, _TO_INT32, like=node)
    if inputs[SUM_BIAS] is not None:
        value = rewriter.emit("aten.add.Tensor", (inputs[SUM_BIAS], value), whole, like=node)
    changed = list(inputs)
    changed[SUM_BIAS], changed[BIAS] = value, None
    return tuple(changed)


def _on_grid(bias: Dequantized, scale: str, rewriter: Rewriter) -> bool:
    """Tells whether integers of a bias count what sums of products count."""
    if rewriter.types[bias.source].dtype != "int32" or not (
        bias.zero is None or is_zero(bias.zero)
    ):
        return False
    own = array_of(1.0 if bias.scale is None else bias.scale, rewriter)
    sums = array_of(scale, rewriter)
    if own is None or sums is None:
        return False
    return bool(np.allclose(own, sums, rtol=_BIAS_ACCURACY, atol=0))


def scale_of_one(rewriter: Rewriter) -> str:
    """Returns the scale of sums that stand for themselves."""
    return rewriter.constant("one", TensorType("float32", (1,)), np.float32(1).tobytes())
