"""Scaled dot-product attention: one kernel over strided heads, masks and grouped queries."""

from __future__ import annotations

from math import sqrt

from npusim.ir.graph import Graph, Node
from npusim.ops.opdef import Case, OpDef, register
from npusim.program.lowering import Lowering, codes
from npusim.program.view import View


def _four(view: View) -> View:
    """Returns q, k, v or y as [batch, heads, length, size]; leading dimensions may be absent."""
    while view.rank < 4:
        view = view.unsqueeze(0)
    return view


def _contiguous_rows(low: Lowering, view: View) -> View:
    """The kernel reads rows of contiguous elements; everything outside may be strided."""
    return view if view.strides[-1] == 1 or view.shape[-1] == 1 else low.dense(view)


def _lower_attention(node: Node, low: Lowering) -> None:
    q, k, v, mask = (*low.inputs(node), None)[:4]
    assert q is not None and k is not None and v is not None
    value = node.output
    y = low.result(value)
    if y.numel == 0:
        return
    q, k, v = (_contiguous_rows(low, _four(x)) for x in (q, k, v))
    out = _contiguous_rows(low, _four(y))
    if mask is not None:
        mask = _four(mask).expand((q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
        if mask.dtype not in ("bool", "float32", q.dtype):
            mask = low.cast(mask, "float32")
    scale = node.attrs.get("scale")
    params = {
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
        "y_strides": out.strides[:3],
        "mask_strides": mask.strides if mask is not None else [0] * 4,
        "causal_offset": 0,
        "window": 0,
        "has_position": 0,
        "softcap": 0.0,
        "has_mask": int(mask is not None),
        "causal": int(bool(node.attrs.get("is_causal", False))),
        "scale": float(scale) if isinstance(scale, (int, float)) else 1 / sqrt(q.shape[3]),
        **codes(dtype=q.dtype, mask_dtype=mask.dtype if mask is not None else q.dtype),
    }
    low.emit("attention", params, [q, k, v, *([mask] if mask is not None else [])], [out])


def _supported(node: Node, graph: Graph) -> str | None:
    q, k, v = (graph.types[i] for i in node.inputs[:3] if i is not None)
    if node.attrs.get("dropout_p", 0.0):
        return "attention dropout; call model.eval() before extraction"
    if q.dtype not in ("float32", "float16", "bfloat16"):
        return f"attention in {q.dtype}; supported are float32, float16, bfloat16"
    if q.rank > 4 or q.rank < 2:
        return f"attention over {q.rank} dimensions; supported are 2 to 4"
    if k.shape[:-2] != v.shape[:-2] or (q.rank == 4 and k.shape[0] != q.shape[0]):
        return "attention that broadcasts its batch"
    return None


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
        ),
    )
)
