"""Scaled dot-product attention: ONNX's Attention where the opset has it, else its formula."""

from __future__ import annotations

import math

import torch

from npusim.exporters.onnx.matmul import matmul
from npusim.exporters.onnx.registry import Call, Tensor, translation
from npusim.ir.symbolic import is_symbolic

_SINCE = 23  # the opset of Attention


@translation("aten.scaled_dot_product_attention.default")
def _attention(
    call: Call, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
) -> Tensor:
    scale = call.attr("scale")
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    causal = bool(call.attr("is_causal"))
    if query.rank == 4:
        key, value = (_of_batch(call, t, query.shape[0]) for t in (key, value))
    if call.opset >= _SINCE and query.rank == 4 and (mask is None or mask.rank == 4):
        if mask is not None:  # broadcast over heads and batch alone is the operator's
            mask = call.expand(mask, (*mask.shape[:2], query.shape[2], key.shape[2]))
        return call.op(
            "Attention", query, key, value, mask, shape=call.type.shape, scale=scale,
            is_causal=int(causal),
        )  # fmt: skip
    if query.rank == 4 and query.shape[1] != key.shape[1]:
        key, value = (_repeated(call, t, query.shape[1]) for t in (key, value))
    turned = call.transpose(key, (*range(key.rank - 2), -1, -2))
    scaled = call.op("Mul", query, call.const(scale, query.dtype))
    scores = matmul(call, scaled, turned)
    if causal and is_symbolic(scores.shape[-2:]):
        rows, columns = (call.range(size) for size in scores.shape[-2:])
        rows = call.reshape(rows, (*rows.shape, 1))
        mask = call.broadcast("GreaterOrEqual", rows, columns, dtype="bool")
    elif causal:
        mask = call.builder.constant(torch.ones(scores.shape[-2:]).tril().bool())
    if mask is not None and mask.dtype == "bool":
        never = call.const(-math.inf, scores.dtype)
        scores = call.broadcast("Where", mask, scores, never, dtype=scores.dtype)
    elif mask is not None:
        scores = call.broadcast("Add", scores, mask)
    return matmul(call, call.op("Softmax", scores, axis=-1), value)


def _of_batch(call: Call, x: Tensor, batch: int) -> Tensor:
    """Returns keys or values that all of a batch share, once for each."""
    return call.expand(x, (batch, *x.shape[1:]))


def _repeated(call: Call, x: Tensor, heads: int) -> Tensor:
    """Returns keys or values of few heads, one for each head of the query."""
    batch, few, *rest = x.shape
    one = call.reshape(x, (batch, few, 1, *rest))
    each = call.expand(one, (batch, few, heads // few, *rest))
    return call.reshape(each, (batch, heads, *rest))
