"""Attention as ONNX Runtime's optimizers write it: with projections, caches, lengths.

Owns how the masks and caches of these operators read as scaled dot-product attention. Formulas:
docs/ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

import math

import numpy as np

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.fusions import DOMAIN
from npusim.frontends.onnx.registry import Call, translation
from npusim.ir.symbolic import is_symbolic


def heads_apart(x: Tensor, heads: int) -> Tensor:
    """Returns [batch, length, heads · width] as [batch, heads, length, width]."""
    batch, length, width = x.shape
    return x.view((batch, length, heads, width // heads)).permute((0, 2, 1, 3))


def heads_joined(y: Tensor) -> Tensor:
    """Returns [batch, heads, length, width] as [batch, length, heads · width]."""
    batch, heads, length, width = y.shape
    return y.permute((0, 2, 1, 3)).view((batch, length, heads * width))


def _attended(
    call: Call, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, shared: bool = False
) -> Tensor:
    scale = call.float("scale") or 1 / math.sqrt(q.shape[-1])
    y = q.op(
        "scaled_dot_product_attention.default", k, v, bias, 0.0, False, scale=scale,
        enable_gqa=shared,
    )  # fmt: skip
    return heads_joined(y)


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _causal(call: Call, q: Tensor, k: Tensor) -> Tensor:
    rows, columns = q.shape[2], k.shape[2]
    if is_symbolic((rows, columns)):
        graph = call.graph
        future = graph.line(columns) - (columns - rows) > graph.line(rows).view((rows, 1))
        none, low = (graph.full((), value, q.dtype) for value in (0.0, -math.inf))
        return graph.op("where.self", future, low, none).view((1, 1, rows, columns))
    hidden = ~np.tri(rows, columns, columns - rows, dtype=bool)
    table = np.where(hidden, np.float64(-np.inf), 0.0).reshape(1, 1, rows, columns)
    return call.graph.table(table, q)


def _masked(call: Call, mask: Tensor | None, q: Tensor, k: Tensor) -> Tensor | None:
    """Returns what a mask of tokens adds to the scores.

    It holds a length for each of the batch, or all ends and then all starts, or 0 and 1 for each
    key, or for each key of a query.
    """
    if mask is None:
        return None
    batch, columns = q.shape[0], k.shape[2]
    if mask.rank == 1:
        line, each = call.graph.line(columns), (batch, 1, 1, 1)
        if mask.shape[0] not in (batch, 2 * batch):
            raise ExportError("a mask of the lengths of packed sequences has no meaning here.")
        ends = mask.slice(0, 0, batch).to("int64").view(each)
        seen = call.graph.op("lt.Tensor", line, ends)
        if mask.shape[0] != batch:
            starts = mask.slice(0, batch, 2 * batch).to("int64").view(each)
            seen = seen.op("logical_and.default", call.graph.op("ge.Tensor", line, starts))
    else:
        shape = {2: (batch, 1, 1, columns), 3: (batch, 1, *mask.shape[1:])}.get(mask.rank)
        seen = (mask if shape is None else mask.view(shape)).op("ne.Scalar", 0)
    none = call.graph.full((), 0.0, q.dtype)
    filtered = call.graph.full((), call.float("mask_filter_value", -10000.0), q.dtype)
    return call.graph.op("where.self", seen, none, filtered)


@translation("Attention", domain=DOMAIN)
def _attention(
    call: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    past: Tensor | None = None,
    added: Tensor | None = None,
    length: Tensor | None = None,
) -> list[Tensor | None]:
    """Projects x to queries, keys and values at once; `past` and the second result hold both."""
    if call.int("do_rotary") or length is not None:
        raise ExportError("rotation, or a cache of a fixed length, inside Attention is not read.")
    projected = x.op("matmul.default", weight)
    projected = projected if bias is None else projected + bias
    return projected_attention(call, projected, mask, past, added)


def projected_attention(
    call: Call,
    projected: Tensor,
    mask: Tensor | None,
    past: Tensor | None,
    added: Tensor | None = None,
) -> list[Tensor | None]:
    """Returns the results of Attention for queries, keys and values side by side."""
    widths = call.ints("qkv_hidden_sizes") or [projected.shape[2] // 3] * 3
    parts = call.graph.ops("split_with_sizes.default", projected, widths, 2)
    q, k, v = (heads_apart(part, call.int("num_heads")) for part in parts)
    if past is not None:
        k, v = (
            call.graph.op("cat.default", [past.op("select.int", 0, i), t], 2)
            for i, t in enumerate((k, v))
        )
    present = call.graph.op("stack.default", [k, v], 0) if call.outputs > 1 else None
    total = _sum(_masked(call, mask, q, k), added)
    if call.int("unidirectional"):
        total = _sum(total, _causal(call, q, k))
    return [_attended(call, q, k, v, total), present]


@translation("MultiHeadAttention", domain=DOMAIN)
def _multi_head(
    call: Call,
    q: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    bias: Tensor | None = None,
    mask: Tensor | None = None,
    added: Tensor | None = None,
    past_k: Tensor | None = None,
    past_v: Tensor | None = None,
) -> list[Tensor | None]:
    """Queries, keys and values arrive projected; `bias` is of all three, one after another."""
    heads = call.int("num_heads")
    if k is None or v is None:
        raise ExportError("queries, keys and values packed into one tensor are not read.")
    if bias is not None:
        ends = np.cumsum([q.shape[-1], q.shape[-1], 0])
        q = q + bias.slice(0, 0, int(ends[0]))
        if k.rank == 3 and v.rank == 3:
            k = k + bias.slice(0, int(ends[0]), int(ends[1]))
            v = v + bias.slice(0, int(ends[1]), bias.shape[0])
    q = heads_apart(q, heads)
    k, v = (heads_apart(t, heads) if t.rank == 3 else t for t in (k, v))
    if past_k is not None and past_v is not None:
        k = call.graph.op("cat.default", [past_k, k], 2)
        v = call.graph.op("cat.default", [past_v, v], 2)
    total = _sum(_masked(call, mask, q, k), added)
    if call.int("unidirectional"):
        total = _sum(total, _causal(call, q, k))
    return [_attended(call, q, k, v, total), k, v]
