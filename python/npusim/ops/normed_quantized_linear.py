"""`npu.normed_quantized_linear(x, norm[k], q0, …, bias?, residual?)`: a product behind an RMS norm.

`npu.quantized_linear` of the RMS norm of x, as `npu.normed_linear` is `npu.linear`'s: the norm's
result is not rounded in between. What a target has no such kernel for becomes a norm and a product.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from npusim.abi.kernels import MOST_NORMED_CODES
from npusim.abi.quantization import Quantization
from npusim.errors import ShapeError
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering
from npusim.ops.norm_between import NormPart
from npusim.ops.normalization import emit_rms_norm
from npusim.ops.quantized_linear import (
    emit_quantized_linear,
    infer_quantized_linear,
    product_case,
    reference_quantized_linear,
)

if TYPE_CHECKING:
    from torch import Tensor

NORMED_QUANTIZED_LINEAR = "npu.normed_quantized_linear"
_STEM = "normed_quantized_linear"
_HALVES = ("float16", "bfloat16")


def takes_norm(x: TensorType, norm: TensorType) -> bool:
    """Tells whether the kernel computes the norm of this x on the way."""
    k = x.shape[-1]
    whole = isinstance(k, int) and 0 < k <= MOST_NORMED_CODES and k % 8 == 0
    return prod(x.shape[:-1]) == 1 and whole and x.dtype == norm.dtype and x.dtype in _HALVES


def _lower(node: Node, low: Lowering) -> None:
    x, norm, *parts, bias, residual = low.inputs(node)
    assert x is not None and norm is not None
    weights = [q for q in parts if q is not None]
    eps = node.attrs["eps"]
    assert isinstance(eps, (int, float))
    types = low.graph.types
    fits = takes_norm(types[node.inputs[0] or ""], types[node.inputs[1] or ""])
    if fits and _STEM in low.target.kernels:
        part = NormPart(_STEM, {"norm_eps": float(eps)}, (low.dense(norm),))
        emit_quantized_linear(node, low, x, weights, bias, residual, part)
        return
    normed = low.temp(TensorType(x.dtype, x.shape))
    emit_rms_norm(low, x, norm, normed, float(eps))
    emit_quantized_linear(node, low, normed, weights, bias, residual)


def reference_normed_quantized_linear(
    x: Tensor, norm: Tensor, /, *operands: Tensor | None, eps: float, **attrs: Any
) -> Tensor:
    """Computes `npu.normed_quantized_linear`, the norm in float32."""
    import torch

    normed = torch.rms_norm(x.float(), (x.shape[-1],), norm.float(), eps)
    *parts, bias, residual = operands
    wide = None if residual is None else residual.float()
    return reference_quantized_linear(normed, *parts, bias, wide, **attrs).to(x.dtype)


def infer_normed_quantized_linear(
    x: TensorType, norm: TensorType, /, *operands: TensorType | None, eps: float, **attrs: Any
) -> TensorType:
    """Returns the type of `npu.normed_quantized_linear`; ShapeError when operands do not fit."""
    if not x.rank or norm.shape != x.shape[-1:]:
        raise ShapeError(
            f"{NORMED_QUANTIZED_LINEAR}: x is {x}, but the norm's weight is {norm}; expected [k]."
        )
    return infer_quantized_linear(x, *operands, **attrs)


def _case(how: Quantization, rows: tuple[int, ...], k: int, *, id: str, **more: Any) -> Case:
    """Returns a product as `npu.quantized_linear` has them, behind a norm."""
    case = product_case(how, rows, k, id=id, **more)
    x, *rest = case.inputs
    return replace(case, inputs=(x, (k,), *rest), attrs={**case.attrs, "eps": 1e-5})


_INT8, _INT4 = Quantization("int8"), Quantization("int4", 32)
register(
    OpDef(
        NORMED_QUANTIZED_LINEAR,
        lower=_lower,
        reference=reference_normed_quantized_linear,
        infer=infer_normed_quantized_linear,
        cases=(
            _case(_INT8, (17, 3), 136, id="int8-parts", m=1, has_bias=True, act="relu"),
            _case(_INT8, (16,), 128, id="int8-gated", m=1, gated=True, act="silu"),
            _case(Quantization("fp8"), (17, 3), 136, id="fp8-parts", m=1, has_bias=True),
            _case(_INT4, (40,), 256, id="int4", m=1, residual=1),
            _case(Quantization("int4-asymmetric", 64), (33,), 128, id="int4-asymmetric", m=1),
            _case(_INT8, (5,), 130, id="odd", m=1),
            _case(_INT4, (9,), 128, id="rows"),
        ),
        tolerance=2048.0,  # as of `npu.quantized_linear`
    )
)
