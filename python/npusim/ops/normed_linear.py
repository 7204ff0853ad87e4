"""Products of rows that pass an RMS norm on the way: one command instead of two.

* `npu.normed_linear(x, norm[k], weight, bias?, residual?)`: `npu.linear` of the RMS norm of x.
* `npu.normed_gated_linear(x, norm[k], weight, bias?)`: `npu.gated_linear` of it.

The norm's result is not rounded in between. What a target has no such kernel for becomes a norm and
a product; of many rows, the product before may have done a part of the norm (`norm_between.py`).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from npusim.abi.kernels import LINEAR_SEGMENTS
from npusim.errors import ShapeError
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering
from npusim.ops.fused import (
    NO_EPILOGUE,
    infer_gated_linear,
    infer_linear,
    reference_gated_linear,
    reference_linear,
)
from npusim.ops.linear import emit_linear, epilogue, rows, stored_as_rows
from npusim.ops.norm_between import (
    NORMED_GATED_LINEAR,
    NORMED_LINEAR,
    NormPart,
    begins_with_norm,
    part_after_norm,
)
from npusim.ops.normalization import emit_rms_norm

if TYPE_CHECKING:
    from torch import Tensor


def _lower(gated: bool) -> Any:
    def lower(node: Node, low: Lowering) -> None:
        weight = node.inputs[2]
        assert weight is not None
        x, norm, bias, residual = (
            None if name is None else low.view(name)
            for name in (*node.inputs[:2], *(*node.inputs[3:], None)[:2])
        )
        assert x is not None and norm is not None
        y = low.result(node.output, strided=True)
        if y.numel == 0:
            return
        eps = node.attrs["eps"]
        assert isinstance(eps, (int, float))
        segments = low.parts(weight, LINEAR_SEGMENTS)
        segments = [w if stored_as_rows(w) else low.dense(w) for w in segments]
        if residual is not None:
            residual = rows(low, residual)[0]
        finish = replace(node, attrs={**NO_EPILOGUE, **node.attrs})
        extra = epilogue(low, finish, bias, residual)
        alike = norm.dtype == segments[0].dtype == x.dtype
        if alike and begins_with_norm(prod(x.shape[:-1]), low.target.rows_normed):
            part = NormPart("normed_linear", {"norm_eps": float(eps)}, (low.dense(norm),))
            emit_linear(low, x, segments, y, extra, residual, gated=gated, norm=part)
            return
        left = part_after_norm(node, low) if alike else None
        if left is not None:
            scaled, part = left
            emit_linear(low, scaled, segments, y, extra, residual, gated=gated, norm=part)
            return
        normed = low.temp(TensorType(x.dtype, x.shape))
        emit_rms_norm(low, x, norm, normed, float(eps))
        emit_linear(low, normed, segments, y, extra, residual, gated=gated)

    return lower


def reference_normed_linear(
    x: Tensor,
    norm: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    addend: Tensor | None,
    /,
    *,
    eps: float,
    **attrs: Any,
) -> Tensor:
    """Computes `npu.normed_linear`; the norm in float32, or float64 for such operands."""
    normed = _normed(x, norm, eps)
    wide = [None if t is None else t.to(normed.dtype) for t in (weight, bias, addend)]
    assert wide[0] is not None
    return reference_linear(normed, wide[0], *wide[1:], **attrs).to(x.dtype)


def reference_normed_gated_linear(
    x: Tensor, norm: Tensor, weight: Tensor, bias: Tensor | None, /, *, eps: float, act: str
) -> Tensor:
    """Computes `npu.normed_gated_linear`."""
    normed = _normed(x, norm, eps)
    wide = None if bias is None else bias.to(normed.dtype)
    return reference_gated_linear(normed, weight.to(normed.dtype), wide, act=act).to(x.dtype)


def _normed(x: Tensor, norm: Tensor, eps: float) -> Tensor:
    import torch

    wide = x if x.dtype == torch.float64 else x.float()
    return torch.rms_norm(wide, (x.shape[-1],), norm.to(wide.dtype), eps)


def infer_normed_linear(
    x: TensorType,
    norm: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    addend: TensorType | None,
    /,
    *,
    eps: float,
    **attrs: Any,
) -> TensorType:
    """Returns the type of `npu.normed_linear`; ShapeError when the operands do not fit."""
    _check_norm(NORMED_LINEAR, x, norm)
    return infer_linear(x, weight, bias, addend, **attrs)


def infer_normed_gated_linear(
    x: TensorType,
    norm: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    /,
    *,
    eps: float,
    act: str,
) -> TensorType:
    """Returns the type of `npu.normed_gated_linear`; ShapeError when the operands do not fit."""
    _check_norm(NORMED_GATED_LINEAR, x, norm)
    return infer_gated_linear(x, weight, bias, act=act)


def _check_norm(op: str, x: TensorType, norm: TensorType) -> None:
    if not x.rank or norm.shape != x.shape[-1:]:
        raise ShapeError(f"{op}: x is {x}, but the norm's weight is {norm}; expected [k].")


def _supported(node: Node, graph: Any) -> str | None:
    wrong = next((t for i in node.inputs if i and (t := graph.types[i].dtype) not in _FLOATS), None)
    return None if wrong is None else f"dtype {wrong}; supported are {', '.join(_FLOATS)}"


_FLOATS = ("float32", "float16", "bfloat16")
_PLAIN = {**NO_EPILOGUE, "eps": 1e-5}
register(
    OpDef(
        NORMED_LINEAR,
        lower=_lower(gated=False),
        supports=_supported,
        reference=reference_normed_linear,
        infer=infer_normed_linear,
        cases=(
            Case(((1, 1, 64), (64,), (48, 64), (48,), None), _PLAIN),
            Case(
                ((1, 72), (72,), (9, 72), None, (1, 9)),
                {**_PLAIN, "residual": 1, "act": "silu"},
                "residual",
            ),
            Case(((1, 1100), (1100,), (33, 1100), None, None), _PLAIN, "long"),
            Case(((1, 13), (13,), (7, 13), (7,), None), _PLAIN, "odd"),
            Case(((5, 24), (24,), (16, 24), (16,), None), _PLAIN, "rows"),
        ),
        tolerance=20,  # PyTorch's own sums of 1,100 products in float32 err by as much
    )
)
register(
    OpDef(
        NORMED_GATED_LINEAR,
        lower=_lower(gated=True),
        supports=_supported,
        reference=reference_normed_gated_linear,
        infer=infer_normed_gated_linear,
        cases=(
            Case(((1, 1, 64), (64,), (96, 64), None), {"eps": 1e-6, "act": "silu"}),
            Case(((1, 520), (520,), (20, 520), (20,)), {"eps": 1e-6, "act": "gelu"}, "bias"),
            Case(((3, 40), (40,), (12, 40), None), {"eps": 1e-6, "act": "silu"}, "rows"),
        ),
        tolerance=24,  # apart, the norm is rounded in between, and two sums multiply
    )
)
