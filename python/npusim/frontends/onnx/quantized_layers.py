"""Whole layers with quantized weights, as ONNX Runtime's quantizer writes them: attention with its
projection, embeddings with their normalization, LSTM. Formulas: docs/ContribOperators.md.
"""

from __future__ import annotations

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.fused_attention import projected_attention
from npusim.frontends.onnx.fusions import DOMAIN, embedded
from npusim.frontends.onnx.matmul import matmul
from npusim.frontends.onnx.microsoft import floats_of
from npusim.frontends.onnx.quantization import dynamically_quantized
from npusim.frontends.onnx.recurrent import recurrent
from npusim.frontends.onnx.registry import Call, Results, translation


@translation("QAttention", domain=DOMAIN)
def _attention(
    call: Call,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    x_scale: Tensor,
    weight_scale: Tensor,
    mask: Tensor | None = None,
    x_zero: Tensor | None = None,
    weight_zero: Tensor | None = None,
    past: Tensor | None = None,
) -> list[Tensor | None]:
    wide = floats_of(call, x, x_scale, x_zero)
    product = matmul(wide, floats_of(call, weight, weight_scale, weight_zero))
    return projected_attention(call, product + bias, mask, past)


@translation("QEmbedLayerNormalization", domain=DOMAIN)
def _embed(
    call: Call,
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    places: Tensor,
    kinds: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None,
    *numbers: Tensor | None,
) -> list[Tensor | None]:
    """`numbers` are the scales of the five tables and then their zero points."""

    def table(t: Tensor, place: int) -> Tensor:
        scale, zero = numbers[place], numbers[place + 5]
        if scale is None:
            raise ExportError("a table of codes has no scale.")
        return floats_of(call, t, scale, zero)

    kind = None if kinds is None else table(kinds, 2)
    wide = (table(words, 0), table(places, 1), kind, table(gamma, 3), table(beta, 4))
    return embedded(call, ids, segments, *wide, mask)[:2]


@translation("DynamicQuantizeLSTM", domain=DOMAIN, hints=("hidden_size",))
def _lstm(
    call: Call,
    x: Tensor,
    w: Tensor,
    r: Tensor,
    b: Tensor | None,
    lengths: Tensor | None,
    h: Tensor | None,
    c: Tensor | None,
    peepholes: Tensor | None,
    w_scale: Tensor,
    w_zero: Tensor,
    r_scale: Tensor,
    r_zero: Tensor,
) -> Results:
    """Weights are turned, [directions, inputs, gates]; x and states are made bytes on the way."""
    w = floats_of(call, w, _columns(w_scale, w), _columns(w_zero, w)).permute((0, 2, 1))
    r = floats_of(call, r, _columns(r_scale, r), _columns(r_zero, r)).permute((0, 2, 1))
    return recurrent(call, x, w, r, b, lengths, h, c, peepholes, operand=_rounded, kind="LSTM")


def _columns(t: Tensor, weight: Tensor) -> Tensor:
    """Returns a number for each direction, or for each of its columns, beside the weight."""
    return t.view((weight.shape[0], 1, t.type.numel // weight.shape[0]))


def _rounded(x: Tensor) -> Tensor:
    """Returns what is left of x when it has been made bytes over its own range."""
    codes, scale, zero = dynamically_quantized(x)
    return (codes.to(x.dtype, x.kind) - zero.to(x.dtype, x.kind)) * scale
