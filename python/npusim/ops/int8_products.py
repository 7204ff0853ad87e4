"""`npu.int8_matmul` and `npu.int8_conv`: products of 8-bit integers, summed exactly.

* `npu.int8_matmul(a[…, m, k], b[…, k, n], …)`, broadcast as PyTorch's matmul; a may be a vector.
* `npu.int8_conv(x[b, c, spatial…], w[out, in/groups, kernel…], …)`; `padding` is in front of each
  spatial dimension, `padding_back` behind. What is padded counts as the zero point of x.

Both take, behind the two, and None for each that is absent: x_zero (one element of x's dtype),
w_zero (one, or one a column, of w's dtype), scale (likewise, float32), sum_bias[n] (int32),
bias[n] (float32), residual, terms[5] (float32), y_zero (one element). With
s = Σ (x - x_zero)(w - w_zero) + sum_bias, the attribute `dtype` says what becomes of the sum:

* int32: s itself, which wraps.
* a float: act(s * scale + bias + residual), the epilogue of `npu.linear`.
* int8, uint8: v = s * scale + bias in steps of the result; saturate(round(v) + y_zero), where `act`
  may be "relu". A residual of 8 bits comes in as the terms say:
  saturate(round(round(clamp(v, t0, t1)) * t2 + residual * t3 + t4)), t4 having y_zero in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from npusim.errors import ShapeError
from npusim.ir.graph import Node
from npusim.ir.types import TensorType
from npusim.ops.conv import (
    as_tuple,
    channels_last,
    channels_last_result,
    strides5,
    window_params,
)
from npusim.ops.fused import NO_EPILOGUE, broadcast_shapes, finish_product, infer_conv
from npusim.ops.linear import PANEL, activation, rows
from npusim.ops.opdef import Case, OpDef, register
from npusim.ops.scalar import OPCODES
from npusim.program.lowering import Lowering, Param, codes
from npusim.program.view import View

if TYPE_CHECKING:
    from torch import Tensor

INT8_MATMUL = "npu.int8_matmul"
INT8_CONV = "npu.int8_conv"
BYTES = ("int8", "uint8")
OPERANDS = 10  # x, w and the eight that may be None

# The reference


def reference_int8_matmul(
    a: Tensor, b: Tensor, /, *rest: Tensor | None, dtype: str, **epilogue: Any
) -> Tensor:
    """Computes `npu.int8_matmul`."""
    x_zero, w_zero = rest[:2]
    total = _shifted(a, x_zero) @ _shifted(b, w_zero)
    return _finished(total, rest[2:], dtype, (-1,), epilogue)


def reference_int8_conv(
    x: Tensor,
    w: Tensor,
    /,
    *rest: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    padding_back: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: str,
    **epilogue: Any,
) -> Tensor:
    """Computes `npu.int8_conv`, in float64, which holds every sum."""
    import torch
    from torch.nn import functional as F

    rank = x.dim() - 2
    x_zero, w_zero = rest[:2]
    pads = [n for pair in zip(padding, padding_back, strict=True) for n in pair[::-1]][::-1]
    channel = (-1, *(1,) * (rank + 1))
    weight = _shifted(w, None if w_zero is None else w_zero.reshape(channel))
    zeros = (0,) * rank
    total = torch.convolution(
        F.pad(_shifted(x, x_zero), pads), weight, None, tuple(stride), zeros, tuple(dilation),
        False, zeros, groups,
    )  # fmt: skip
    return _finished(total, rest[2:], dtype, (-1, *(1,) * rank), epilogue)


def _shifted(x: Tensor, zero: Tensor | None) -> Tensor:
    import torch

    return x.double() if zero is None else x.double() - zero.to(torch.float64)


def _finished(
    total: Tensor,
    rest: Sequence[Tensor | None],
    dtype: str,
    channel: tuple[int, ...],
    epilogue: dict[str, Any],
) -> Tensor:
    import torch

    scale, sum_bias, bias, residual, terms, y_zero = rest
    if sum_bias is not None:
        total = total + sum_bias.reshape(channel)
    whole = total.to(torch.int64).to(torch.int32)
    if dtype == "int32":
        return whole
    assert scale is not None
    kind = getattr(torch, dtype)
    v = whole.float() * (scale.reshape(channel) if scale.numel() > 1 else scale.reshape(()))
    shift = None if bias is None else bias.reshape(channel)
    if dtype not in BYTES:
        return finish_product(v, shift, residual, epilogue).to(kind)
    limits = torch.iinfo(kind)
    zero = 0.0 if y_zero is None else float(y_zero)
    low = max(float(limits.min), zero) if epilogue["act"] == "relu" else float(limits.min)
    v = v if shift is None else v + shift
    if residual is None:
        return (v.round() + zero).clamp(low, limits.max).to(kind)
    assert terms is not None
    v = v.clamp(terms[0], terms[1]).round() * terms[2] + residual.float() * terms[3] + terms[4]
    return v.clamp(low, limits.max).round().to(kind)


# Types


def infer_int8_matmul(
    a: TensorType, b: TensorType, /, *rest: TensorType | None, dtype: str, **epilogue: Any
) -> TensorType:
    """Returns the type of `npu.int8_matmul`; ShapeError when the operands do not fit."""
    if not a.rank or b.rank < 2 or a.shape[-1] != b.shape[-2]:
        raise ShapeError(f"{INT8_MATMUL}: cannot multiply {a} by {b}.")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    result = TensorType(dtype, (*batch, *a.shape[-2:-1], b.shape[-1]))
    _check_operands(INT8_MATMUL, (a, b, *rest), result, b.shape[-1], epilogue)
    if b.rank > 2 and any(t is not None and t.numel > 1 for t in (*rest[1:5], rest[6])):
        raise ShapeError(f"{INT8_MATMUL}: {b} are several matrices; each is scaled as a whole.")
    return result


def infer_int8_conv(
    x: TensorType,
    w: TensorType,
    /,
    *rest: TensorType | None,
    stride: Sequence[int],
    padding: Sequence[int],
    padding_back: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    dtype: str,
    **epilogue: Any,
) -> TensorType:
    """Returns the type of `npu.int8_conv`; ShapeError when operands or attributes do not fit."""
    plain = infer_conv(
        x, w, None, None, stride=stride, padding=padding, padding_back=padding_back,
        dilation=dilation, output_padding=(0,) * len(stride), groups=groups, transposed=False,
        **NO_EPILOGUE,
    )  # fmt: skip
    result = TensorType(dtype, plain.shape)
    _check_operands(INT8_CONV, (x, w, *rest), result, plain.shape[1], epilogue)
    return result


def _check_operands(
    op: str,
    operands: Sequence[TensorType | None],
    result: TensorType,
    n: int,
    epilogue: dict[str, Any],
) -> None:
    if len(operands) != OPERANDS:
        raise ShapeError(f"{op}: {len(operands)} operands; expected {OPERANDS}.")
    x, w, x_zero, w_zero, scale, sum_bias, bias, residual, terms, y_zero = operands
    assert x is not None and w is not None
    if x.dtype not in BYTES or w.dtype not in BYTES:
        raise ShapeError(f"{op}: the operands are {x} and {w}, not of 8 bits.")

    def check(what: str, t: TensorType | None, dtype: str, counts: tuple[int, ...]) -> None:
        if t is not None and (t.dtype != dtype or t.numel not in counts):
            raise ShapeError(f"{op}: the {what} is {t}; expected {dtype} of {n} or one element.")

    makes_bytes = result.dtype in BYTES
    check("zero point of x", x_zero, x.dtype, (1,))
    check("zero point of the weight", w_zero, w.dtype, (1, n))
    check("scale", scale, "float32", (1, n))
    check("bias of sums", sum_bias, "int32", (n,))
    check("bias", bias, "float32", (n,))
    check("terms", terms, "float32", (5,))
    check("zero point of the result", y_zero, result.dtype, (1,))
    if (scale is None) != (result.dtype == "int32"):
        raise ShapeError(f"{op}: a result in {result.dtype} has the scale {scale}.")
    if (y_zero is not None and not makes_bytes) or (terms is not None) != (
        makes_bytes and residual is not None
    ):
        raise ShapeError(f"{op}: the operands do not fit a result in {result.dtype}.")
    if (residual is None) != (epilogue["residual"] == 0):
        raise ShapeError(f"{op}: residual={epilogue['residual']}, but it is {residual}.")
    if residual is not None:
        kinds = BYTES if makes_bytes else (result.dtype,)
        if residual.shape != result.shape or residual.dtype not in kinds:
            raise ShapeError(f"{op}: the residual is {residual}, the result {result}.")
    allowed = ("copy", "relu") if makes_bytes else tuple(OPCODES)
    if result.dtype == "int32":
        allowed = ("copy",)
    if epilogue["act"] not in allowed:
        raise ShapeError(f"{op}: {epilogue['act']} of a result in {result.dtype}.")


# Lowering


def _lower_int8_matmul(node: Node, low: Lowering) -> None:
    a, b = (low.view(i) for i in node.inputs[:2] if i is not None)
    y = low.result(node.output)
    if y.numel == 0:
        return
    k, n = b.shape[-2:]
    residual = None if node.inputs[7] is None else low.dense(low.view(node.inputs[7]))
    if b.rank == 2:
        a, m, stride = rows(low, a)
        groups, x_group = 1, k
        channel = 1
        packed_from = b.unsqueeze(0)
    else:
        lead, m = y.shape[:-2], y.shape[-2]
        groups = prod(lead)
        flat = _stacked(low, a.expand((*lead, m, k)), groups)
        packed_from = _stacked(low, b.expand((*lead, k, n)), groups)
        a, stride, channel, x_group = flat, flat.strides[1], flat.strides[2], flat.strides[0]
    line = View(a.buffer, a.offset, a.dtype, (1, groups * k, m), (0, channel, stride))
    result = View(y.buffer, y.offset, y.dtype, (1, groups * n, m), (0, 1, n))
    params: dict[str, Param] = {
        **window_params(line, result, kernel=(1,), stride=(1,), padding=(0,), dilation=(1,)),
        "r_strides": strides5(result),
        "groups": groups,
        "x_group": x_group,
        "y_group": m * n,
        "depthwise": 0,
    }
    if groups == 1:
        params["y_group"] = n
    strides = (packed_from.strides[0], packed_from.strides[2], 0, packed_from.strides[1])
    packed = _pack(low, packed_from, groups, n, 1, k, strides)
    _emit(node, low, params, a, packed, b.dtype, residual, y)


def _stacked(low: Lowering, x: View, count: int) -> View:
    """Returns matrices as [count, rows, columns], one stride apart; copies only if needed."""
    flat = x.reshape((count, *x.shape[-2:]))
    if flat is None:
        flat = low.dense(x).reshape((count, *x.shape[-2:]))
    assert flat is not None
    return flat


def _lower_int8_conv(node: Node, low: Lowering) -> None:
    x, w = (low.view(i) for i in node.inputs[:2] if i is not None)
    y = channels_last_result(node, low)
    if y.numel == 0:
        return
    rank, groups = x.rank - 2, node.attrs["groups"]
    assert isinstance(groups, int)
    order = channels_last(x.rank)
    residual = None if node.inputs[7] is None else low.dense(low.view(node.inputs[7]), order)
    depthwise = groups == x.shape[1] == y.shape[1] and groups > 1
    x = low.dense(x, order)
    attrs = {k: as_tuple(node.attrs[k], rank) for k in ("stride", "padding", "dilation")}
    taps, (outputs, channels) = prod(w.shape[2:]), w.shape[:2]
    w = low.dense(w) if taps > 1 else w
    parts = 1 if depthwise else groups
    n = outputs // parts
    strides = (n * w.strides[0], w.strides[0], w.strides[-1] if taps > 1 else 0, w.strides[1])
    params: dict[str, Param] = {
        **window_params(x, y, kernel=w.shape[2:], **attrs),
        "r_strides": strides5(y),
        "groups": parts,
        "x_group": channels * x.strides[1],
        "y_group": n,
        "depthwise": int(depthwise),
    }
    packed = _pack(low, w, parts, n, taps, channels, strides, depthwise)
    _emit(node, low, params, x, packed, w.dtype, residual, y)


def _pack(
    low: Lowering,
    w: View,
    groups: int,
    n: int,
    taps: int,
    channels: int,
    strides: Sequence[int],
    depthwise: bool = False,
) -> View:
    """Returns w as `conv_int8` reads it, made at most once for a weight; strides: g, n, t, c."""
    names = ("g_stride", "n_stride", "t_stride", "c_stride")
    params: dict[str, Param] = {
        "groups": groups,
        "n": n,
        "taps": taps,
        "channels": channels,
        **dict(zip(names, strides, strict=True)),
        "depthwise": int(depthwise),
        **codes(x_dtype=w.dtype),
    }

    def make() -> View:
        packed = TensorType("uint8", (packed_bytes(params),))
        y = low.temp(packed, static=low.is_static(w))
        low.emit("pack_int8", params, [w], [y])
        return y

    return low.once((w, "int8", groups, n, taps, channels, *strides, depthwise), make)


def packed_bytes(p: dict[str, Any]) -> int:
    """Returns the size of what `pack_int8` writes, by its parameters."""
    columns = -(-p["n"] // PANEL) * PANEL
    k = p["taps"] * p["channels"]
    depth = k if p["depthwise"] else -(-k // 4) * 4
    return int(p["groups"] * columns * (depth + 4))


def _emit(
    node: Node,
    low: Lowering,
    params: dict[str, Param],
    x: View,
    packed: View,
    w_dtype: str,
    residual: View | None,
    y: View,
) -> None:
    vectors = (*node.inputs[2:7], None, *node.inputs[8:])
    optional = [None if i is None else low.dense(low.view(i)) for i in vectors]
    optional[5] = residual
    x_zero, w_zero, scale, sum_bias, bias, _, _, y_zero = optional
    act, lo, hi = activation(node)
    params |= {
        "w_zeros": 0 if w_zero is None else w_zero.numel,
        "scales": 0 if scale is None else scale.numel,
        "has_x_zero": int(x_zero is not None),
        "has_sum_bias": int(sum_bias is not None),
        "has_y_zero": int(y_zero is not None),
        "has_bias": int(bias is not None),
        "residual": int(residual is not None) and _mode(node),
        "act": OPCODES[act][0],
        "act_lo": lo,
        "act_hi": hi,
        **codes(x_dtype=x.dtype, w_dtype=w_dtype, y_dtype=y.dtype),
        **codes(r_dtype=y.dtype if residual is None else residual.dtype),
    }
    reads = [x, packed, *(v for v in optional if v is not None)]
    low.emit("conv_int8", params, reads, [y], in_place=[] if residual is None else [residual])


def _mode(node: Node) -> int:
    mode = node.attrs["residual"]
    assert isinstance(mode, int)
    return mode


# Registration

_PLAIN = {"dtype": "int32", **NO_EPILOGUE}
_STEP = ((1,), ("float32", 0.03125))
_CONV = {"stride": (2, 1), "padding": (1, 1), "padding_back": (0, 1), "dilation": (1, 1)}
_NONE = (None,) * 6

register(
    OpDef(
        INT8_MATMUL,
        lower=_lower_int8_matmul,
        reference=reference_int8_matmul,
        infer=infer_int8_matmul,
        cases=(
            Case(((3, 5, 33), (33, 19), (1,), (19,), *_NONE), _PLAIN, "sums"),
            Case(((2, 1, 4, 8), (3, 8, 5), (1,), (1,), *_NONE), _PLAIN, "batched"),
            Case(
                ((6, 40), (40, 20), (1,), None, _STEP, None, None, None, None, None),
                {**_PLAIN, "dtype": "float32", "act": "silu"},
                "float",
            ),
            Case(
                ((6, 40), (40, 20), (1,), None, _STEP, None, None, None, None, ((), ("int8", -3))),
                {**_PLAIN, "dtype": "int8", "act": "relu"},
                "bytes",
            ),
        ),
        dtypes=BYTES,
    )
)
register(
    OpDef(
        INT8_CONV,
        lower=_lower_int8_conv,
        reference=reference_int8_conv,
        infer=infer_int8_conv,
        cases=(
            Case(
                ((2, 6, 9, 7), (8, 3, 3, 2), (1,), (8,), *_NONE),
                {**_PLAIN, **_CONV, "groups": 2},
                "sums",
            ),
            Case(
                ((1, 24, 6, 6), (24, 1, 3, 3), (1,), None, _STEP, *(None,) * 4, None),
                {**_PLAIN, **_CONV, "groups": 24, "dtype": "uint8"},
                "depthwise",
            ),
        ),
        dtypes=BYTES,
    )
)
