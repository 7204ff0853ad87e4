"""Fused operators of npusim, each as the composition that its reference computes.

Those that are not here (caches, quantized weights, sampling) exist for npusim's kernels alone.
"""

from __future__ import annotations

from npusim.exporters.onnx import scalar
from npusim.exporters.onnx.convolution import convolve
from npusim.exporters.onnx.matmul import linear
from npusim.exporters.onnx.normalization import group_norm, rms_norm
from npusim.exporters.onnx.registry import Call, Tensor, translation
from npusim.ops.fused import activation_program


def _finish(call: Call, y: Tensor, addend: Tensor | None) -> Tensor:
    """Applies an epilogue's residual and activation."""
    if call.attr("residual") == 1 and addend is not None:
        y = call.op("Add", y, addend)
    y = _activated(call, y, call.attr("act_lo", 0.0), call.attr("act_hi", 0.0))
    return call.op("Add", y, addend) if call.attr("residual") == 2 and addend else y


def _activated(call: Call, y: Tensor, low: float = 0.0, high: float = 0.0) -> Tensor:
    act = str(call.attr("act", "copy"))
    if act == "copy":
        return y
    cls = "d" if y.dtype == "float64" else "f"
    return call.cast(scalar.emit(call, activation_program(act, low, high, cls), [y]), y.dtype)


@translation("npu.linear")
def _linear(
    call: Call, x: Tensor, w: Tensor, bias: Tensor | None = None, addend: Tensor | None = None
) -> Tensor:
    return _finish(call, linear(call, x, w, bias), addend)


@translation("npu.group_norm")
def _activated_group_norm(
    call: Call, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    return _activated(call, group_norm(call, x, weight, bias))


@translation("npu.gated_linear")
def _gated_linear(call: Call, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
    gate, up = _halves(call, linear(call, x, w, bias), x.rank - 1)
    return call.op("Mul", _activated(call, gate), up)


def _halves(call: Call, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    size = x.shape[dim] // 2
    shape = (*x.shape[:dim], size, *x.shape[dim + 1 :])
    parts = call.ops("Split", x, call.ints([size, size]), results=[(x.dtype, shape)] * 2, axis=dim)
    return parts[0], parts[1]


@translation("npu.normed_linear")
def _normed_linear(
    call: Call,
    x: Tensor,
    norm: Tensor,
    w: Tensor,
    bias: Tensor | None = None,
    addend: Tensor | None = None,
) -> Tensor:
    normed = rms_norm(call, x, norm, x.shape[-1:], float(call.attr("eps")))
    return _finish(call, linear(call, normed, w, bias), addend)


@translation("npu.normed_gated_linear")
def _normed_gated_linear(
    call: Call, x: Tensor, norm: Tensor, w: Tensor, bias: Tensor | None = None
) -> Tensor:
    normed = rms_norm(call, x, norm, x.shape[-1:], float(call.attr("eps")))
    return _gated_linear(call, normed, w, bias)


@translation("npu.conv")
def _conv(
    call: Call, x: Tensor, w: Tensor, bias: Tensor | None = None, addend: Tensor | None = None
) -> Tensor:
    pads = [*call.attr("padding"), *call.attr("padding_back")]
    transposed = bool(call.attr("transposed"))
    if bias is None or bias.rank == 1:
        return _finish(call, convolve(call, x, w, bias, pads, transposed=transposed), addend)
    shape = (1, bias.shape[1], *(1,) * (x.rank - 2))
    vectors = [
        call.cast(call.reshape(call.slice(bias, 0, i, i + 1), shape), x.dtype)
        for i in range(bias.shape[0])
    ]
    y = convolve(call, x, w, None, pads, transposed=transposed)
    y = call.broadcast("Mul", y, vectors[1]) if len(vectors) > 1 else y
    y = _finish(call, call.broadcast("Add", y, vectors[0]), addend)
    return call.broadcast("Add", y, vectors[2]) if len(vectors) > 2 else y


@translation("npu.rope")
def _rope(call: Call, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    width, size = int(call.attr("rotary_dim")), x.shape[-1]
    last = x.rank - 1
    turned, rest = call.slice(x, last, 0, width), call.slice(x, last, width, size)
    if call.attr("interleaved"):
        pairs = call.reshape(turned, (*turned.shape[:-1], width // 2, 2))
        even, odd = (call.slice(pairs, last + 1, i, i + 1) for i in (0, 1))
        partner = call.concat([call.op("Neg", odd), even], last + 1)
        partner = call.reshape(partner, turned.shape)
    else:
        first, second = _halves(call, turned, last)
        partner = call.concat([call.op("Neg", second), first], last)
    c, s = (call.reshape(call.cast(t, x.dtype), (t.shape[0], 1, *t.shape[1:])) for t in (cos, sin))
    result = call.op("Add", call.broadcast("Mul", turned, c), call.broadcast("Mul", partner, s))
    return call.concat([result, rest], last) if width < size else result
