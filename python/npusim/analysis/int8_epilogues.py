"""What products of bytes take in of what follows: factors, biases, ReLU, rounding, sums."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from npusim.abi.requantization import FLOAT32
from npusim.analysis.compose import scalar_program
from npusim.analysis.int8_operands import (
    BIAS,
    PRODUCTS,
    RESIDUAL,
    SCALE,
    SUM_BIAS,
    TERMS,
    Y_ZERO,
    is_zero,
    times,
    with_bias,
    with_whole_bias,
)
from npusim.analysis.match import Operand, of_node
from npusim.analysis.quantized_values import (
    LIMITS,
    Dequantized,
    Quantization,
    dequantized,
    number_of,
    vector_of,
)
from npusim.ir.graph import Attr, Node
from npusim.ir.rewriter import Answer, Rewriter, become
from npusim.ir.types import TensorType
from npusim.ops.int8_reference import BYTE_BOUNDS, BYTES, INT8_CONV, INT8_MATMUL


def _floats(value: Operand, node: Node, rewriter: Rewriter) -> Node | None:
    """Returns the product of bytes that only `node` reads, as floats without an activation."""
    if not isinstance(value, str) or not rewriter.only_feeds(value, node):
        return None
    product = rewriter.producer(value)
    if product is None or product.op not in PRODUCTS or product.type.dtype != "float32":
        return None
    return product if product.attrs["act"] == "copy" else None


def continued(node: Node, product: Node, inputs: Sequence[str | None], **attrs: Attr) -> Node:
    """Returns the product with other operands and attributes, in the place of a node."""
    return become(node, product.op, inputs, {**product.attrs, **attrs})


def _channel_axis(product: Node) -> int:
    return 1 if product.op == INT8_CONV else product.type.rank - 1


def _several_matrices(product: Node, rewriter: Rewriter) -> bool:
    w = product.inputs[1]
    return product.op == INT8_MATMUL and w is not None and rewriter.types[w].rank > 2


def scaled(node: Node, factors: list[Operand], rewriter: Rewriter) -> Answer:
    """Takes a factor, one a channel or one for all, into the product before it."""
    for value, factor in (factors, factors[::-1]):
        product = _floats(value, node, rewriter)
        if product is None or product.type != node.type:
            continue
        if any(product.inputs[i] is not None for i in (BIAS, RESIDUAL)):
            continue
        axis, rank = _channel_axis(product), node.type.rank
        vector = vector_of(factor, "float32", axis, rank, node, rewriter)
        scale = product.inputs[SCALE]
        if vector is None or scale is None:
            continue
        if _several_matrices(product, rewriter) and rewriter.types[vector].numel > 1:
            continue
        inputs = list(product.inputs)
        inputs[SCALE] = times(scale, vector, node, rewriter)
        return continued(node, product, inputs)
    return None


def biased(node: Node, summands: list[Operand], rewriter: Rewriter) -> Answer:
    """Takes a summand for each channel into the product before it."""
    for value, other in (summands, summands[::-1]):
        product = _floats(value, node, rewriter)
        if product is None or product.type != node.type or not isinstance(other, str):
            continue
        taken = (SUM_BIAS, BIAS, RESIDUAL)
        if any(product.inputs[i] is not None for i in taken):
            continue
        axis, n = _channel_axis(product), node.type.shape[_channel_axis(product)]
        type = rewriter.types[other]
        aligned = (1,) * (node.type.rank - type.rank) + type.shape
        vector = all(s == (n if d == axis else 1) for d, s in enumerate(aligned))
        if not vector or other not in rewriter.static or _several_matrices(product, rewriter):
            continue
        flat = _flat(other, node, rewriter)
        inputs = with_bias(product.inputs, flat, node, rewriter)
        if inputs is not None:
            return continued(node, product, inputs)
    return None


def _flat(value: str, node: Node, rewriter: Rewriter) -> str:
    type = rewriter.types[value]
    if type.rank == 1:
        return value
    flat = TensorType(type.dtype, (type.numel,))
    return rewriter.emit("aten.view.default", (value,), flat, {"size": flat.shape}, like=node)


def rectified(node: Node, rewriter: Rewriter) -> Answer:
    """Takes a ReLU into the product before it."""
    product = _floats(node.inputs[0] or "", node, rewriter)
    if product is None or product.type != node.type:
        return None
    return continued(node, product, product.inputs, act="relu")


def rounded(node: Node, written: Quantization, rule: str, rewriter: Rewriter) -> Answer:
    """Takes a rounding to bytes into the product of bytes before it.

    Args:
        rule: FLOAT32, or the rounding of a machine that does it by integers: its biases are, too.
    """
    product = rewriter.producer(written.value)
    if product is None or product.op not in PRODUCTS or product.type.dtype != "float32":
        return None
    if product.type.shape != node.type.shape or rewriter.uses(written.value) != 1:
        return None
    if product.attrs["act"] not in ("copy", "relu") or product.inputs[RESIDUAL] is not None:
        return None
    rank = node.type.rank
    step = vector_of(written.scale, "float32", -1, rank, node, rewriter)
    zero: str | None = None
    if written.zero is not None and not is_zero(written.zero):
        zero = vector_of(written.zero, node.type.dtype, -1, rank, node, rewriter)
        if zero is None:
            return None
    scale, bias = product.inputs[SCALE], product.inputs[BIAS]
    if step is None or scale is None:
        return None
    op = "mul" if written.inverted else "div"
    inputs = list(product.inputs)
    if rule != FLOAT32:
        inputs, bias = list(with_whole_bias(product.inputs, node, rewriter)), None
    inputs[SCALE] = times(scale, step, node, rewriter, op)
    inputs[BIAS] = None if bias is None else times(bias, step, node, rewriter, op)
    inputs[Y_ZERO] = zero
    return continued(node, product, inputs, dtype=node.type.dtype, **by_rule(rule))


def activated(
    node: Node, written: Quantization, activations: Collection[str], rewriter: Rewriter
) -> Answer:
    """Takes a function of one number and the rounding of its results into the product before it.

    Args:
        activations: scalar opcodes that a product can apply to its floats.
    """
    function = rewriter.producer(written.value)
    act = None if function is None else _activation(function, activations, rewriter)
    step = number_of(written.scale, rewriter)
    if function is None or act is None or not step or rewriter.uses(written.value) != 1:
        return None
    product = _floats(function.inputs[0] or "", function, rewriter)
    if product is None or product.inputs[RESIDUAL] is not None:
        return None
    if product.type.shape != node.type.shape:
        return None
    zero: str | None = None
    if written.zero is not None and not is_zero(written.zero):
        zero = vector_of(written.zero, node.type.dtype, -1, node.type.rank, node, rewriter)
        if zero is None:
            return None
    inverse = np.float32(step) if written.inverted else np.float32(1) / np.float32(step)
    inputs = list(product.inputs)
    inputs[TERMS] = rewriter.constant("step", TensorType("float32", (1,)), inverse.tobytes())
    inputs[Y_ZERO] = zero
    return continued(node, product, inputs, dtype=node.type.dtype, **act)


def _activation(
    node: Node, activations: Collection[str], rewriter: Rewriter
) -> dict[str, Attr] | None:
    """Returns the attributes of an epilogue that computes a node of one operand."""
    program = scalar_program(node, rewriter)
    if program is None or len(program.body) != 1:
        return None
    instruction = program.body[0]
    bounds = [float(a[1]) for a in instruction.args[1:] if isinstance(a, tuple)]
    if instruction.op not in activations or instruction.op in BYTE_BOUNDS:
        return None
    if instruction.args[0] != 0 or len(bounds) != len(instruction.args) - 1:
        return None
    low, high = bounds or (0.0, 0.0)
    return {"act": instruction.op, "act_lo": low, "act_hi": high}


def unclamped(node: Node, written: Quantization, rewriter: Rewriter) -> Quantization:
    """Returns a quantization without the clamp before it, where saturating does what it did.

    Rounding is monotone: once both bounds become the least and the greatest byte, everything beyond
    them does. So the bytes are the same, whatever the value is.
    """
    clamp = rewriter.producer(written.value)
    bounds = None if clamp is None else of_node(clamp, "clamp", rewriter)
    scale, zero = number_of(written.scale, rewriter), number_of(written.zero, rewriter)
    if clamp is None or bounds is None or rewriter.uses(written.value) != 1:
        return written
    value, *ends = bounds
    if not isinstance(value, str) or not scale or zero is None or rewriter.uses(value) != 1:
        return written
    if rewriter.types[value] != clamp.type or len(ends) != 2:
        return written
    if any(isinstance(end, str) for end in ends) or scale < 0:
        return written
    step, (low, high) = np.float32(scale), np.asarray(ends, np.float32)
    low, high = (np.rint(x * step if written.inverted else x / step) + zero for x in (low, high))
    least, most = LIMITS[node.type.dtype]
    if not (low <= least and high >= most):  # NaN is neither
        return written
    return replace(written, value=value)


def by_rule(rule: str) -> dict[str, Attr]:
    """Returns the attributes of products that say how sums become bytes."""
    return {} if rule == FLOAT32 else {"requantize": rule}


def added(node: Node, written: Quantization, rule: str, rewriter: Rewriter) -> Answer:
    """Takes a sum with other bytes, rounded to bytes, into the product before it."""
    value, act = written.value, "copy"
    behind = rewriter.producer(value)
    if behind is not None and of_node(behind, "relu", rewriter) is not None:
        value, act = behind.inputs[0] or "", "relu"
    total = rewriter.producer(value)
    summands = None if total is None else of_node(total, "add", rewriter)
    if total is None or summands is None or rewriter.uses(value) != 1:
        return None
    for own, other in (summands, summands[::-1]):
        if isinstance(own, str) and isinstance(other, str) and rewriter.uses(own) == 1:
            fused = _with_residual(node, written, own, other, act, rule, rewriter)
            if fused is not None:
                return fused
    return None


def _with_residual(
    node: Node,
    written: Quantization,
    own: str,
    other: str,
    act: str,
    rule: str,
    rewriter: Rewriter,
) -> Answer:
    a, b = dequantized(own, rewriter), dequantized(other, rewriter)
    if a is None or b is None or a.views or b.views or a.scale is None or b.scale is None:
        return None
    product = rewriter.producer(a.source)
    types = rewriter.types
    if product is None or product.op not in PRODUCTS or product.type.dtype not in BYTES:
        return None
    alone = rewriter.uses(a.source) == 1 and product.inputs[RESIDUAL] is None
    shapes = types[a.source].shape == types[b.source].shape == node.type.shape
    if not alone or not shapes or types[b.source].dtype not in BYTES:
        return None
    joined = with_other_bytes(product.inputs, product, a, b, written, node, rule, rewriter)
    if joined is None:
        return None
    attrs: dict[str, Attr] = {"dtype": node.type.dtype, "act": act, "residual": 1}
    return continued(node, product, joined, **attrs)


def with_other_bytes(
    inputs: Sequence[str | None],
    product: Node | str,
    a: Dequantized,
    b: Dequantized,
    written: Quantization,
    node: Node,
    rule: str,
    rewriter: Rewriter,
) -> list[str | None] | None:
    """Returns the operands of a product with the terms of a sum, or None for unknown numbers.

    Args:
        inputs: of the product.
        product: that makes the bytes of a; or the dtype of bytes that are a's as they are.
        a, b: the summands, whose sum is `written` as bytes.
    """
    known = [a.scale, a.zero, b.scale, b.zero, written.scale, written.zero]
    numbers = [number_of(n, rewriter) for n in known]
    if any(n is None for n in numbers) or numbers[4] == 0:
        return None
    a_scale, a_zero, b_scale, b_zero, step, y_zero = (np.float32(n) for n in numbers)
    inverse = step if written.inverted else np.float32(1)
    divisor = np.float32(1) if written.inverted else step
    kind = product if isinstance(product, str) else product.type.dtype
    low, high = (np.float32(n) - a_zero for n in LIMITS[kind])
    if not isinstance(product, str) and product.attrs["act"] == "relu":
        low = max(low, np.float32(0))
    factor = b_scale * inverse / divisor
    rest = y_zero - b_zero * factor if rule == FLOAT32 else b_zero
    terms = (low, high, a_scale * inverse / divisor, factor, rest)
    zero = vector_of(float(y_zero), node.type.dtype, -1, node.type.rank, node, rewriter)
    if zero is None:
        return None
    changed = list(inputs)
    changed[RESIDUAL] = b.source
    changed[TERMS] = rewriter.constant(
        "terms", TensorType("float32", (5,)), np.asarray(terms, "<f4").tobytes()
    )
    changed[Y_ZERO] = zero
    return changed
