"""Attention over groups of heads, with the rotation and the cache of keys that decoders have.

Owns how GroupQueryAttention's lengths, positions and sums of scores read. Formulas:
docs/ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

import math

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.fused_attention import heads_apart, heads_joined
from npusim.frontends.onnx.fusions import DOMAIN
from npusim.frontends.onnx.registry import Call, translation


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


# Of packed batches the positions say all; ONNX Runtime scales nothing.
@translation("RotaryEmbedding", domain=DOMAIN, hints=("scale", "is_packed_batching"))
def _rotary(call: Call, x: Tensor, places: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    flat, size = x.rank == 3, call.int("rotary_embedding_dim")
    heads = call.int("num_heads")
    if flat:
        width = x.shape[2] // heads if heads else (size or 2 * cos.shape[-1])
        x = heads_apart(x, x.shape[2] // width)
    if places.type.numel == 1 and places.rank == 1:  # where the first of all begins
        line = call.graph.line(x.shape[2]).view((1, x.shape[2]))
        places = places.to("int64").view((1, 1)) + line
    y = _rotated(x, cos, sin, places.to("int64"), bool(call.int("interleaved")))
    return heads_joined(y) if flat else y


@translation("GroupQueryAttention", domain=DOMAIN, hints=("qk_norm_epsilon",))
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
    positions: Tensor | None = None,
    added: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
) -> list[Tensor | None]:
    """Keys and values go into the cache after what it holds: `last` is where the newest one of
    each of the batch stands, counted from the start."""
    heads, groups = call.int("num_heads"), call.int("kv_num_heads")
    if k_scale is not None or v_scale is not None:
        raise ExportError("a cache of codes is not read.")
    if k is None or v is None:
        width = q.shape[2] // (heads + 2 * groups)
        parts = [heads * width, groups * width, groups * width]
        q, k, v = call.graph.ops("split_with_sizes.default", q, parts, 2)
    q, k, v = heads_apart(q, heads), heads_apart(k, groups), heads_apart(v, groups)
    if q_norm is not None and k_norm is not None:
        eps = call.float("qk_norm_epsilon", 1e-6)
        q = q.op("rms_norm.default", [q.shape[3]], q_norm, eps)
        k = k.op("rms_norm.default", [k.shape[3]], k_norm, eps)
    batch, length = q.shape[0], q.shape[2]
    line = call.graph.line(length).view((1, length))
    held = 0 if past_k is None else past_k.shape[2]
    if held:
        places = last.to("int64").view((batch, 1)) + 1 - length + line
    else:
        places = line.expand((batch, length))
    if call.int("do_rotary") and cos is not None and sin is not None:
        turn = bool(call.int("rotary_interleaved"))
        rows = places if positions is None else _positions(positions, line, bool(held))
        q, k = (_rotated(t, cos, sin, rows, turn) for t in (q, k))
    if past_k is not None and past_v is not None and held:
        room = max(total.ints("the total length of GroupQueryAttention")[0], held)
        k, v = (_appended(old, new, places, room) for old, new in ((past_k, k), (past_v, v)))
    hidden = _hidden(call, q, k, places, last)
    return [_grouped(call, q, k, v, hidden, added, sinks), k, v]


def _positions(positions: Tensor, line: Tensor, held: bool) -> Tensor:
    """Returns which rows of the tables turn queries and keys: of a prompt only the first position
    counts."""
    rows = positions.to("int64")
    return rows if held else rows.slice(0, 0, 1).slice(1, 0, 1) + line


def _grouped(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    added: Tensor | None,
    sinks: Tensor | None,
) -> Tensor:
    """Returns attention whose scores may have a cap, and whose softmax may have a further term."""
    scale = call.float("scale") or 1 / math.sqrt(q.shape[-1])
    cap, smooth = call.float("softcap"), call.int("smooth_softmax") or sinks is not None
    if not cap and not smooth:
        bias = hidden if added is None else hidden + added.slice(3, 0, k.shape[2])
        y = q.op(
            "scaled_dot_product_attention.default", k, v, bias, 0.0, False, scale=scale,
            enable_gqa=k.shape[1] < q.shape[1],
        )  # fmt: skip
        return heads_joined(y)
    k, v = (_repeated(t, q.shape[1]) for t in (k, v))
    scores = q.op("matmul.default", k.permute((0, 1, 3, 2))) * scale
    if cap:
        scores = (scores / cap).op("tanh.default") * cap
    scores = scores + hidden
    scores = scores if added is None else scores + added.slice(3, 0, k.shape[2])
    if smooth:
        each = (*scores.shape[:3], 1)
        sink = q.graph.full((1,), 0.0, q.dtype) if sinks is None else sinks.view((1, -1, 1, 1))
        scores = q.graph.op("cat.default", [scores, sink.expand(each)], 3)
    weights = scores.op("softmax.int", 3).slice(3, 0, k.shape[2])
    return heads_joined(weights.op("matmul.default", v))


def _repeated(x: Tensor, heads: int) -> Tensor:
    """Returns a head of keys or values for each head of queries."""
    batch, groups, length, width = x.shape
    wide = x.view((batch, groups, 1, length, width))
    wide = wide.expand((batch, groups, heads // groups, length, width))
    return wide.op("reshape.default", [batch, heads, length, width])


def _appended(old: Tensor, new: Tensor, places: Tensor, room: int) -> Tensor:
    """Returns a cache of `room` places with new rows at theirs."""
    wide = old.op("constant_pad_nd.default", [0, 0, 0, room - old.shape[2]], 0.0)
    index = places.view((places.shape[0], 1, places.shape[1], 1)).expand(new.shape)
    return wide.op("scatter.src", 2, index, new)


def _hidden(call: Call, q: Tensor, k: Tensor, places: Tensor, last: Tensor) -> Tensor:
    """Returns what hides keys from each query: later ones, and those before the window; or, where
    attention looks both ways, those that there are not."""
    batch, length, columns = q.shape[0], q.shape[2], k.shape[2]
    own = places.view((batch, 1, length, 1))
    line = call.graph.line(columns)
    size = call.int("local_window_size", -1)
    if not call.int("causal", 1):
        seen = call.graph.op("le.Tensor", line, last.to("int64").view((batch, 1, 1, 1)))
    else:
        seen = call.graph.op("le.Tensor", line, own)
    if size >= 0:
        seen = seen.op("logical_and.default", line.op("gt.Tensor", own - size))
    none, hidden = (call.graph.full((), value, q.dtype) for value in (0.0, -math.inf))
    return call.graph.op("where.self", seen, none, hidden)
