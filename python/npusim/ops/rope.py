"""Rotary position embedding and the append to a cache, alone and as one kernel call.

* `npu.rope(x[b, h, t, d], cos[b or 1, t, r], sin)`: turns the first r elements of every head, pairs
  (j, j + r/2), or (2j, 2j + 1) if `interleaved`; the rest passes (Su et al., arXiv:2104.09864).
* `npu.cache_append(x[b, g, t, d], cache[b, g, s, d], position[1])`: the cache with x in rows
  position … position + t - 1.
* `npu.rope_append(q, k, v, cos, sin, k_cache, v_cache, position)`: turned q, the cache with turned
  k appended, and the other cache with v as it is.

Caches are values like any other here: an append defines a new one. The lowering writes into the
state's own memory where the new cache is what the call leaves there (`Lowering.updated`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npusim.errors import ShapeError
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View

if TYPE_CHECKING:
    from torch import Tensor

_FLOATS = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Part:
    """One tensor of a `rope` command.

    Attributes:
        x: what is read, [batch, heads, length, dim].
        y: where it goes: the result, or all of a cache if `append`.
        rotate: whether its heads are turned.
        append: whether it goes to the rows at the position.
    """

    x: View
    y: View
    rotate: bool = True
    append: bool = False


def contiguous_rows(low: Lowering, view: View) -> View:
    """Returns a view whose last dimension is contiguous; copies only if needed."""
    return view if view.strides[-1] == 1 or view.shape[-1] == 1 else low.dense(view)


def emit_rope(
    low: Lowering,
    parts: Sequence[Part],
    angles: Sequence[View] = (),
    position: View | None = None,
    *,
    interleaved: bool = False,
) -> None:
    """Emits one `rope` command; `angles` are cos and sin, absent when no part is rotated."""
    xs = [contiguous_rows(low, part.x) for part in parts]
    batch, _, length, _ = xs[0].shape
    if any(x.numel == 0 for x in xs):
        return
    rotary_dim = angles[0].shape[-1] if angles else 0
    angles = [contiguous_rows(low, a).expand((batch, length, rotary_dim)) for a in angles]
    strides = [s for a in angles for s in a.strides[:2]]
    params: dict[str, Param] = {
        "batch": batch,
        "length": length,
        "rotary_dim": rotary_dim,
        "heads": [x.shape[1] for x in xs],
        "head_dim": [x.shape[3] for x in xs],
        "limit": [part.y.shape[2] for part in parts],
        "x_strides": [s for x in xs for s in x.strides[:3]],
        "y_strides": [s for part in parts for s in part.y.strides[:3]],
        "cs_strides": strides,
        "rotate": [int(part.rotate) for part in parts],
        "at_position": [int(part.append) for part in parts],
        "parts": len(parts),
        "has_position": int(position is not None),
        "interleaved": int(interleaved),
        **codes(dtype=xs[0].dtype, cs_dtype=angles[0].dtype if angles else xs[0].dtype),
    }
    reads = [*xs, *(angles or (xs[0], xs[0]))]  # without a rotation the kernel reads no angles
    low.emit(
        "rope",
        params,
        [*reads, *([position] if position is not None else [])],
        [part.y for part in parts],
        in_place=[x for x, part in zip(xs, parts, strict=True) if not part.append],
        update=any(part.append for part in parts),
    )


def _lower_rope(node: Node, low: Lowering) -> None:
    x, cos, sin = low.inputs(node)
    assert x is not None and cos is not None and sin is not None
    y = contiguous_rows(low, low.result(node.output, strided=True))
    interleaved = bool(node.attrs["interleaved"])
    emit_rope(low, [Part(x, y)], [cos, sin], interleaved=interleaved)


def _lower_cache_append(node: Node, low: Lowering) -> None:
    x, cache, position = low.inputs(node)
    assert x is not None and cache is not None and position is not None
    y = low.updated(node.output, cache)
    emit_rope(low, [Part(x, y, rotate=False, append=True)], position=position)


def _lower_rope_append(node: Node, low: Lowering) -> None:
    q, k, v, cos, sin, k_cache, v_cache, position = low.inputs(node)
    assert q is not None and k is not None and v is not None and cos is not None
    assert sin is not None and k_cache is not None and v_cache is not None
    turned, keys, values = node.outputs
    parts = [
        Part(q, low.result(turned, strided=True)),
        Part(k, low.updated(keys, k_cache), append=True),
        Part(v, low.updated(values, v_cache), rotate=False, append=True),
    ]
    emit_rope(low, parts, [cos, sin], position, interleaved=bool(node.attrs["interleaved"]))


def reference_rope(
    x: Tensor, cos: Tensor, sin: Tensor, /, *, interleaved: bool, rotary_dim: int
) -> Tensor:
    """Computes `npu.rope`: in float32, rounded once."""
    import torch

    wide = x if x.dtype == torch.float64 else x.float()
    turned, rest = wide[..., :rotary_dim], wide[..., rotary_dim:]
    if interleaved:
        partner = torch.stack((-turned[..., 1::2], turned[..., ::2]), -1).flatten(-2)
    else:
        first, second = turned.chunk(2, -1)
        partner = torch.cat((-second, first), -1)
    c, s = cos.to(wide.dtype).unsqueeze(1), sin.to(wide.dtype).unsqueeze(1)
    return torch.cat((turned * c + partner * s, rest), -1).to(x.dtype)


def reference_cache_append(x: Tensor, cache: Tensor, position: Tensor, /) -> Tensor:
    """Computes `npu.cache_append`; ShapeError for a position that leaves no room for x."""
    start, length = int(position), x.shape[2]
    if not 0 <= start <= cache.shape[2] - length:
        raise ShapeError(
            f"position {start} is outside the cache: it takes 0 to {cache.shape[2] - length}."
        )
    result = cache.clone()
    result[:, :, start : start + length] = x
    return result


def reference_rope_append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    position: Tensor,
    /,
    *,
    interleaved: bool,
    rotary_dim: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes `npu.rope_append`: what the ops it joins compute."""
    turned_q, turned_k = (
        reference_rope(x, cos, sin, interleaved=interleaved, rotary_dim=rotary_dim) for x in (q, k)
    )
    keys = reference_cache_append(turned_k, k_cache, position)
    return turned_q, keys, reference_cache_append(v, v_cache, position)


def infer_rope(
    x: TensorType, cos: TensorType, sin: TensorType, /, *, interleaved: bool, rotary_dim: int
) -> TensorType:
    """Returns the type of `npu.rope`; ShapeError when the operands do not fit."""
    if x.rank != 4 or not 0 < rotary_dim <= x.shape[3] or rotary_dim % 2:
        raise ShapeError(
            f"npu.rope: x is {x}, of which {rotary_dim} elements of each head turn; expected "
            "[batch, heads, length, dim] and an even number of at most dim."
        )
    if cos.dtype != sin.dtype:
        raise ShapeError(f"npu.rope: cos is {cos}, sin {sin}; expected one dtype.")
    batch, _, length, _ = x.shape
    for angle in (cos, sin):
        if angle.rank != 3 or angle.shape not in (
            (batch, length, rotary_dim),
            (1, length, rotary_dim),
        ):
            raise ShapeError(
                f"npu.rope: cos is {cos}, sin {sin}; expected [{batch} or 1, {length}, "
                f"{rotary_dim}] for x {x}."
            )
    return TensorType(x.dtype, x.shape)


def infer_cache_append(x: TensorType, cache: TensorType, position: TensorType, /) -> TensorType:
    """Returns the type of `npu.cache_append`; ShapeError when the operands do not fit."""
    check_position("npu.cache_append", position)
    fits = x.rank == cache.rank == 4 and x.dtype == cache.dtype
    if not fits or x.shape[:2] + x.shape[3:] != cache.shape[:2] + cache.shape[3:]:
        raise ShapeError(f"npu.cache_append: x is {x}, the cache {cache}; only lengths may differ.")
    if x.shape[2] > cache.shape[2]:
        raise ShapeError(f"npu.cache_append: x is {x}, longer than the cache {cache}.")
    return TensorType(cache.dtype, cache.shape)


def infer_rope_append(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    cos: TensorType,
    sin: TensorType,
    k_cache: TensorType,
    v_cache: TensorType,
    position: TensorType,
    /,
    *,
    interleaved: bool,
    rotary_dim: int,
) -> tuple[TensorType, TensorType, TensorType]:
    """Returns the types of `npu.rope_append`; ShapeError when the operands do not fit."""
    turned_q, turned_k = (
        infer_rope(x, cos, sin, interleaved=interleaved, rotary_dim=rotary_dim) for x in (q, k)
    )
    same = (q.shape[0], q.shape[2], q.dtype)
    if any(x.rank != 4 or (x.shape[0], x.shape[2], x.dtype) != same for x in (k, v)):
        raise ShapeError(f"npu.rope_append: q is {q}, k {k}, v {v}: not the same tokens.")
    keys = infer_cache_append(turned_k, k_cache, position)
    return turned_q, keys, infer_cache_append(v, v_cache, position)


def check_position(op: str, position: TensorType) -> None:
    """Raises ShapeError unless the operand is one int64."""
    if position.dtype != "int64" or position.shape not in ((), (1,)):
        raise ShapeError(f"{op}: the position is {position}; expected int64[1].")


def _supported(node: Node, graph: Graph) -> str | None:
    kinds = [graph.types[i].dtype for i in node.inputs if i is not None]
    unknown = next((k for k in kinds if k not in (*_FLOATS, "int64")), None)
    if unknown is not None:
        return f"dtype {unknown}; supported are {', '.join(_FLOATS)}"
    return None


def _attrs(rotary_dim: int, interleaved: bool = False) -> dict[str, object]:
    return {"interleaved": interleaved, "rotary_dim": rotary_dim}


_AT_3 = ((1,), ("int", 3, 4))
_ANGLES = ((1, 5, 64), (1, 5, 64))
register(
    OpDef(
        "npu.rope",
        lower=_lower_rope,
        supports=_supported,
        reference=reference_rope,
        infer=infer_rope,
        cases=(
            Case(((1, 3, 5, 64), *_ANGLES), _attrs(64)),
            Case(((1, 3, 5, 64), *_ANGLES), _attrs(64, True), "interleaved"),
            Case(((2, 2, 7, 40), (2, 7, 24), (2, 7, 24)), _attrs(24), "part"),
            Case(((2, 2, 7, 13), (1, 7, 6), (1, 7, 6)), _attrs(6, True), "shared_interleaved_part"),
        ),
    )
)
register(
    OpDef(
        "npu.cache_append",
        lower=_lower_cache_append,
        supports=_supported,
        reference=reference_cache_append,
        infer=infer_cache_append,
        cases=(
            Case(((2, 3, 5, 16), (2, 3, 9, 16), _AT_3)),
            Case(((1, 2, 4, 7), (1, 2, 4, 7), ((1,), ("int", 0, 1))), id="whole"),
        ),
    )
)
_CACHES = ((1, 2, 9, 64), (1, 2, 9, 48), _AT_3)
_TOKENS = ((1, 6, 5, 64), (1, 2, 5, 64), (1, 2, 5, 48))
register(
    OpDef(
        "npu.rope_append",
        lower=_lower_rope_append,
        supports=_supported,
        reference=reference_rope_append,
        infer=infer_rope_append,
        cases=(
            Case((*_TOKENS, *_ANGLES, *_CACHES), _attrs(64)),
            Case((*_TOKENS, *((1, 5, 32),) * 2, *_CACHES), _attrs(32, True), "interleaved_part"),
        ),
    )
)
