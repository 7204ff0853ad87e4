"""Makes products of quantized values products of their bytes, and keeps bytes where it can.

Frontends write quantized models in floats, or in wide integers: bytes are converted, shifted,
scaled, multiplied, and what comes out is rounded to bytes again. Where the target multiplies bytes,

* a convolution or product of two values that bytes stand for becomes `npu.int8_conv` or
  `npu.int8_matmul`, whose sums are exact, with the product of both scales;
* a factor, a bias of int32 or of floats, a ReLU and a rounding to bytes behind it join it, and so
  does a sum with other bytes that is rounded to bytes;
* bytes that are moved, joined, or the largest of which is taken, between two equal quantizations
  stay bytes.

Floats that are rounded to bytes differ from the written-out form where they lie within float32's
precision of the middle between two bytes, as the sums are exact now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewrite import drop_dead
from npusim.ir.types import TensorType
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.int8_products import BYTES, INT8_CONV, INT8_MATMUL
from npusim.passes.match import Operand, of_node
from npusim.passes.quantized_values import (
    LIMITS,
    Dequantized,
    Quantization,
    array_of,
    axis_behind,
    bytes_of,
    dequantized,
    number_of,
    quantization,
    same,
    vector_of,
)
from npusim.passes.rewriter import Answer, Rewriter, become, rewrite
from npusim.passes.shapes import VIEWS
from npusim.targets.target_config import TargetConfig

_MATMULS = ("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
_MOVERS = frozenset(("aten.max_pool2d.default", "aten.cat.default"))
_PRODUCTS = (INT8_CONV, INT8_MATMUL)
_X_ZERO, _W_ZERO, _SCALE, _SUM_BIAS, _BIAS, _RESIDUAL, _TERMS, _Y_ZERO = range(2, 10)
_BIAS_ACCURACY = 1e-5  # relative difference of scales that float32 products of scales have


def recognize_int8(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with products of bytes, where the target has them."""
    if "conv_int8" not in target.kernels:
        return graph
    changed = rewrite(graph, _visit)
    if changed == graph:
        return graph
    changed = drop_dead(changed)  # constants of attempts that were given up
    return graph if changed == graph else changed


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    if len(node.outputs) != 1:
        return None
    if node.op == "npu.conv":
        return _convolution(node, rewriter)
    if node.op == "npu.linear" or node.op in _MATMULS:
        return _product(node, rewriter)
    if node.op == "aten._to_copy.default":
        return _conversion(node, rewriter)
    if node.type.dtype != "float32":
        return None
    if (factors := of_node(node, "mul", rewriter)) is not None:
        return _factor(node, factors, rewriter)
    if (summands := of_node(node, "add", rewriter)) is not None:
        return _summand(node, summands, rewriter)
    if of_node(node, "relu", rewriter) is not None:
        return _relu(node, rewriter)
    return None


# Products


@dataclass(frozen=True)
class _Pair:
    """Two values that bytes stand for: what an integer product takes of them."""

    x: str
    w: str
    x_zero: str | None
    w_zero: str | None
    scale: str


def _pair(x: str, w: str, axis: int, node: Node, rewriter: Rewriter) -> _Pair | None:
    """Returns the operands of an integer product; `axis` is the dimension of w that y keeps."""
    a, b = dequantized(x, rewriter), dequantized(w, rewriter)
    if a is None or b is None:
        return None
    types = rewriter.types
    if types[a.source].dtype not in BYTES or types[b.source].dtype not in BYTES:
        return None
    own = axis_behind(b.views, axis, types[w].rank)
    x_zero, x_scale = _parameters(a, None, node, rewriter)
    w_zero, w_scale = _parameters(b, own, node, rewriter)
    if x_zero is None or x_scale is None or w_zero is None or w_scale is None:
        return None
    scale = _times(x_scale, w_scale, node, rewriter)
    x, w = bytes_of(a, node, rewriter), bytes_of(b, node, rewriter)
    return _Pair(x, w, x_zero or None, w_zero or None, scale)


def _parameters(
    of: Dequantized, axis: int | None, node: Node, rewriter: Rewriter
) -> tuple[str | None, str | None]:
    """Returns zero point and scale as vectors; "" for no zero point, None for one that differs
    along more than `axis`, which is None where it may not differ at all."""
    type = rewriter.types[of.source]
    along = -1 if axis is None else axis
    zero: str | None = ""
    if of.zero is not None and not _is_zero(of.zero):
        zero = vector_of(of.zero, type.dtype, along, type.rank, node, rewriter)
    factor: Operand = 1.0 if of.scale is None else of.scale
    return zero, vector_of(factor, "float32", along, type.rank, node, rewriter)


def _is_zero(operand: Operand) -> bool:
    return not isinstance(operand, str) and operand == 0


def _times(a: str, b: str, like: Node, rewriter: Rewriter, op: str = "mul") -> str:
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


def _product(node: Node, rewriter: Rewriter) -> Answer:
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    types = rewriter.types
    if not types[x].rank or types[w].rank < 2 or _has_epilogue(node):
        return None
    linear = node.op == "npu.linear"
    rank = types[w].rank
    pair = _pair(x, w, 0 if linear else rank - 1, node, rewriter)
    if pair is None or (rank > 2 and not _is_uniform(pair, rewriter)):
        return None
    w = pair.w
    if linear:
        k, n = node.type.shape[-1], types[w].shape[1]
        type = TensorType(types[w].dtype, (n, k))
        w = rewriter.emit("aten.permute.default", (w,), type, {"dims": (1, 0)}, like=node)
    pair = replace(pair, w=w)
    bias = node.inputs[2] if linear else None
    if node.type.dtype == "int64":
        return None  # what it is converted to says what it becomes
    if node.type.dtype != "float32":
        return None
    inputs = _operands(pair, bias, node, rewriter)
    attrs = {"dtype": "float32", **NO_EPILOGUE}
    return None if inputs is None else become(node, INT8_MATMUL, inputs, attrs)


def _is_uniform(pair: _Pair, rewriter: Rewriter) -> bool:
    vectors = (pair.w_zero, pair.scale)
    return all(v is None or rewriter.types[v].numel == 1 for v in vectors)


def _has_epilogue(node: Node) -> bool:
    return node.op == "npu.linear" and (node.attrs["act"] != "copy" or node.attrs["residual"] != 0)


def _convolution(node: Node, rewriter: Rewriter) -> Answer:
    x, w, bias, residual = node.inputs
    assert x is not None and w is not None
    plain = node.attrs["act"] == "copy" and residual is None and not node.attrs["transposed"]
    if not plain or node.type.dtype != "float32":
        return None
    pair = _pair(x, w, 0, node, rewriter)
    if pair is None:
        return None
    inputs = _operands(pair, bias, node, rewriter)
    names = ("stride", "padding", "padding_back", "dilation", "groups")
    attrs = {**{n: node.attrs[n] for n in names}, "dtype": "float32", **NO_EPILOGUE}
    return None if inputs is None else become(node, INT8_CONV, inputs, attrs)


Operands = tuple["str | None", ...]


def _operands(pair: _Pair, bias: str | None, node: Node, rewriter: Rewriter) -> Operands | None:
    inputs: list[str | None] = [pair.x, pair.w, pair.x_zero, pair.w_zero, pair.scale]
    inputs += [None] * 5
    if bias is None:
        return tuple(inputs)
    return _with_bias(tuple(inputs), bias, node, rewriter)


def _with_bias(inputs: Operands, bias: str, node: Node, rewriter: Rewriter) -> Operands | None:
    """Adds a bias [n] to a product: as integers, where its scale is that of the sums."""
    if rewriter.types[bias].dtype != "float32" or rewriter.types[bias].rank != 1:
        return None
    changed = list(inputs)
    found = dequantized(bias, rewriter)
    scale = inputs[_SCALE]
    if found is not None and scale is not None and _on_grid(found, scale, rewriter):
        changed[_SUM_BIAS] = bytes_of(found, node, rewriter)
    else:
        changed[_BIAS] = bias
    return tuple(changed)


def _on_grid(bias: Dequantized, scale: str, rewriter: Rewriter) -> bool:
    """Tells whether integers of a bias count what sums of products count."""
    if rewriter.types[bias.source].dtype != "int32" or not (
        bias.zero is None or _is_zero(bias.zero)
    ):
        return False
    own = array_of(1.0 if bias.scale is None else bias.scale, rewriter)
    sums = array_of(scale, rewriter)
    if own is None or sums is None:
        return False
    return bool(np.allclose(own, sums, rtol=_BIAS_ACCURACY, atol=0))


# What follows a product


def _floats(value: Operand, node: Node, rewriter: Rewriter) -> Node | None:
    """Returns the product of bytes that only `node` reads, as floats without an activation."""
    if not isinstance(value, str) or not rewriter.only_feeds(value, node):
        return None
    product = rewriter.producer(value)
    if product is None or product.op not in _PRODUCTS or product.type.dtype != "float32":
        return None
    return product if product.attrs["act"] == "copy" else None


def _continued(node: Node, product: Node, inputs: Sequence[str | None], **attrs: Attr) -> Node:
    return become(node, product.op, inputs, {**product.attrs, **attrs})


def _channel_axis(product: Node) -> int:
    return 1 if product.op == INT8_CONV else product.type.rank - 1


def _several_matrices(product: Node, rewriter: Rewriter) -> bool:
    w = product.inputs[1]
    return product.op == INT8_MATMUL and w is not None and rewriter.types[w].rank > 2


def _factor(node: Node, factors: list[Operand], rewriter: Rewriter) -> Answer:
    for value, factor in (factors, factors[::-1]):
        product = _floats(value, node, rewriter)
        if product is None or product.type != node.type:
            continue
        if any(product.inputs[i] is not None for i in (_BIAS, _RESIDUAL)):
            continue
        axis, rank = _channel_axis(product), node.type.rank
        vector = vector_of(factor, "float32", axis, rank, node, rewriter)
        scale = product.inputs[_SCALE]
        if vector is None or scale is None:
            continue
        if _several_matrices(product, rewriter) and rewriter.types[vector].numel > 1:
            continue
        inputs = list(product.inputs)
        inputs[_SCALE] = _times(scale, vector, node, rewriter)
        return _continued(node, product, inputs)
    return None


def _summand(node: Node, summands: list[Operand], rewriter: Rewriter) -> Answer:
    for value, other in (summands, summands[::-1]):
        product = _floats(value, node, rewriter)
        if product is None or product.type != node.type or not isinstance(other, str):
            continue
        taken = (_SUM_BIAS, _BIAS, _RESIDUAL)
        if any(product.inputs[i] is not None for i in taken):
            continue
        axis, n = _channel_axis(product), node.type.shape[_channel_axis(product)]
        type = rewriter.types[other]
        aligned = (1,) * (node.type.rank - type.rank) + type.shape
        vector = all(s == (n if d == axis else 1) for d, s in enumerate(aligned))
        if not vector or other not in rewriter.static or _several_matrices(product, rewriter):
            continue
        flat = _flat(other, node, rewriter)
        inputs = _with_bias(product.inputs, flat, node, rewriter)
        if inputs is not None:
            return _continued(node, product, inputs)
    return None


def _flat(value: str, node: Node, rewriter: Rewriter) -> str:
    type = rewriter.types[value]
    if type.rank == 1:
        return value
    flat = TensorType(type.dtype, (type.numel,))
    return rewriter.emit("aten.view.default", (value,), flat, {"size": flat.shape}, like=node)


def _relu(node: Node, rewriter: Rewriter) -> Answer:
    product = _floats(node.inputs[0] or "", node, rewriter)
    if product is None or product.type != node.type:
        return None
    return _continued(node, product, product.inputs, act="relu")


# Conversions: to wider types behind integer products, and to bytes


def _conversion(node: Node, rewriter: Rewriter) -> Answer:
    x = node.inputs[0]
    assert x is not None
    if node.type.dtype in BYTES:
        written = quantization(node, rewriter)
        if written is None:
            return None
        return (
            _kept(node, written, rewriter)
            or _rounded(node, written, rewriter)
            or _added(node, written, rewriter)
        )
    if node.type.dtype not in ("int32", "float32") or not rewriter.only_feeds(x, node):
        return None
    product = rewriter.producer(x)
    if product is None or product.type.shape != node.type.shape:
        return None
    if product.op in _MATMULS and product.type.dtype == "int64":
        return _wide_product(node, product, rewriter)
    if product.op in _PRODUCTS and product.type.dtype == "int32" and node.type.dtype == "float32":
        inputs = list(product.inputs)
        inputs[_SCALE] = _one(rewriter)
        return _continued(node, product, inputs, dtype="float32")
    if product.op == INT8_CONV and node.type.dtype == "int32" and _is_sum(product, rewriter):
        inputs = list(product.inputs)
        inputs[_SCALE] = None
        return _continued(node, product, inputs, dtype="int32")
    return None


def _one(rewriter: Rewriter) -> str:
    return rewriter.constant("one", TensorType("float32", (1,)), np.float32(1).tobytes())


def _is_sum(product: Node, rewriter: Rewriter) -> bool:
    """Tells whether a product's floats are the sums as they stand."""
    scale = product.inputs[_SCALE]
    factor = None if scale is None else array_of(scale, rewriter)
    bare = all(product.inputs[i] is None for i in (_BIAS, _RESIDUAL))
    exact = factor is not None and bool(np.all(factor == 1))
    return bare and exact and product.attrs["act"] == "copy" and product.type.dtype == "float32"


def _wide_product(node: Node, product: Node, rewriter: Rewriter) -> Answer:
    """An int64 product of shifted bytes that is converted: the sums fit int32, or wrap with it."""
    x, w = product.inputs[:2]
    assert x is not None and w is not None
    rank = rewriter.types[w].rank
    if not rewriter.types[x].rank or rank < 2:
        return None
    pair = _pair(x, w, rank - 1, node, rewriter)
    if pair is None or (rank > 2 and not _is_uniform(pair, rewriter)):
        return None
    one = array_of(pair.scale, rewriter)
    depth = rewriter.types[w].shape[-2]
    if one is None or not np.all(one == 1) or depth * 255 * 255 >= 2**31:
        return None
    scale = _one(rewriter) if node.type.dtype == "float32" else None
    inputs = (pair.x, pair.w, pair.x_zero, pair.w_zero, scale, *(None,) * 5)
    attrs = {"dtype": node.type.dtype, **NO_EPILOGUE}
    return become(node, INT8_MATMUL, inputs, attrs)


def _rounded(node: Node, written: Quantization, rewriter: Rewriter) -> Answer:
    """Takes a rounding to bytes into the product of bytes in front of it."""
    product = rewriter.producer(written.value)
    if product is None or product.op not in _PRODUCTS or product.type.dtype != "float32":
        return None
    if product.type.shape != node.type.shape or rewriter.uses(written.value) != 1:
        return None
    if product.attrs["act"] not in ("copy", "relu") or product.inputs[_RESIDUAL] is not None:
        return None
    rank = node.type.rank
    step = vector_of(written.scale, "float32", -1, rank, node, rewriter)
    zero: str | None = None
    if written.zero is not None and not _is_zero(written.zero):
        zero = vector_of(written.zero, node.type.dtype, -1, rank, node, rewriter)
        if zero is None:
            return None
    scale, bias = product.inputs[_SCALE], product.inputs[_BIAS]
    if step is None or scale is None:
        return None
    op = "mul" if written.inverted else "div"
    inputs = list(product.inputs)
    inputs[_SCALE] = _times(scale, step, node, rewriter, op)
    inputs[_BIAS] = None if bias is None else _times(bias, step, node, rewriter, op)
    inputs[_Y_ZERO] = zero
    return _continued(node, product, inputs, dtype=node.type.dtype)


def _kept(node: Node, written: Quantization, rewriter: Rewriter) -> str | None:
    """Bytes that are dequantized, moved, and quantized as they were."""
    return _as_bytes(written.value, written, node, rewriter)


def _same_step(scale: Operand | None, written: Quantization, rewriter: Rewriter) -> bool:
    """Tells whether bytes were dequantized by the step that they are quantized by."""
    if not written.inverted:
        return same(scale, written.scale, rewriter)
    own, inverse = number_of(scale, rewriter), number_of(written.scale, rewriter)
    if scale is None or own is None or inverse is None or own == 0:
        return False
    return bool(np.float32(1.0 / own) == np.float32(inverse))


def _as_bytes(value: str, written: Quantization, node: Node, rewriter: Rewriter) -> str | None:
    """Returns the bytes that a value is quantized to, where it holds nothing but some of them."""
    found = dequantized(value, rewriter)
    if found is not None:
        steps = _same_step(found.scale, written, rewriter)
        equal = steps and same(found.zero, written.zero, rewriter)
        right = rewriter.types[found.source].dtype == node.type.dtype
        return bytes_of(found, node, rewriter) if equal and right else None
    mover = rewriter.producer(value)
    if mover is None or len(mover.outputs) != 1 or mover.op not in _MOVERS | VIEWS:
        return None
    step = number_of(written.scale, rewriter)
    if mover.op == "aten.max_pool2d.default" and (step is None or step <= 0):
        return None
    operands = [None if i is None else _as_bytes(i, written, node, rewriter) for i in mover.inputs]
    if any(o is None for o in operands):
        return None
    type = TensorType(node.type.dtype, mover.type.shape)
    return rewriter.emit(mover.op, operands, type, mover.attrs, like=mover)


def _added(node: Node, written: Quantization, rewriter: Rewriter) -> Answer:
    """Takes a sum with other bytes, rounded to bytes, into the product in front of it."""
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
            fused = _with_residual(node, written, own, other, act, rewriter)
            if fused is not None:
                return fused
    return None


def _with_residual(
    node: Node, written: Quantization, own: str, other: str, act: str, rewriter: Rewriter
) -> Answer:
    a, b = dequantized(own, rewriter), dequantized(other, rewriter)
    if a is None or b is None or a.views or b.views or a.scale is None or b.scale is None:
        return None
    product = rewriter.producer(a.source)
    types = rewriter.types
    if product is None or product.op not in _PRODUCTS or product.type.dtype not in BYTES:
        return None
    alone = rewriter.uses(a.source) == 1 and product.inputs[_RESIDUAL] is None
    shapes = types[a.source].shape == types[b.source].shape == node.type.shape
    if not alone or not shapes or types[b.source].dtype not in BYTES:
        return None
    known = [a.scale, a.zero, b.scale, b.zero, written.scale, written.zero]
    numbers = [number_of(n, rewriter) for n in known]
    if any(n is None for n in numbers) or numbers[4] == 0:
        return None
    a_scale, a_zero, b_scale, b_zero, step, y_zero = (np.float32(n) for n in numbers)
    inverse = step if written.inverted else np.float32(1)
    divisor = np.float32(1) if written.inverted else step
    low, high = (np.float32(n) - a_zero for n in LIMITS[product.type.dtype])
    if product.attrs["act"] == "relu":
        low = max(low, np.float32(0))
    factor = b_scale * inverse / divisor
    terms = (low, high, a_scale * inverse / divisor, factor, y_zero - b_zero * factor)
    zero = vector_of(float(y_zero), node.type.dtype, -1, node.type.rank, node, rewriter)
    if zero is None:
        return None
    inputs = list(product.inputs)
    inputs[_RESIDUAL] = b.source
    inputs[_TERMS] = rewriter.constant(
        "terms", TensorType("float32", (5,)), np.asarray(terms, "<f4").tobytes()
    )
    inputs[_Y_ZERO] = zero
    attrs: dict[str, Attr] = {"dtype": node.type.dtype, "act": act, "residual": 1}
    return _continued(node, product, inputs, **attrs)
