"""Attention as ONNX Runtime's optimizers write it: with projections, caches, rotation, lengths.

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


def _heads(x: Tensor, heads: int) -> Tensor:
    batch, length, width = x.shape
    return x.view((batch, length, heads, width // heads)).permute((0, 2, 1, 3))


def _joined(y: Tensor) -> Tensor:
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
    return _joined(y)


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

    It holds a length for each of the batch, or 0 and 1 for each key, or for each key of a query.
    """
    if mask is None:
        return None
    batch, columns = q.shape[0], k.shape[2]
    if mask.rank == 1:
        if mask.shape[0] != batch:
            raise ExportError("a mask of starts and ends has no meaning here.")
        line = call.graph.line(columns)
        seen = call.graph.op("lt.Tensor", line, mask.to("int64").view((batch, 1, 1, 1)))
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
    widths = call.ints("qkv_hidden_sizes") or [weight.shape[1] // 3] * 3
    projected = x.op("matmul.default", weight)
    projected = projected if bias is None else projected + bias
    parts = call.graph.ops("split_with_sizes.default", projected, widths, 2)
    q, k, v = (_heads(part, call.int("num_heads")) for part in parts)
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
    q = _heads(q, heads)
    k, v = (_heads(t, heads) if t.rank == 3 else t for t in (k, v))
    if past_k is not None and past_v is not None:
        k = call.graph.op("cat.default", [past_k, k], 2)
        v = call.graph.op("cat.default", [past_v, v], 2)
    total = _sum(_masked(call, mask, q, k), added)
    if call.int("unidirectional"):
        total = _sum(total, _causal(call, q, k))
    return [_attended(call, q, k, v, total), k, v]


# ---- rotation ----


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, places: Tensor, interleaved: bool) -> Tensor:
    """Rotates [batch, heads, length, width] by rows of tables [positions, width / 2] or less."""
    half, width = cos.shape[-1], x.shape[-1]
    c, s = (t.op("index.Tensor", [places]) for t in (cos, sin))  # [batch, length, half]
    c, s = (t.view((t.shape[0], 1, *t.shape[1:])) for t in (c, s))
    turned, rest = x.slice(3, 0, 2 * half), x.slice(3, 2 * half, width)
    if interleaved:
        pairs = turned.view((*turned.shape[:3], half, 2))
        a, b = (pairs.op("select.int", 4, i) for i in (0, 1))
        mixed = x.graph.op("stack.default", [a * c - b * s, b * c + a * s], 4)
        result = mixed.view(turned.shape)
    else:
        a, b = turned.slice(3, 0, half), turned.slice(3, half, 2 * half)
        result = x.graph.op("cat.default", [a * c - b * s, b * c + a * s], 3)
    return x.graph.op("cat.default", [result, rest], 3) if 2 * half < width else result


@translation("RotaryEmbedding", domain=DOMAIN)
def _rotary(call: Call, x: Tensor, places: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    flat, size = x.rank == 3, call.int("rotary_embedding_dim")
    heads = call.int("num_heads")
    if flat:
        width = x.shape[2] // heads if heads else (size or 2 * cos.shape[-1])
        x = _heads(x, x.shape[2] // width)
    if places.type.numel == 1 and places.rank == 1:  # where the first of all begins
        line = call.graph.line(x.shape[2]).view((1, x.shape[2]))
        places = places.to("int64").view((1, 1)) + line
    y = _rotated(x, cos, sin, places.to("int64"), bool(call.int("interleaved")))
    return _joined(y) if flat else y


@translation("GroupQueryAttention", domain=DOMAIN)
def _group_query(
    call: Call,
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    past_k: Tensor | None,
    past_v: Tensor | None,
    last: Tensor,
    total: Tensor,
    cos: Tensor | None = None,
    sin: Tensor | None = None,
    *more: Tensor | None,
) -> list[Tensor | None]:
    """Keys and values go into the cache after what it holds: `last` is where the newest one of
    each of the batch stands, counted from the start."""
    heads, groups = call.int("num_heads"), call.int("kv_num_heads")
    if any(t is not None for t in more) or call.float("softcap") or call.int("smooth_softmax"):
        raise ExportError("a bias, positions of its own, or a cap of scores are not read.")
    if k is None or v is None:
        width = q.shape[2] // (heads + 2 * groups)
        parts = [heads * width, groups * width, groups * width]
        q, k, v = call.graph.ops("split_with_sizes.default", q, parts, 2)
    q, k, v = _heads(q, heads), _heads(k, groups), _heads(v, groups)
    batch, length = q.shape[0], q.shape[2]
    line = call.graph.line(length).view((1, length))
    held = 0 if past_k is None else past_k.shape[2]
    if held:
        places = last.to("int64").view((batch, 1)) + 1 - length + line
    else:
        places = line.expand((batch, length))
    if call.int("do_rotary") and cos is not None and sin is not None:
        turn = bool(call.int("rotary_interleaved"))
        q, k = (_rotated(t, cos, sin, places, turn) for t in (q, k))
    if past_k is not None and past_v is not None and held:
        room = max(total.ints("the total length of GroupQueryAttention")[0], held)
        k, v = (_appended(old, new, places, room) for old, new in ((past_k, k), (past_v, v)))
    return [_attended(call, q, k, v, _window(call, q, k, places), groups < heads), k, v]


def _appended(old: Tensor, new: Tensor, places: Tensor, room: int) -> Tensor:
    """Returns a cache of `room` places with new rows at theirs."""
    wide = old.op("constant_pad_nd.default", [0, 0, 0, room - old.shape[2]], 0.0)
    index = places.view((places.shape[0], 1, places.shape[1], 1)).expand(new.shape)
    return wide.op("scatter.src", 2, index, new)


def _window(call: Call, q: Tensor, k: Tensor, places: Tensor) -> Tensor:
    """Returns what hides later keys, and those before the window, from each query."""
    batch, length, columns = q.shape[0], q.shape[2], k.shape[2]
    own = places.view((batch, 1, length, 1))
    line = call.graph.line(columns)
    seen = call.graph.op("le.Tensor", line, own)
    size = call.int("local_window_size", -1)
    if size >= 0:
        seen = seen.op("logical_and.default", line.op("gt.Tensor", own - size))
    none, hidden = (call.graph.full((), value, q.dtype) for value in (0.0, -math.inf))
    return call.graph.op("where.self", seen, none, hidden)
