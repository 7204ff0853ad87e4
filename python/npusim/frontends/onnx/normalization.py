"""Normalizations: over batches, layers, groups, channels."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto

from npusim.frontends.onnx.builder import Builder, Tensor
from npusim.frontends.onnx.kinds import CARRIERS
from npusim.frontends.onnx.pointwise import softmax
from npusim.frontends.onnx.registry import Call, translation
from npusim.ir.symbolic import is_symbolic


@translation("BatchNormalization")
def _batch_norm(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor
) -> list[Tensor]:
    eps, momentum = call.float("epsilon", 1e-5), call.float("momentum", 0.9)
    if not call.int("training_mode"):
        return [x.op("batch_norm.default", scale, bias, mean, var, False, momentum, eps, False)]
    dims = [d for d in range(x.rank) if d != 1]
    shape = [-1 if d == 1 else 1 for d in range(x.rank)]
    shape[1] = x.shape[1]
    new_mean = x.op("mean.dim", dims)
    centred = x - new_mean.view(shape)
    new_var = (centred * centred).op("mean.dim", dims)
    y = centred * (new_var + eps).op("rsqrt.default").view(shape)
    y = y * scale.view(shape) + bias.view(shape)
    return [
        y.to(x.dtype, x.kind),
        mean * momentum + new_mean * (1 - momentum),
        var * momentum + new_var * (1 - momentum),
    ]


@translation("InstanceNormalization")
def _instance_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    eps = call.float("epsilon", 1e-5)
    return x.op("group_norm.default", x.shape[1], scale, bias, eps, False)


@translation("GroupNormalization")
def _group_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
    groups, eps = call.int("num_groups"), call.float("epsilon", 1e-5)
    if call.version >= 21 or scale.shape[0] == x.shape[1]:
        return x.op("group_norm.default", groups, scale, bias, eps, False)
    y = x.op("group_norm.default", groups, None, None, eps, False)
    each = x.shape[1] // groups
    shape = (1, groups, 1, *[1] * (x.rank - 2))
    split = y.view((x.shape[0], groups, each, *x.shape[2:]))
    return (split * scale.view(shape) + bias.view(shape)).view(x.shape)


@translation("LayerNormalization")
def _layer_norm(
    call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None
) -> list[Tensor | None]:
    axis, eps = call.int("axis", -1) % x.rank, call.float("epsilon", 1e-5)
    shape = x.shape[axis:]
    stash = CARRIERS[call.int("stash_type", TensorProto.FLOAT)]
    scale, bias = scale.expand(shape), None if bias is None else bias.expand(shape)
    y = x.op("layer_norm.default", list(shape), scale, bias, eps)
    if call.outputs == 1:
        return [y]
    wide, dims = x.to(stash), list(range(axis, x.rank))
    mean = wide.op("mean.dim", dims, True)
    centred = wide - mean
    variance = (centred * centred).op("mean.dim", dims, True)
    return [y, mean, (variance + eps).op("rsqrt.default")]


@translation("RMSNormalization")
def _rms_norm(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    axis = call.int("axis", -1) % x.rank
    shape = x.shape[axis:]
    return x.op("rms_norm.default", list(shape), scale.expand(shape), call.float("epsilon", 1e-5))


@translation("LpNormalization")
def _lp_norm(call: Call, x: Tensor) -> Tensor:
    axis, p = call.int("axis", -1), call.int("p", 2)
    norm = x.op("linalg_vector_norm.default", p, [axis], True)
    zero = norm.equals(0.0)
    return call.graph.op("where.ScalarSelf", zero, 0.0, x / norm)


@translation("MeanVarianceNormalization")
def _mean_variance(call: Call, x: Tensor) -> Tensor:
    axes = call.ints("axes", [0, 2, 3]) or []
    centred = x - x.op("mean.dim", axes, True)
    spread = (centred * centred).op("mean.dim", axes, True).op("sqrt.default")
    return centred / (spread + 1e-9)


@translation("LRN")
def _lrn(call: Call, x: Tensor) -> Tensor:
    size = call.int("size")
    alpha, beta = call.float("alpha", 1e-4), call.float("beta", 0.75)
    before = (size - 1) // 2
    behind = [0, 0] * (x.rank - 2)
    wide = (x * x).op("constant_pad_nd.default", [*behind, before, size - 1 - before], 0.0)
    total = wide.slice(1, 0, x.shape[1])
    for i in range(1, size):
        total = total + wide.slice(1, i, i + x.shape[1])
    root = (total * (alpha / size) + call.float("bias", 1.0)).op("pow.Tensor_Scalar", beta)
    return x / root


@translation("AffineGrid")
def _affine_grid(call: Call, theta: Tensor, size: Tensor) -> Tensor:
    extents = size.ints("the size of AffineGrid")
    n, spatial = extents[0], extents[2:]
    align = call.int("align_corners")
    lines = [np.linspace(-1, 1, d) if align else (np.arange(d) * 2 + 1) / d - 1 for d in spatial]
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(mesh), np.ones(spatial)], -1).reshape(-1, len(spatial) + 1)
    table = call.graph.table(points, theta)
    grid = table.op("matmul.default", theta.permute((0, 2, 1)))
    return grid.view((n, *spatial, len(spatial)))


@translation("Attention")
def _attention(
    call: Call,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None = None,
    past_k: Tensor | None = None,
    past_v: Tensor | None = None,
    lengths: Tensor | None = None,
) -> list[Tensor | None]:
    graph, flat = call.graph, q.rank == 3
    if flat:
        q, k, v = (
            _heads(t, call.int(n)) for t, n in
            ((q, "q_num_heads"), (k, "kv_num_heads"), (v, "kv_num_heads"))
        )  # fmt: skip
    past = 0 if past_k is None else past_k.shape[2]
    if past_k is not None and past_v is not None:
        k = graph.op("cat.default", [past_k, k], 2)
        v = graph.op("cat.default", [past_v, v], 2)
    present = (k, v)
    rows, columns = q.shape[2], k.shape[2]
    scale = call.float("scale", 1 / math.sqrt(q.shape[-1]))
    repeats = q.shape[1] // k.shape[1]
    if repeats > 1:
        k, v = (_repeated(t, repeats) for t in (k, v))
    bias = _bias(call, q, mask, lengths, (rows, columns, past))
    cap, mode = call.float("softcap"), call.int("qk_matmul_output_mode")
    plain = q.dtype != "float64"
    if plain and cap == 0.0 and call.outputs < 4 and "softmax_precision" not in call.attrs:
        y = q.op("scaled_dot_product_attention.default", k, v, bias, 0.0, False, scale=scale)
        return [_joined(y) if flat else y, *present]
    root = math.sqrt(scale)
    product = (q * root).op("matmul.default", (k * root).permute((0, 1, 3, 2)))
    capped = product
    if cap:
        capped = (product / cap).op("tanh.default") * cap
    masked = capped if bias is None else capped + bias
    shown = {0: product, 1: capped, 2: masked}
    wide = masked
    if "softmax_precision" in call.attrs:
        wide = masked.to(CARRIERS[call.int("softmax_precision")])
    weights = softmax(wide, -1)
    if bias is not None:  # a query that may see nothing gets zeros
        blind = bias.op("amax.default", [-1], True).equals(float("-inf"))
        weights = graph.op("where.ScalarSelf", blind, 0.0, weights)
    weights = weights.to(q.dtype, q.kind)
    y = weights.op("matmul.default", v)
    return [_joined(y) if flat else y, *present, shown.get(mode, weights)]


def _heads(x: Tensor, heads: int) -> Tensor:
    n, length, width = x.shape
    return x.view((n, length, heads, width // heads)).permute((0, 2, 1, 3))


def _joined(y: Tensor) -> Tensor:
    n, heads, length, width = y.shape
    return y.permute((0, 2, 1, 3)).view((n, length, heads * width))


def _repeated(x: Tensor, times: int) -> Tensor:
    n, heads, length, width = x.shape
    wide = x.view((n, heads, 1, length, width)).expand((n, heads, times, length, width))
    return wide.view((n, heads * times, length, width))


def _bias(
    call: Call,
    q: Tensor,
    mask: Tensor | None,
    lengths: Tensor | None,
    extents: tuple[int, int, int],
) -> Tensor | None:
    """Returns what is added to the scores: the mask, causality, lengths of keys; or None."""
    _, columns, _ = extents
    graph = call.graph
    allowed: Tensor | None = None
    bias: Tensor | None = None
    if mask is not None and mask.shape[-1] < columns:
        fill = 0.0 if mask.kind == TensorProto.BOOL else float("-inf")
        short = [0, columns - mask.shape[-1]]
        if mask.kind == TensorProto.BOOL:
            mask = mask.to("int32").op("constant_pad_nd.default", short, 0)
            mask = mask.op("ne.Scalar", 0)
        else:
            mask = mask.op("constant_pad_nd.default", short, fill)
    if mask is not None and mask.kind == TensorProto.BOOL:
        allowed = mask
    elif mask is not None:
        bias = mask.to(q.dtype, q.kind)
    if call.int("is_causal"):
        allowed = _both(allowed, _window(call, lengths, extents, None, 0))
    left, right = call.int("left_window_size", -1), call.int("right_window_size", -1)
    if left >= 0 or right >= 0:
        sides = (left if left >= 0 else None, right if right >= 0 else None)
        allowed = _both(allowed, _window(call, lengths, extents, *sides))
    if lengths is not None:
        line = graph.line(columns)
        valid = graph.op("lt.Tensor", line, lengths.to("int64").view((lengths.shape[0], 1, 1, 1)))
        allowed = _both(allowed, valid)
    if allowed is None:
        return bias
    zeros = graph.full((), 0.0, q.dtype)
    hidden = graph.full((), float("-inf"), q.dtype)
    choice = graph.op("where.self", allowed, zeros, hidden)
    return choice if bias is None else bias + choice


def _window(
    call: Call,
    lengths: Tensor | None,
    extents: tuple[int, int, int],
    left: int | None,
    right: int | None,
) -> Tensor:
    """Returns which keys each query may see: so many before its own position, and behind it."""
    rows, columns, past = extents
    graph = call.graph
    if is_symbolic(extents):
        return _window_of_sizes(graph, lengths, extents, left, right)
    row, column = np.arange(rows).reshape(-1, 1), np.arange(columns)
    if lengths is None:
        behind = row + past - column
        seen = np.ones((rows, columns), bool)
        seen &= True if left is None else behind <= left
        seen &= True if right is None else -behind <= right
        return graph.known(seen)
    offset = lengths.to("int64").view((lengths.shape[0], 1, 1, 1)) - rows
    return _within(offset + graph.known(row - column), left, right)


def _window_of_sizes(
    graph: Builder,
    lengths: Tensor | None,
    extents: tuple[int, int, int],
    left: int | None,
    right: int | None,
) -> Tensor:
    """Returns the same where the extents are symbolic: the positions are computed at the run."""
    rows, columns, past = extents
    distance = graph.line(rows).view((rows, 1)) + past - graph.line(columns)
    if lengths is not None:
        distance = distance - past + lengths.to("int64").view((lengths.shape[0], 1, 1, 1)) - rows
    return _within(distance, left, right)


def _within(distance: Tensor, left: int | None, right: int | None) -> Tensor:
    """Returns where keys are at most `left` after a query, and `right` before it."""
    sides = [] if left is None else [distance.op("le.Scalar", left)]
    if right is not None:
        sides.append(distance.op("ge.Scalar", -right))
    return sides[0] if len(sides) == 1 else _both(sides[0], sides[1])


def _both(x: Tensor | None, y: Tensor) -> Tensor:
    return y if x is None else x.op("logical_and.default", y)
