"""`npu.paged_rope_append`: what an attention over pages needs done first, as one kernel call.

`npu.paged_rope_append(q[1, h, t, d], k[1, g, t, d], v[1, g, t, e], cos[1, t, r], sin[1, t, r],
k_pool, v_pool, positions, requests, tables)` gives turned q, the pool of keys with turned k, and
the pool of values with v, as `npu.rope` and `npu.paged_append` do, whose commands targets without
such a kernel get.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.errors import ShapeError
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.ops.linear_rope import emit_by_product
from npusim.ops.paged import (
    emit_paged_append,
    infer_paged_append,
    page_places,
    paging,
    reference_paged_append,
)
from npusim.ops.rope import Part, contiguous_rows, emit_rope, infer_rope, reference_rope

if TYPE_CHECKING:
    from torch import Tensor

PAGED_ROPE_APPEND = "npu.paged_rope_append"
_FLOATS = ("float32", "float16", "bfloat16")
_STEM = "paged_rope_append"


def _lower(node: Node, low: Lowering) -> None:
    q, k, v, cos, sin, k_pool, v_pool = low.inputs(node)[:7]
    assert q is not None and k is not None and v is not None and cos is not None
    assert sin is not None and k_pool is not None and v_pool is not None
    places = page_places(low, node, 7)
    turned, keys, values = node.outputs
    y = contiguous_rows(low, low.result(turned, strided=True))
    to_k, to_v = low.updated(keys, k_pool), low.updated(values, v_pool)
    q, k, v, cos, sin = (contiguous_rows(low, x) for x in (q, k, v, cos, sin))
    interleaved = bool(node.attrs["interleaved"])
    if _STEM not in low.target.kernels:
        new = low.temp(TensorType(k.dtype, k.shape))
        parts = [Part(q, y), Part(k, new)]
        emit_rope(low, parts, [cos, sin], interleaved=interleaved)
        emit_paged_append(low, new, places, to_k)
        emit_paged_append(low, v, places, to_v)
        return
    params: dict[str, Param] = {
        "heads": q.shape[1],
        "kv_heads": k.shape[1],
        "length": q.shape[2],
        "head_dim": q.shape[3],
        "v_dim": v.shape[3],
        "rotary_dim": cos.shape[2],
        **paging(to_k, places[2]),
        "q_strides": q.strides[1:3],
        "k_strides": k.strides[1:3],
        "v_strides": v.strides[1:3],
        "y_strides": y.strides[1:3],
        "k_pool_strides": to_k.strides[:3],
        "v_pool_strides": to_v.strides[:3],
        "cs_strides": [cos.strides[1], sin.strides[1]],
        "interleaved": int(interleaved),
        **codes(dtype=q.dtype, cs_dtype=cos.dtype),
    }
    reads, writes = [q, k, v, cos, sin, *places], [y, to_k, to_v]
    if not emit_by_product(node, low, params, reads, writes):
        low.emit(_STEM, params, reads, writes, update=True)


def reference_paged_rope_append(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    k_pool: Tensor,
    v_pool: Tensor,
    positions: Tensor,
    requests: Tensor,
    tables: Tensor,
    /,
    *,
    interleaved: bool,
    rotary_dim: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes `npu.paged_rope_append`: what the ops it joins compute."""
    turned_q, turned_k = (
        reference_rope(x, cos, sin, interleaved=interleaved, rotary_dim=rotary_dim) for x in (q, k)
    )
    places = (positions, requests, tables)
    keys = reference_paged_append(turned_k, k_pool, *places)
    return turned_q, keys, reference_paged_append(v, v_pool, *places)


def infer_paged_rope_append(
    q: TensorType,
    k: TensorType,
    v: TensorType,
    cos: TensorType,
    sin: TensorType,
    k_pool: TensorType,
    v_pool: TensorType,
    positions: TensorType,
    requests: TensorType,
    tables: TensorType,
    /,
    *,
    interleaved: bool,
    rotary_dim: int,
) -> tuple[TensorType, TensorType, TensorType]:
    """Returns the types of `npu.paged_rope_append`; ShapeError when the operands do not fit."""
    turned_q, turned_k = (
        infer_rope(x, cos, sin, interleaved=interleaved, rotary_dim=rotary_dim) for x in (q, k)
    )
    same = (q.shape[2], q.dtype)
    if q.shape[3] != k.shape[3] or any((x.shape[2], x.dtype) != same for x in (k, v)):
        raise ShapeError(f"{PAGED_ROPE_APPEND}: q is {q}, k {k}, v {v}: not the same tokens.")
    if k_pool.shape[:3] != v_pool.shape[:3]:
        raise ShapeError(f"{PAGED_ROPE_APPEND}: the pools are {k_pool} and {v_pool}.")
    places = (positions, requests, tables)
    keys = infer_paged_append(turned_k, k_pool, *places)
    return turned_q, keys, infer_paged_append(v, v_pool, *places)


def _supported(node: Node, graph: Graph) -> str | None:
    kinds = [graph.types[i].dtype for i in node.inputs[:7] if i is not None]
    unknown = next((kind for kind in kinds if kind not in _FLOATS), None)
    return None if unknown is None else f"dtype {unknown}; supported are {', '.join(_FLOATS)}"


def _case(rows: int, turned: int, d: int, e: int, interleaved: bool, label: str) -> Case:
    """A case of one row of a request, or of rows of none."""
    request = ("int", 2, 3) if rows == 1 else ("int", -1, 0)
    places = ((rows,), ("int", 63, 64)), ((rows,), request)
    tokens = ((1, 6, rows, d), (1, 2, rows, d), (1, 2, rows, e), *((1, rows, turned),) * 2)
    pools = ((5, 2, 16, d), (5, 2, 16, e))
    attrs = {"interleaved": interleaved, "rotary_dim": turned}
    return Case((*tokens, *pools, *places, ((3, 4), ("int", 4, 5))), attrs, label)


register(
    OpDef(
        PAGED_ROPE_APPEND,
        lower=_lower,
        supports=_supported,
        reference=reference_paged_rope_append,
        infer=infer_paged_rope_append,
        cases=(
            _case(1, 32, 32, 24, False, "last_row"),
            _case(1, 6, 13, 7, True, "interleaved_part"),
            _case(3, 32, 32, 32, False, "no_row"),
        ),
    )
)
