"""`npu.matmul(a, b)`: torch.matmul of floats of one dtype; sums stay as they are, in float32."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npusim.errors import ShapeError
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.ops.inference.matmul import matmul_shape
from npusim.ops.linear import lower_matmul

if TYPE_CHECKING:
    from torch import Tensor

WIDENING_MATMUL = "npu.matmul"
_FLOATS = ("float32", "float16", "bfloat16")


def reference_matmul(a: Tensor, b: Tensor, /) -> Tensor:
    """Computes `npu.matmul`."""
    import torch

    return torch.matmul(a.float(), b.float())


def infer_matmul(a: TensorType, b: TensorType, /) -> TensorType:
    """Returns the type of `npu.matmul`; ShapeError when the operands do not fit."""
    if a.dtype != b.dtype or a.dtype not in _FLOATS:
        raise ShapeError(
            f"{WIDENING_MATMUL}: {a} and {b}; expected floats of one dtype, of up to 32 bits."
        )
    return TensorType("float32", matmul_shape(a.shape, b.shape))


register(
    OpDef(
        WIDENING_MATMUL,
        lower=lower_matmul,
        reference=reference_matmul,
        infer=infer_matmul,
        cases=(
            Case(((4, 5), (5, 6))),
            Case(((2, 1, 40, 66), (3, 66, 48)), id="batched"),
            Case(((5,), (3, 5, 6)), id="row"),
            Case(((3, 70, 33), (3, 33, 200)), id="odd depth"),
            Case(((20, 300), (300, 32)), id="deep"),
        ),
        dtypes=_FLOATS,
        tolerance=4,
    )
)
