"""`npu.attention_step`: one new token's rotation, append to the caches, and attention over them.

It computes what `npu.rope_append` and `npu.cached_attention` do one after the other, for queries of
one position: y, and the caches with the new row. Targets that have no kernel for it, and operands
that the kernel does not take, get the two commands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.errors import ShapeError
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.attention import (
    emit_attention,
    infer_cached_attention,
    reference_cached_attention,
)
from npusim.ops.rope import (
    Part,
    contiguous_rows,
    emit_rope,
    infer_rope_append,
    reference_rope_append,
)

if TYPE_CHECKING:
    from torch import Tensor

ATTENTION_STEP = "npu.attention_step"
_DTYPES = ("float16", "bfloat16")
_MOST_QUERIES = 16  # of a key/value head: the rows of a tensor core's tile
_LONGEST_HEAD = 256
_CHUNK = 8  # elements of 16 bits in 16 bytes


def is_step(q: TensorType, k_cache: TensorType, v_cache: TensorType) -> bool:
    """Tells whether the kernel `attention_step` takes these shapes and this dtype."""
    heads = q.shape[1], k_cache.shape[1]
    sizes = q.shape[3], v_cache.shape[3]
    return (
        q.dtype in _DTYPES
        and q.shape[2] == 1
        and heads[0] <= _MOST_QUERIES * heads[1]
        and all(size % 16 == 0 and 0 < size <= _LONGEST_HEAD for size in sizes)
    )


def _lower(node: Node, low: Lowering) -> None:
    q, k, v, cos, sin, k_cache, v_cache, position = low.inputs(node)
    assert q is not None and k is not None and v is not None and cos is not None
    assert sin is not None and k_cache is not None and v_cache is not None
    assert position is not None
    result, keys, values = node.outputs
    y = low.result(result)
    caches = low.updated(keys, k_cache), low.updated(values, v_cache)
    q, k, v = (contiguous_rows(low, x) for x in (q, k, v))
    angles = [contiguous_rows(low, a) for a in (cos, sin)]
    types = (node_type(x) for x in (q, *caches))
    if "attention_step" in low.target.kernels and is_step(*types) and _lie_well(q, k, v, *caches):
        _emit_step(low, node, (q, k, v), angles, position, caches, y)
    else:
        _emit_apart(low, node, (q, k, v), angles, position, caches, y)


def node_type(view: View) -> TensorType:
    """Returns what a view shows."""
    return TensorType(view.dtype, view.shape)


def _lie_well(*views: View) -> bool:
    """Tells whether all rows begin on 16 bytes."""
    return all(
        view.offset % (2 * _CHUNK) == 0
        and all(
            s % _CHUNK == 0 for s, n in zip(view.strides[:3], view.shape, strict=False) if n > 1
        )
        for view in views
    )


def _emit_step(
    low: Lowering,
    node: Node,
    new: tuple[View, View, View],
    angles: list[View],
    position: View,
    caches: tuple[View, View],
    y: View,
) -> None:
    q, k, v = new
    batch, heads = q.shape[:2]
    rotary_dim = angles[0].shape[-1]
    angles = [a.expand((batch, 1, rotary_dim)) for a in angles]
    params: dict[str, Param] = {
        "batch": batch,
        "heads": heads,
        "kv_heads": k.shape[1],
        "head_dim": q.shape[3],
        "v_dim": v.shape[3],
        "rotary_dim": rotary_dim,
        "limit": caches[0].shape[2],
        "q_strides": q.strides[:2],
        "k_strides": k.strides[:2],
        "v_strides": v.strides[:2],
        "k_cache_strides": caches[0].strides[:3],
        "v_cache_strides": caches[1].strides[:3],
        "y_strides": y.strides[:2],
        "cs_strides": [a.strides[0] for a in angles],
        **_numbers(node),
        "interleaved": int(bool(node.attrs["interleaved"])),
        **codes(dtype=q.dtype, cs_dtype=angles[0].dtype),
    }
    writes = [*caches, y]
    low.emit("attention_step", params, [q, k, v, *angles, position], writes, update=True)


def _numbers(node: Node) -> dict[str, int | float]:
    """Returns the window, the scale and the cap of an attention."""
    window, scale, softcap = (node.attrs[name] for name in ("window", "scale", "softcap"))
    assert isinstance(window, int)
    assert isinstance(scale, (int, float)) and isinstance(softcap, (int, float))
    return {"window": window, "scale": scale, "softcap": softcap}


def _emit_apart(
    low: Lowering,
    node: Node,
    new: tuple[View, View, View],
    angles: list[View],
    position: View,
    caches: tuple[View, View],
    y: View,
) -> None:
    q, k, v = new
    turned = low.temp(node_type(q))
    parts = [
        Part(q, turned),
        Part(k, caches[0], append=True),
        Part(v, caches[1], rotate=False, append=True),
    ]
    emit_rope(low, parts, angles, position, interleaved=bool(node.attrs["interleaved"]))
    numbers = _numbers(node)
    emit_attention(
        low,
        turned,
        *caches,
        y,
        scale=numbers["scale"],
        causal=True,
        position=position,
        window=int(numbers["window"]),
        softcap=float(numbers["softcap"]),
    )


def reference_attention_step(
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
    scale: float,
    softcap: float,
    window: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes `npu.attention_step`: what the ops it joins compute."""
    turned, keys, values = reference_rope_append(
        *(q, k, v, cos, sin, k_cache, v_cache, position),
        interleaved=interleaved,
        rotary_dim=rotary_dim,
    )
    y = reference_cached_attention(
        turned, keys, values, position, scale=scale, softcap=softcap, window=window
    )
    return y, keys, values


def infer_attention_step(
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
    scale: float,
    softcap: float,
    window: int,
) -> tuple[TensorType, TensorType, TensorType]:
    """Returns the types of `npu.attention_step`; ShapeError when the operands do not fit."""
    turned, keys, values = infer_rope_append(
        *(q, k, v, cos, sin, k_cache, v_cache, position),
        interleaved=interleaved,
        rotary_dim=rotary_dim,
    )
    if q.shape[2] != 1:
        raise ShapeError(f"{ATTENTION_STEP}: q is {q}; expected one position.")
    y = infer_cached_attention(
        turned, keys, values, position, scale=scale, softcap=softcap, window=window
    )
    return y, keys, values


def _case(
    position: int,
    *,
    heads: tuple[int, int] = (6, 2),
    dims: tuple[int, int] = (64, 48),
    rows: int = 300,
    rotary: int = 0,
    label: str,
    **attrs: object,
) -> Case:
    """A case of one token after `position` others in caches of `rows`."""
    (q, kv), (d, dv) = heads, dims
    turned = rotary or d
    operands = (
        *((1, q, 1, d), (1, kv, 1, d), (1, kv, 1, dv)),
        *((1, 1, turned), (1, 1, turned)),
        *((1, kv, rows, d), (1, kv, rows, dv)),
        ((1,), ("int", position, position + 1)),
    )
    given = {"interleaved": False, "scale": 0.2, "softcap": 0.0, "window": 0, **attrs}
    return Case(operands, {"rotary_dim": turned, **given}, label)


register(
    OpDef(
        ATTENTION_STEP,
        lower=_lower,
        reference=reference_attention_step,
        infer=infer_attention_step,
        cases=(
            _case(0, label="first_token"),
            _case(130, label="two_blocks"),
            _case(299, rows=300, label="full"),
            _case(2500, rows=2600, dims=(32, 32), label="many_tiles"),
            _case(200, window=70, label="window"),
            _case(40, softcap=0.5, interleaved=True, rotary=32, label="softcap_interleaved_part"),
            _case(140, heads=(16, 1), dims=(128, 128), label="one_group"),
            _case(20, heads=(3, 3), dims=(256, 256), label="long_heads"),
            _case(20, heads=(2, 2), dims=(40, 24), label="odd_heads"),
        ),
        tolerance=2,
    )
)
