"""`npu.token_mixing`: a linear along the second-to-last dimension, as it lies in memory.

Of x[b, k, c], weight[n, k], bias[n]? and residual[b, n, c]?: y[b] = act(weight · x[b] + bias), with
`npu.linear`'s epilogue, the bias along rows. It is what mixing tokens (Tolstikhin et al.,
arXiv:2105.01601), or steps of time, comes to between two transpositions. A target without such a
kernel transposes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from npusim.errors import ShapeError
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType, row_major
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.fused import NO_EPILOGUE, infer_linear, reference_linear
from npusim.ops.linear import emit_linear, epilogue, stored_as_rows

if TYPE_CHECKING:
    from torch import Tensor

TOKEN_MIXING = "npu.token_mixing"
DTYPES = ("float32", "float16", "bfloat16")
_CHUNK = 8  # elements of 16 bits that are loaded at once


def _lower(node: Node, low: Lowering) -> None:
    x, weight, bias, residual = low.inputs(node)
    assert x is not None and weight is not None
    y = low.result(node.output)
    if y.numel == 0:
        return
    if not low.target.has("token_mixing"):
        _lower_transposed(node, low, (x, weight, bias, residual), y)
        return
    x = _readable(low, x)
    residual = None if residual is None else _readable(low, residual)
    weight = _padded(low, weight)
    fields, operands = epilogue(low, node, bias, residual)
    rest = residual or y
    params: dict[str, Param] = {
        "batch": x.shape[0],
        "m": y.shape[1],
        "n": y.shape[2],
        "k": x.shape[1],
        "ldx": x.strides[1],
        "ldw": weight.strides[0],
        "ldy": y.strides[1],
        "ldr": rest.strides[1],
        "x_batch": x.strides[0],
        "y_batch": y.strides[0],
        "r_batch": rest.strides[0],
        **codes(x_dtype=x.dtype, w_dtype=weight.dtype, y_dtype=y.dtype, r_dtype=rest.dtype),
        **fields,
    }
    in_place = [residual] if residual is not None else []
    low.emit("token_mixing", params, [x, weight, *operands], [y], in_place=in_place)


def _readable(low: Lowering, x: View) -> View:
    """Returns a tensor whose columns are contiguous, and where rows of 16 bits lie on chunks."""
    apart = all(stride >= 0 for stride in x.strides)
    chunks = x.element_size != 2 or all(stride % _CHUNK == 0 for stride in x.strides[:2])
    return x if x.strides[2] == 1 and apart and chunks else low.dense(x)


def _padded(low: Lowering, weight: View) -> View:
    """Returns a weight in rows of whole chunks, with zeros at their ends, made at most once."""
    n, k = weight.shape
    if weight.element_size != 2:
        return weight if stored_as_rows(weight) and weight.strides[1] == 1 else low.dense(weight)
    if weight.strides[1] == 1 and k % _CHUNK == weight.strides[0] % _CHUNK == 0 and k > 0:
        return weight

    def make() -> View:
        line = max(-(-k // _CHUNK) * _CHUNK, _CHUNK)
        padded = low.temp(TensorType(weight.dtype, (n, line)), static=low.is_static(weight))
        low.fill(padded, 0)
        low.copy(weight, padded.slice(1, 0, k))
        return padded

    return low.once((weight, "zeros behind rows"), make)


_Operands = tuple[View, View, "View | None", "View | None"]


def _lower_transposed(node: Node, low: Lowering, operands: _Operands, y: View) -> None:
    x, weight, bias, residual = operands
    turned = low.dense(x.permute((0, 2, 1)))
    batch, m, n = y.shape
    product = low.temp(TensorType(y.dtype, (batch, n, m)))
    if residual is not None:
        residual = low.dense(residual.permute((0, 2, 1)))
    extra = epilogue(low, node, bias, residual)
    if not stored_as_rows(weight):
        weight = low.dense(weight)
    emit_linear(low, turned, [weight], product, extra, residual)
    low.copy(product.permute((0, 2, 1)), replace(y, strides=row_major(y.shape)))


def reference_token_mixing(
    x: Tensor, weight: Tensor, bias: Tensor | None, addend: Tensor | None, /, **attrs: Any
) -> Tensor:
    """Computes `npu.token_mixing`."""
    addend = None if addend is None else addend.transpose(1, 2)
    return reference_linear(x.transpose(1, 2), weight, bias, addend, **attrs).transpose(1, 2)


def infer_token_mixing(
    x: TensorType,
    weight: TensorType,
    bias: TensorType | None,
    addend: TensorType | None,
    /,
    **attrs: Any,
) -> TensorType:
    """Returns the type of `npu.token_mixing`; ShapeError when the operands do not fit."""
    if x.rank != 3:
        raise ShapeError(f"{TOKEN_MIXING}: x is {x}; expected [batch, k, columns].")
    result = infer_linear(_turned(x), weight, bias, addend and _turned(addend), **attrs)
    return _turned(result)


def _turned(type: TensorType) -> TensorType:
    *lead, rows, columns = type.shape
    return TensorType(type.dtype, (*lead, columns, rows))


def _supported(node: Node, graph: object) -> str | None:
    types = getattr(graph, "types")  # noqa: B009
    found = [types[i].dtype for i in node.inputs if i]
    wrong = next((t for t in found if t not in DTYPES), None)
    return None if wrong is None else f"dtype {wrong}; supported are {', '.join(DTYPES)}"


def _case(b: int, n: int, k: int, c: int, label: str, **attrs: Any) -> Case:
    addend = (b, n, c) if attrs.get("residual") else None
    bias = None if attrs.pop("bare", False) else (n,)
    return Case(((b, k, c), (n, k), bias, addend), {**NO_EPILOGUE, **attrs}, label)


register(
    OpDef(
        TOKEN_MIXING,
        lower=_lower,
        supports=_supported,
        reference=reference_token_mixing,
        infer=infer_token_mixing,
        cases=(
            _case(1, 16, 16, 32, "small", bare=True),
            _case(2, 72, 49, 96, "gelu", act="gelu"),
            _case(2, 49, 72, 96, "residual", residual=2),
            _case(3, 130, 20, 136, "activated_sum", residual=1, act="relu"),
            _case(2, 5, 200, 13, "odd", residual=1),
        ),
        tolerance=8,
    )
)
