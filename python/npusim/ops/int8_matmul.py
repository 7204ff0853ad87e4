"""`npu.int8_matmul` and `npu.int8_conv`: products of 8-bit integers, summed exactly.

* `npu.int8_matmul(a[…, m, k], b[…, k, n], …)`, broadcast as PyTorch's matmul; a may be a vector.
* `npu.int8_conv(x[b, c, spatial…], w[out, in/groups, kernel…], …)`; `padding` is before each
  spatial dimension, `padding_back` behind. What is padded counts as the zero point of x. With
  `transposed` it is the transposed convolution by the same w, of one group and without dilation;
  what is padded is cut off the result, and a negative number adds to it.

Both take, after the two, and None for each that is absent: x_zero (one element of x's dtype),
w_zero (one, or one a column, of w's dtype), scale (likewise, float32), sum_bias[n] (int32),
bias[n] (float32), residual, terms (float32: five with a residual, one with an activation of bytes),
y_zero (one element). With
s = Σ (x - x_zero)(w - w_zero) + sum_bias, the attribute `dtype` says what becomes of the sum:

* int32: s itself, which wraps.
* a float: act(s * scale + bias + residual), the epilogue of `npu.linear`.
* int8, uint8: v = s * scale + bias in steps of the result; saturate(round(v) + y_zero), where `act`
  may be "relu". Any other activation is of the sum in the units of floats, and the term makes steps
  of it: v = act(s * scale + bias) * t0. A residual of 8 bits comes in as the terms say:
  saturate(round(round(clamp(v, t0, t1)) * t2 + residual * t3 + t4)), t4 having y_zero in it.
  With the attribute `requantize`, a rounding of `abi/requantization.py`, that is done by integers:
  saturate(rounded(s * scale) + y_zero), without a bias, and with a residual
  saturate(rounded(clamp(v, t0, t1) * t2 + (residual - t4) * t3) + y_zero).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from npusim.abi.requantization import ROUNDINGS
from npusim.abi.scalar import OPCODES
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering, Param, codes
from npusim.lowering.view import View
from npusim.ops.conv import (
    as_tuple,
    channels_last,
    channels_last_result,
    strides5,
    window_params,
)
from npusim.ops.conv_phases import phase_views, phases
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.int8_reference import (
    BYTES,
    INT8_CONV,
    INT8_MATMUL,
    infer_int8_conv,
    infer_int8_matmul,
    reference_int8_conv,
    reference_int8_matmul,
)
from npusim.ops.linear import PANEL, activation, rows


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
    order = channels_last(x.rank)
    residual = None if node.inputs[7] is None else low.stored(low.view(node.inputs[7]), order)
    x = low.stored(x, order)
    names = ("stride", "padding", "dilation")
    attrs = {k: as_tuple(node.attrs[k], x.rank - 2) for k in names}
    emit = _emit_phases if node.attrs.get("transposed") else _emit_conv
    emit(node, low, x, w, residual, y, attrs)


def _emit_phases(
    node: Node,
    low: Lowering,
    x: View,
    w: View,
    residual: View | None,
    y: View,
    attrs: dict[str, tuple[int, ...]],
) -> None:
    """Emits a transposed convolution as plain ones, each of which writes every stride-th of y."""
    stride, ones = attrs["stride"], (1,) * (x.rank - 2)
    for phase in phases(y.shape[2:], w.shape[2:], stride, attrs["padding"]):
        of_x, of_w, of_y, of_residual = phase_views(phase, stride, x, w, y, residual)
        padding = tuple(one.padding for one in phase)
        geometry = {"stride": ones, "padding": padding, "dilation": ones}
        _emit_conv(node, low, of_x, low.dense(of_w), of_residual, of_y, geometry)


def _emit_conv(
    node: Node,
    low: Lowering,
    x: View,
    w: View,
    residual: View | None,
    y: View,
    attrs: dict[str, tuple[int, ...]],
) -> None:
    groups = node.attrs["groups"]
    assert isinstance(groups, int)
    depthwise = groups == x.shape[1] == y.shape[1] and groups > 1
    taps, (outputs, channels) = prod(w.shape[2:]), w.shape[:2]
    w = low.dense(w) if taps > 1 else w
    parts = 1 if depthwise else groups
    n = outputs // parts
    strides = (n * w.strides[0], w.strides[0], w.strides[-1] if taps > 1 else 0, w.strides[1])
    params: dict[str, Param] = {
        **window_params(x, y, kernel=w.shape[2:], **attrs),
        "r_strides": strides5(y if residual is None else residual),
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
    """Returns the size of what `pack_int8` writes, by its parameters; calls may choose them."""
    whole = 4 * PANEL if p["depthwise"] else PANEL
    columns = -(-p["n"] // whole) * whole
    depth = -(-p["taps"] * p["channels"] // 4) * 4
    size: int = p["groups"] * columns * (depth + 4)
    return size


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
        "requantization": ROUNDINGS.get(str(node.attrs.get("requantize")), 0),
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
_INVERSE = ((1,), ("float32", 20.0))
_CONV = {"stride": (2, 1), "padding": (1, 1), "padding_back": (0, 1), "dilation": (1, 1)}
_NONE = (None,) * 6
_TRANSPOSED = {**_CONV, "padding": (1, 2), "padding_back": (0, 0), "groups": 1, "transposed": True}

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
            Case(
                ((6, 40), (40, 20), (1,), None, _STEP, None, None, None, None, ((), ("int8", -3))),
                {**_PLAIN, "dtype": "int8", "requantize": "half_away"},
                "bytes by integers",
            ),
            Case(
                ((6, 40), (40, 20), (1,), None, _STEP, None, None, None, _INVERSE, None),
                {**_PLAIN, "dtype": "uint8", "act": "sigmoid"},
                "activated bytes",
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
            Case(
                ((1, 24, 6, 6), (24, 1, 3, 3), (1,), None, _STEP, *(None,) * 4, None),
                {**_PLAIN, **_CONV, "groups": 24, "dtype": "uint8", "requantize": "double"},
                "depthwise by integers",
            ),
            Case(
                ((1, 72, 6, 6), (72, 1, 3, 3), (1,), None, _STEP, *(None,) * 3, _INVERSE, None),
                {**_PLAIN, **_CONV, "groups": 72, "dtype": "int8", "act": "silu"},
                "activated depthwise",
            ),
            Case(
                ((2, 20, 5, 4), (9, 20, 2, 2), (1,), (9,), *_NONE),
                {**_PLAIN, **_TRANSPOSED, "stride": (2, 2), "padding": (0, 0)},
                "transposed",
            ),
            Case(
                ((1, 8, 4, 5), (24, 8, 4, 3), (1,), None, _STEP, *(None,) * 4, None),
                {**_PLAIN, **_TRANSPOSED, "padding_back": (1, -1), "dtype": "uint8"},
                "transposed bytes",
            ),
        ),
        dtypes=BYTES,
    )
)
