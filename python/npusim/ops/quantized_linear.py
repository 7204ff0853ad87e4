"""`npu.quantize` and `npu.quantized_linear`: weights of 8 and 4 bits, and products over them.

* `npu.quantize(w[rows, k])` gives uint8[bytes]: `format` and `group` as in `abi/quantization.py`.
* `npu.quantized_linear(x[..., k], q0, …, bias[n]?, residual?)`: `npu.linear` over the rows of all
  parts, one after another; `rows` says how many each has. With `gated` the rows are 2n, and it
  computes `npu.gated_linear`: `act` of the first half times the second, without a residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.abi.kernels import LINEAR_SEGMENTS
from npusim.abi.quantization import (
    FORMATS,
    LINE,
    Quantization,
    dequantize,
    quantize,
    quantized_bytes,
    sections,
)
from npusim.errors import ShapeError
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.fused import (
    NO_EPILOGUE,
    infer_gated_linear,
    infer_linear,
    reference_gated_linear,
)
from npusim.ops.fused import reference_linear as reference_plain
from npusim.ops.linear import epilogue, row_stride, rows, stored_as_rows
from npusim.ops.norm_between import NormPart

if TYPE_CHECKING:
    from torch import Tensor

QUANTIZE = "npu.quantize"
QUANTIZED_LINEAR = "npu.quantized_linear"


def reference_quantize(w: Tensor, /, *, format: str, group: int) -> Tensor:
    """Computes `npu.quantize`."""
    return quantize(w, Quantization(format, group))


def infer_quantize(w: TensorType, /, *, format: str, group: int) -> TensorType:
    """Returns the type of `npu.quantize`; ShapeError when the weight is no matrix."""
    if w.rank != 2 or format not in FORMATS:
        raise ShapeError(f"{QUANTIZE}: cannot make {format} of {w}; expected [rows, k].")
    return TensorType("uint8", (quantized_bytes(Quantization(format, group), *w.shape),))


def reference_quantized_linear(
    x: Tensor,
    /,
    *operands: Tensor | None,
    rows: Sequence[int],
    format: str,
    group: int,
    gated: bool,
    **attrs: Any,
) -> Tensor:
    """Computes `npu.quantized_linear`, as a product over the weight that the bytes stand for."""
    import torch

    *parts, bias, residual = operands
    how = Quantization(format, group)
    pairs = zip(parts, rows, strict=True)
    weight = torch.cat([dequantize(q, how, n, x.shape[-1]) for q, n in pairs if q is not None])
    bias = None if bias is None else bias.float()
    if gated:
        y = reference_gated_linear(x.float(), weight, bias, act=attrs["act"])
    else:
        wide = None if residual is None else residual.float()
        y = reference_plain(x.float(), weight, bias, wide, **attrs)
    return y.to(x.dtype)


def infer_quantized_linear(
    x: TensorType,
    /,
    *operands: TensorType | None,
    rows: Sequence[int],
    format: str,
    group: int,
    gated: bool,
    **attrs: Any,
) -> TensorType:
    """Returns the type of `npu.quantized_linear`; ShapeError when the operands do not fit."""
    *parts, bias, residual = operands
    if not x.rank or len(parts) != len(rows) or not 1 <= len(parts) <= LINEAR_SEGMENTS:
        raise ShapeError(f"{QUANTIZED_LINEAR}: x is {x}, and there are {len(parts)} weights.")
    how = Quantization(format, group)
    for part, count in zip(parts, rows, strict=True):
        size = quantized_bytes(how, count, x.shape[-1])
        if part is None or (part.dtype, part.shape) != ("uint8", (size,)):
            raise ShapeError(
                f"{QUANTIZED_LINEAR}: a weight is {part}; {count} rows of {format} for x {x} "
                f"are uint8[{size}]."
            )
    weight = TensorType(x.dtype, (sum(rows), x.shape[-1]))
    if not gated:
        return infer_linear(x, weight, bias, residual, **attrs)
    if residual is not None or attrs["residual"]:
        raise ShapeError(f"{QUANTIZED_LINEAR}: a gated linear takes no residual.")
    return infer_gated_linear(x, weight, bias, act=attrs["act"])


def _format(node: Node) -> dict[str, Param]:
    name, group = node.attrs["format"], node.attrs["group"]
    assert isinstance(name, str) and isinstance(group, int)
    return {"format": FORMATS[name], "group": group}


def _lower_quantize(node: Node, low: Lowering) -> None:
    (w,) = low.inputs(node)
    assert w is not None
    if not stored_as_rows(w):
        w = low.dense(w)
    y = low.result(node.output)
    n, k = w.shape
    params: dict[str, Param] = {
        "rows": n,
        "k": k,
        "ldw": w.strides[0] if n > 1 else max(k, 1),
        **_format(node),
        **codes(x_dtype=w.dtype),
    }
    low.emit("quantize", params, [w], [y])


def _lower_quantized_linear(node: Node, low: Lowering) -> None:
    x, *parts, bias, residual = low.inputs(node)
    assert x is not None
    emit_quantized_linear(node, low, x, [q for q in parts if q is not None], bias, residual)


def emit_quantized_linear(
    node: Node,
    low: Lowering,
    x: View,
    weights: Sequence[View],
    bias: View | None,
    residual: View | None,
    norm: NormPart | None = None,
) -> None:
    """Emits the product of a node over quantized weights, with a norm on the way or without."""
    y = low.result(node.output, strided=True)
    if y.numel == 0:
        return
    n, k = y.shape[-1], x.shape[-1]
    x, m, ldx = rows(low, x)
    ldy, ldr = row_stride(y), 0
    if residual is not None:
        residual, _, ldr = rows(low, residual)
        if ldr == ldy:
            residual = replace(residual, shape=y.shape, strides=y.strides)
    fields, operands = epilogue(low, node, bias, residual)
    counts = node.attrs["rows"]
    assert isinstance(counts, tuple)
    params: dict[str, Param] = {
        "m": m,
        "n": n,
        "k": k,
        "ldx": ldx,
        "ldy": ldy,
        "ldr": ldr,
        "rows": [int(count) for count in counts if isinstance(count, int)],
        "segments": len(weights),
        "gated": int(bool(node.attrs["gated"])),
        **_format(node),
        **codes(x_dtype=x.dtype, y_dtype=y.dtype),
        **codes(r_dtype=residual.dtype if residual is not None else y.dtype),
        **fields,
        **(norm.fields if norm else {}),
    }
    in_place = [residual] if residual is not None else []
    stem, reads = (norm.stem, norm.reads) if norm else ("quantized_linear", ())
    low.emit(stem, params, [x, *weights, *reads, *operands], [y], in_place=in_place)


def product_case(
    how: Quantization, rows: Sequence[int], k: int, *, id: str, m: int = 3, **more: Any
) -> Case:
    """Returns a product over weights whose bytes are drawn here, m rows of x at once."""
    draw = np.random.default_rng(len(id))
    parts = []
    for count in rows:
        codes, scales, zeros = sections(how, count, k)
        if how.bytes_a_code:
            code = np.zeros((count, codes // count), np.uint8)
            drawn = draw.integers(-127, 128, (count, k)).astype(np.int8).view(np.uint8)
            code[:, :k] = drawn if how.format == "int8" else np.where(drawn % 128 == 127, 0, drawn)
            scale = draw.uniform(0.005, 0.02, scales // 4).astype(np.float32)
        else:  # of 4 bits: k is a multiple of what it is padded to
            code = draw.integers(0, 256, codes).astype(np.uint8)
            scale = draw.uniform(0.05, 0.2, scales // 2).astype(np.float16)
        zero = draw.integers(0, 241, zeros).astype(np.uint8)
        full = bytearray()
        for part in (code, scale, zero):
            full += part.tobytes()
            full += bytes(-len(full) % LINE)
        full += bytes(quantized_bytes(how, count, k) - len(full))
        parts.append(((len(full),), ("uint8", *full)))
    gated = bool(more.get("gated", False))
    n = sum(rows) // (2 if gated else 1)
    bias = (sum(rows),) if more.pop("has_bias", False) else None
    attrs = {**NO_EPILOGUE, "gated": False, **more}
    residual = (m, n) if attrs["residual"] else None
    attrs |= {"rows": tuple(rows), "format": how.format, "group": how.group}
    return Case(((m, k), *parts, bias, residual), attrs, id)


_INT8, _INT4, _FP8 = Quantization("int8"), Quantization("int4", 32), Quantization("fp8")
_CASES = (
    product_case(_INT8, (5,), 40, id="int8"),
    product_case(_INT8, (17, 3), 128, id="int8-parts", has_bias=True, act="relu"),
    product_case(_INT8, (8,), 130, id="int8-gated", gated=True, act="silu"),
    product_case(_FP8, (5,), 40, id="fp8"),
    product_case(_FP8, (17, 3), 136, id="fp8-parts", has_bias=True, residual=1),
    product_case(_FP8, (8,), 130, id="fp8-gated", m=20, gated=True, act="silu"),
    product_case(_INT4, (16,), 256, id="int4", has_bias=True, residual=1),
    product_case(Quantization("int4", 128), (7,), 128, id="int4-group", residual=2, act="gelu"),
    product_case(Quantization("int4-asymmetric", 64), (33,), 128, id="int4-asymmetric"),
)

register(OpDef(QUANTIZE, lower=_lower_quantize, reference=reference_quantize, infer=infer_quantize))
register(
    OpDef(
        QUANTIZED_LINEAR,
        lower=_lower_quantized_linear,
        reference=reference_quantized_linear,
        infer=infer_quantized_linear,
        cases=_CASES,
        tolerance=2048.0,  # the CPU rounds x to 8 bits, a range of K at a time
    )
)
