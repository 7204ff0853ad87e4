"""Scaled dot-product attention: one kernel over strided heads, masks and grouped queries.

`npu.cached_attention(q[b, h, t, d], k[b, g, s, d], v[b, g, s, dv], position[1])` attends the rows
of a cache that are in use: query i sees rows j <= position + i, and with `window` > 0 only the last
`window` of these. `softcap` c > 0 bounds the scaled scores: c * tanh(score / c).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt
from typing import TYPE_CHECKING

from npusim.errors import ShapeError, TargetConstraintError
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.rope import check_position, contiguous_rows

if TYPE_CHECKING:
    from torch import Tensor

_FLOATS = ("float32", "float16", "bfloat16")
_MOST_COMMANDS = 256  # of one node, for each of two dimensions that do not merge


def _four(view: View) -> View:
    """Returns q, k, v or y as [batch, heads, length, size]; leading dimensions may be absent."""
    while view.rank < 4:
        view = view.unsqueeze(0)
    return view


def emit_attention(
    low: Lowering,
    q: View,
    k: View,
    v: View,
    y: View,
    *,
    scale: Attr,
    causal: bool,
    mask: View | None = None,
    position: View | None = None,
    window: int = 0,
    softcap: float = 0.0,
) -> None:
    """Emits one `attention` command; the kernel reads rows of contiguous elements."""
    if y.numel == 0:
        return
    q, k, v = (contiguous_rows(low, _four(x)) for x in (q, k, v))
    y = contiguous_rows(low, _four(y))
    if mask is not None:
        mask = _four(mask).expand((q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
        if mask.dtype not in ("bool", "float32", q.dtype):
            mask = low.cast(mask, "float32")
    params: dict[str, Param] = {
        "batch": q.shape[0],
        "heads": q.shape[1],
        "kv_heads": k.shape[1],
        "q_len": q.shape[2],
        "kv_len": k.shape[2],
        "head_dim": q.shape[3],
        "v_dim": v.shape[3],
        "q_strides": q.strides[:3],
        "k_strides": k.strides[:3],
        "v_strides": v.strides[:3],
        "y_strides": y.strides[:3],
        "mask_strides": mask.strides if mask is not None else [0] * 4,
        "causal_offset": 0,
        "window": window,
        "has_mask": int(mask is not None),
        "causal": int(causal),
        "has_position": int(position is not None),
        "scale": float(scale) if isinstance(scale, (int, float)) else 1 / sqrt(q.shape[3]),
        "softcap": softcap,
        **codes(dtype=q.dtype, mask_dtype=mask.dtype if mask is not None else q.dtype),
    }
    low.emit("attention", params, [x for x in (q, k, v, mask, position) if x is not None], [y])


def _lower_attention(node: Node, low: Lowering) -> None:
    q, k, v, mask = (*low.inputs(node), None)[:4]
    assert q is not None and k is not None and v is not None
    y = _four(low.result(node.output, strided=True))
    q, k, v = _four(q), _four(k), _four(v)
    groups = max(k.shape[-3], v.shape[-3])
    *batch, heads = y.shape[:-2]
    q = q.expand((*batch, heads, *q.shape[-2:]))
    k, v = (x.expand((*batch, groups, *x.shape[-2:])) for x in (k, v))
    if mask is not None:
        mask = mask.expand((*batch, heads, q.shape[-2], k.shape[-2]))
    for part in _over_one_batch((q, k, v, y, mask)):
        *rows, part_of_mask = part
        causal, scale = bool(node.attrs.get("is_causal", False)), node.attrs.get("scale")
        emit_attention(low, *rows, mask=part_of_mask, causal=causal, scale=scale)  # type: ignore[arg-type]


def _over_one_batch(views: tuple[View | None, ...]) -> Iterator[tuple[View | None, ...]]:
    """Yields views of four dimensions that cover views of more, which agree in all but the last 3.

    The first two dimensions are merged where all operands step through them uniformly; elsewhere
    each entry of the first has a command of its own.
    """
    y = views[3]
    assert y is not None
    if y.rank == 4:
        yield views
        return
    merged = [
        None if v is None else v.reshape((v.shape[0] * v.shape[1], *v.shape[2:])) for v in views
    ]
    if all((a is None) == (b is None) for a, b in zip(views, merged, strict=True)):
        yield from _over_one_batch(tuple(merged))
        return
    if y.shape[0] > _MOST_COMMANDS:
        raise TargetConstraintError(f"attention over {y.shape[0]} batches that do not merge")
    for i in range(y.shape[0]):
        yield from _over_one_batch(tuple(None if v is None else v.select(0, i) for v in views))


def _lower_cached_attention(node: Node, low: Lowering) -> None:
    q, k, v, position = low.inputs(node)
    assert q is not None and k is not None and v is not None
    softcap, window = node.attrs["softcap"], node.attrs["window"]
    assert isinstance(softcap, (int, float)) and isinstance(window, int)
    emit_attention(
        low,
        q,
        k,
        v,
        low.result(node.output, strided=True),
        scale=node.attrs["scale"],
        causal=True,
        position=position,
        window=window,
        softcap=float(softcap),
    )


def reference_cached_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    position: Tensor,
    /,
    *,
    scale: float,
    softcap: float,
    window: int,
) -> Tensor:
    """Computes `npu.cached_attention`; rows that are not in use may hold anything."""
    import torch

    start, length, group = int(position), q.shape[2], q.shape[1] // k.shape[1]
    if not 0 <= start <= k.shape[2] - length:
        raise ShapeError(
            f"position {start} is outside the cache: it takes 0 to {k.shape[2] - length}."
        )
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    keys, values = (x[:, :, : start + length].to(wide).repeat_interleave(group, 1) for x in (k, v))
    scores = q.to(wide) @ keys.transpose(2, 3) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    row = torch.arange(start, start + length, device=q.device).unsqueeze(1)
    key = torch.arange(start + length, device=q.device)
    hidden = (key > row) | (key <= row - window) if window else key > row
    return (scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values).to(q.dtype)


def infer_cached_attention(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    position: TensorType,
    /,
    *,
    scale: float,
    softcap: float,
    window: int,
) -> TensorType:
    """Returns the type of `npu.cached_attention`; ShapeError when the operands do not fit."""
    op = "npu.cached_attention"
    check_position(op, position)
    if not q.rank == k.rank == v.rank == 4 or not q.dtype == k.dtype == v.dtype:
        raise ShapeError(f"{op}: q is {q}, k {k}, v {v}; expected 4 dimensions and one dtype.")
    batch, heads, length, dim = q.shape
    groups = k.shape[1]
    fits = k.shape == (batch, groups, k.shape[2], dim) and v.shape[:3] == k.shape[:3]
    if not fits or not groups or heads % groups or length > k.shape[2]:
        raise ShapeError(
            f"{op}: q is {q}, k {k}, v {v}; expected the same batch and head size, heads in whole "
            "groups, and a cache that takes the queries."
        )
    if softcap < 0 or window < 0:
        raise ShapeError(f"{op}: softcap {softcap} and window {window} must not be negative.")
    return TensorType(q.dtype, (batch, heads, length, v.shape[3]))


def _supported(node: Node, graph: Graph) -> str | None:
    q, k, v = (graph.types[i] for i in node.inputs[:3] if i is not None)
    if node.attrs.get("dropout_p", 0.0):
        return "attention dropout; call model.eval() before extraction"
    if (why := _unsupported_dtype(q)) is not None:
        return why
    if (least := min(q.rank, k.rank, v.rank)) < 2:
        return f"attention over {least} dimensions; it takes 2 and more"
    return None


def _unsupported_dtype(q: TensorType) -> str | None:
    if q.dtype in _FLOATS:
        return None
    return f"attention in {q.dtype}; supported are {', '.join(_FLOATS)}"


def _cached_supported(node: Node, graph: Graph) -> str | None:
    assert node.inputs[0] is not None
    return _unsupported_dtype(graph.types[node.inputs[0]])


_QKV = ((2, 4, 9, 16), (2, 4, 11, 16), (2, 4, 11, 16))
register(
    OpDef(
        "aten.scaled_dot_product_attention.default",
        lower=_lower_attention,
        supports=_supported,
        cases=(
            Case((*_QKV, None)),
            Case((*_QKV, ((9, 11), "bool")), id="bool_mask"),
            Case((*_QKV, (2, 1, 9, 11)), id="float_mask"),
            Case(((1, 2, 40, 8), (1, 2, 40, 8), (1, 2, 40, 8), None), {"is_causal": True}),
            Case(
                ((1, 8, 5, 16), (1, 2, 7, 16), (1, 2, 7, 16), None),
                {"enable_gqa": True},
                "grouped",
            ),
            Case(((3, 5, 8), (3, 5, 8), (3, 5, 8), None), {"scale": 0.5}, "three_dimensions"),
            Case(((4, 3, 8), (2, 4, 6, 8), (2, 4, 6, 8), None), id="shared_queries"),
            Case(((2, 4, 3, 8), (1, 1, 6, 8), (2, 1, 6, 8), None), id="shared_keys"),
            Case(
                ((1, 4, 1, 16), (1, 2, 500, 16), (1, 2, 500, 16), ((1, 500), "bool")),
                {"enable_gqa": True},
                "token_of_many_keys",
            ),
            Case(((2, 3, 2, 5, 8), (2, 3, 2, 7, 8), (3, 2, 7, 4), None), id="five_dimensions"),
            Case(
                ((2, 3, 2, 5, 8), (2, 3, 2, 7, 8), (2, 3, 2, 7, 8), (2, 1, 2, 5, 7)),
                id="five_dimensions_mask",
            ),
        ),
    )
)


def _cached(
    tokens: int,
    position: int,
    softcap: float = 0.0,
    window: int = 0,
    rows: int = 40,
    label: str = "",
) -> Case:
    """A case of six heads in two groups over a cache of so many rows."""
    operands = ((1, 6, tokens, 32), (1, 2, rows, 32), (1, 2, rows, 24))
    at = ((1,), ("int", position, position + 1))
    return Case((*operands, at), {"scale": 0.2, "softcap": softcap, "window": window}, label)


register(
    OpDef(
        "npu.cached_attention",
        lower=_lower_cached_attention,
        supports=_cached_supported,
        reference=reference_cached_attention,
        infer=infer_cached_attention,
        cases=(
            _cached(1, 0, label="first_token"),
            _cached(1, 30, label="token"),
            _cached(7, 33, label="full"),
            _cached(7, 20, window=5, label="window"),
            _cached(7, 20, softcap=0.5, label="softcap"),
            _cached(1, 599, rows=600, label="long_cache"),
            _cached(2, 500, window=300, rows=600, label="long_cache_window"),
        ),
    )
)
