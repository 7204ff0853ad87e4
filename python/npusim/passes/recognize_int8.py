"""Makes products of quantized values products of their bytes, and keeps bytes where it can.

Frontends write quantized models in floats, or in wide integers: bytes are converted, shifted,
scaled, multiplied, and what comes out is rounded to bytes again. Where the target multiplies bytes,

* a convolution or product of two values that bytes stand for becomes `npu.int8_conv` or
  `npu.int8_matmul`, whose sums are exact, with the product of both scales;
* a convolution may be a transposed one, where it is plain ones by phases and floats are to be had;
* a factor, a bias of int32 or of floats, a ReLU and a rounding to bytes or, where floats are to
  be had, to bfloat16 after it join it, and so does a sum with other bytes that is rounded to
  bytes, or any other activation that is; a clamp before a rounding goes where bytes saturate at
  its bounds anyway;
* bytes that are moved, joined, or the largest of which is taken, between two equal quantizations
  stay bytes;
* for a described machine, sums of bytes with others, their means over windows, and other
  quantizations of them are products with ones, too: it may have no floats, and it says how sums
  become bytes.

Floats that are rounded to bytes differ from the written-out form where they lie within float32's
precision of the middle between two bytes, as the sums are exact now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from npusim.abi.requantization import FLOAT32
from npusim.analysis.int8_elements import elementwise
from npusim.analysis.int8_epilogues import (
    activated,
    added,
    biased,
    continued,
    rectified,
    rounded,
    scaled,
    unclamped,
)
from npusim.analysis.int8_operands import (
    BIAS,
    PRODUCTS,
    RESIDUAL,
    SCALE,
    is_uniform,
    operands_of,
    pair_of,
    scale_of_one,
)
from npusim.analysis.match import Operand, of_node
from npusim.analysis.quantized_values import (
    Quantization,
    array_of,
    bytes_of,
    dequantized,
    number_of,
    quantization,
    same,
)
from npusim.analysis.shapes import VIEWS, ints
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewrite import drop_dead
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import TensorType
from npusim.ops.conv_phases import has_phases
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.int8_reference import BYTES, INT8_CONV, INT8_MATMUL
from npusim.targets.target_config import TargetConfig

_MATMULS = ("aten.matmul.default", "aten.mm.default", "aten.bmm.default")
_MOVERS = frozenset(("aten.max_pool2d.default", "aten.cat.default"))


def recognize_int8(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with products of bytes."""
    if not target.multiplies_bytes:
        return graph
    rule = FLOAT32 if target.npu is None else target.npu.requantize.rule
    activations = target.epilogue_activations if target.npu is None else ()
    changed = rewrite(graph, partial(_visit, rule, target.npu is not None, activations))
    if changed == graph:
        return graph
    changed = drop_dead(changed)  # constants of attempts that were given up
    return graph if changed == graph else changed


def _visit(
    rule: str, bytes_alone: bool, activations: Sequence[str], node: Node, rewriter: Rewriter
) -> Answer:
    if len(node.outputs) != 1:
        return None
    if node.op == "npu.conv":
        return _convolution(node, bytes_alone, rewriter)
    if node.op == "npu.linear" or node.op in _MATMULS:
        return _product(node, rewriter)
    if node.op == "aten._to_copy.default":
        return _conversion(node, rule, bytes_alone, activations, rewriter)
    if node.type.dtype != "float32":
        return None
    if (factors := of_node(node, "mul", rewriter)) is not None:
        return scaled(node, factors, rewriter)
    if (summands := of_node(node, "add", rewriter)) is not None:
        return biased(node, summands, rewriter)
    if of_node(node, "relu", rewriter) is not None:
        return rectified(node, rewriter)
    return None


def _product(node: Node, rewriter: Rewriter) -> Answer:
    x, w = node.inputs[:2]
    assert x is not None and w is not None
    types = rewriter.types
    if not types[x].rank or types[w].rank < 2 or _has_epilogue(node):
        return None
    linear = node.op == "npu.linear"
    rank = types[w].rank
    pair = pair_of(x, w, 0 if linear else rank - 1, node, rewriter)
    if pair is None or (rank > 2 and not is_uniform(pair, rewriter)):
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
    inputs = operands_of(pair, bias, node, rewriter)
    attrs = {"dtype": "float32", **NO_EPILOGUE}
    return None if inputs is None else become(node, INT8_MATMUL, inputs, attrs)


def _has_epilogue(node: Node) -> bool:
    return node.op == "npu.linear" and (node.attrs["act"] != "copy" or node.attrs["residual"] != 0)


def _convolution(node: Node, bytes_alone: bool, rewriter: Rewriter) -> Answer:
    x, w, bias, residual = node.inputs
    assert x is not None and w is not None
    plain = node.attrs["act"] == "copy" and residual is None
    transposed = bool(node.attrs["transposed"])
    if not plain or node.type.dtype != "float32":
        return None
    if transposed and (bytes_alone or not has_phases(node, rewriter.types)):
        return None
    pair = pair_of(x, w, int(transposed), node, rewriter)
    if pair is None:
        return None
    names = ("stride", "padding", "padding_back", "dilation", "groups")
    attrs: dict[str, Attr] = {n: node.attrs[n] for n in names}
    if transposed:
        attrs |= {"transposed": True, "padding_back": _cut_behind(node)}
        shape = rewriter.types[w].shape
        dims = (1, 0, *range(2, len(shape)))
        type = TensorType(rewriter.types[pair.w].dtype, tuple(shape[d] for d in dims))
        turned = rewriter.emit("aten.permute.default", (pair.w,), type, {"dims": dims}, like=node)
        pair = replace(pair, w=turned)
    inputs = operands_of(pair, bias, node, rewriter)
    attrs |= {"dtype": "float32", **NO_EPILOGUE}
    return None if inputs is None else become(node, INT8_CONV, inputs, attrs)


def _cut_behind(node: Node) -> tuple[int, ...]:
    rank = node.type.rank - 2
    behind, added = (ints(node, name, rank) for name in ("padding_back", "output_padding"))
    return tuple(b - a for b, a in zip(behind, added, strict=True))


def _conversion(
    node: Node, rule: str, bytes_alone: bool, activations: Sequence[str], rewriter: Rewriter
) -> Answer:
    x = node.inputs[0]
    assert x is not None
    if node.type.dtype in BYTES:
        written = quantization(node, rewriter)
        if written is None:
            return None
        written = unclamped(node, written, rewriter)
        return (
            _kept(node, written, rewriter)
            or rounded(node, written, rule, rewriter)
            or added(node, written, rule, rewriter)
            or activated(node, written, activations, rewriter)
            or (elementwise(node, written, rule, rewriter) if bytes_alone else None)
        )
    kept = ("int32", "float32") if bytes_alone else ("int32", "float32", "bfloat16")
    if node.type.dtype not in kept or not rewriter.only_feeds(x, node):
        return None
    product = rewriter.producer(x)
    if product is None or product.op not in {*_MATMULS, *PRODUCTS}:
        return None
    if product.type.shape != node.type.shape:
        return None
    if node.type.dtype == "bfloat16":
        floats = product.op in PRODUCTS and product.type.dtype == "float32"
        return continued(node, product, product.inputs, dtype="bfloat16") if floats else None
    if product.op in _MATMULS and product.type.dtype == "int64":
        return _wide_product(node, product, rewriter)
    if product.op in PRODUCTS and product.type.dtype == "int32" and node.type.dtype == "float32":
        inputs = list(product.inputs)
        inputs[SCALE] = scale_of_one(rewriter)
        return continued(node, product, inputs, dtype="float32")
    if product.op == INT8_CONV and node.type.dtype == "int32" and _is_sum(product, rewriter):
        inputs = list(product.inputs)
        inputs[SCALE] = None
        return continued(node, product, inputs, dtype="int32")
    return None


def _is_sum(product: Node, rewriter: Rewriter) -> bool:
    """Tells whether a product's floats are the sums as they stand."""
    scale = product.inputs[SCALE]
    factor = None if scale is None else array_of(scale, rewriter)
    bare = all(product.inputs[i] is None for i in (BIAS, RESIDUAL))
    exact = factor is not None and bool(np.all(factor == 1))
    return bare and exact and product.attrs["act"] == "copy" and product.type.dtype == "float32"


def _wide_product(node: Node, product: Node, rewriter: Rewriter) -> Answer:
    """An int64 product of shifted bytes that is converted: the sums fit int32, or wrap with it."""
    x, w = product.inputs[:2]
    assert x is not None and w is not None
    rank = rewriter.types[w].rank
    if not rewriter.types[x].rank or rank < 2:
        return None
    pair = pair_of(x, w, rank - 1, node, rewriter)
    if pair is None or (rank > 2 and not is_uniform(pair, rewriter)):
        return None
    factor = array_of(pair.scale, rewriter)
    depth = rewriter.types[w].shape[-2]
    if factor is None or not np.all(factor == 1) or depth * 255 * 255 >= 2**31:
        return None
    scale = scale_of_one(rewriter) if node.type.dtype == "float32" else None
    inputs = (pair.x, pair.w, pair.x_zero, pair.w_zero, scale, *(None,) * 5)
    attrs = {"dtype": node.type.dtype, **NO_EPILOGUE}
    return become(node, INT8_MATMUL, inputs, attrs)


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
