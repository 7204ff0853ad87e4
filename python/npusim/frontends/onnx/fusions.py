"""Operators that ONNX Runtime's optimizers make of others: products and normalizations that take in
what stands beside them. The attention of that domain is in `fused_attention`.

Formulas: docs/ContribOperators.md of ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.matmul import convolved, gemm, matmul, windows
from npusim.frontends.onnx.pooling import max_pool
from npusim.frontends.onnx.registry import Call, translation

DOMAIN = "com.microsoft"


# ---- activations ----


def _activated(name: str, y: Tensor, numbers: Sequence[float]) -> Tensor:
    """Returns an activation by ONNX's name, its parameters in the order of the attribute."""
    if name == "Relu":
        return y.op("relu.default")
    if name in ("Tanh", "Sigmoid", "Softplus", "HardSwish"):
        return y.op(f"{name.lower()}.default")
    if name == "Softsign":
        return y / (y.op("abs.default") + 1.0)
    if name == "LeakyRelu":
        return y.op("leaky_relu.default", *numbers[:1])
    if name == "Clip":
        return y.op("clamp.default", *numbers[:2])
    if name == "HardSigmoid":
        return (y * numbers[0] + numbers[1]).op("clamp.default", 0.0, 1.0)
    raise ExportError(f"the fused activation {name} has no meaning here.")


@translation("Gelu", domain=DOMAIN)
def _gelu(call: Call, x: Tensor) -> Tensor:
    return x.op("gelu.default")


@translation("FastGelu", domain=DOMAIN)
def _fast_gelu(call: Call, x: Tensor, bias: Tensor | None = None) -> Tensor:
    return (x if bias is None else x + bias).op("gelu.default", approximate="tanh")


@translation("BiasGelu", domain=DOMAIN)
def _bias_gelu(call: Call, x: Tensor, bias: Tensor) -> Tensor:
    return (x + bias).op("gelu.default")


@translation("QuickGelu", domain=DOMAIN)
def _quick_gelu(call: Call, x: Tensor) -> Tensor:
    alpha = call.float("alpha", 1.702)
    if alpha == 1.0:
        return x.op("silu.default")
    return x * (x * alpha).op("sigmoid.default")


# ---- products ----


@translation("FusedConv", domain=DOMAIN, hints=("kernel_shape",))  # the weight's
def _fused_conv(
    call: Call, x: Tensor, w: Tensor, b: Tensor | None = None, z: Tensor | None = None
) -> Tensor:
    setting = windows(call, x.shape[2:], w.shape[2:])
    y = convolved(x, w, b, setting, call.int("group", 1))
    y = y if z is None else y + z
    name = call.str("activation")
    numbers = [float(v) for v in call.attrs.get("activation_params", ())]
    return _activated(name, y, numbers) if name else y


@translation("FusedGemm", domain=DOMAIN)
def _fused_gemm(call: Call, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    y, name = gemm(call, a, b, c), call.str("activation")
    order = {"Clip": ("min", "max"), "HardSigmoid": ("alpha", "beta")}.get(name, ("alpha",))
    numbers = [call.float(f"activation_{part}", 0.01) for part in order]
    return _activated(name, y, numbers) if name else y


@translation("FusedMatMul", "TransposeMatMul", domain=DOMAIN)
def _fused_matmul(call: Call, a: Tensor, b: Tensor) -> Tensor:
    a, b = (
        _rows_first(t) if call.int(name) else t
        for t, name in ((a, "transBatchA"), (b, "transBatchB"))
    )
    a = _turned(a) if call.int("transA") else a
    b = _turned(b) if call.int("transB") else b
    alpha = call.float("alpha", 1.0)
    product = matmul(a, b)
    return product if alpha == 1.0 else product * alpha


def _rows_first(x: Tensor) -> Tensor:
    """Returns [rows, batch…, columns] as [batch…, rows, columns]."""
    return x.permute((*range(1, x.rank - 1), 0, x.rank - 1))


def _turned(x: Tensor) -> Tensor:
    return x if x.rank < 2 else x.permute((*range(x.rank - 2), x.rank - 1, x.rank - 2))


@translation("NhwcMaxPool", domain=DOMAIN)
def _nhwc_max_pool(call: Call, x: Tensor) -> Tensor:
    last = x.rank - 1
    best = max_pool(call, x.permute((0, last, *range(1, last))))[0]
    assert best is not None
    return best.permute((0, *range(2, x.rank), 1))


# ---- normalizations ----


@translation("LayerNormalization", domain=DOMAIN)
def _layer_norm(call: Call, x: Tensor, scale: Tensor, bias: Tensor | None = None) -> Tensor:
    shape = x.shape[call.int("axis", -1) % x.rank :]
    return x.op("layer_norm.default", list(shape), scale, bias, call.float("epsilon", 1e-5))


@translation("SimplifiedLayerNormalization", domain=DOMAIN)
def _simplified_layer_norm(call: Call, x: Tensor, scale: Tensor) -> Tensor:
    shape = x.shape[call.int("axis", -1) % x.rank :]
    stash = call.int("stash_type", TensorProto.FLOAT)
    if stash != TensorProto.FLOAT:
        name = TensorProto.DataType.Name(stash)
        raise ExportError(f"its stash_type is {name}; it is computed in FLOAT alone.")
    return x.op("rms_norm.default", list(shape), scale, call.float("epsilon", 1e-5))


@translation("SkipLayerNormalization", domain=DOMAIN)
def _skip_layer_norm(
    call: Call,
    x: Tensor,
    skip: Tensor,
    gamma: Tensor,
    beta: Tensor | None = None,
    bias: Tensor | None = None,
) -> list[Tensor | None]:
    total = x + skip if bias is None else x + bias + skip
    eps = call.float("epsilon", 1e-12)
    return [total.op("layer_norm.default", [x.shape[-1]], gamma, beta, eps), None, None, total]


@translation("SkipSimplifiedLayerNormalization", domain=DOMAIN)
def _skip_simplified(
    call: Call, x: Tensor, skip: Tensor, gamma: Tensor, bias: Tensor | None = None
) -> list[Tensor | None]:
    total = x + skip if bias is None else x + bias + skip
    eps = call.float("epsilon", 1e-12)
    return [total.op("rms_norm.default", [x.shape[-1]], gamma, eps), None, None, total]


@translation("EmbedLayerNormalization", domain=DOMAIN)
def embedded(
    call: Call,
    ids: Tensor,
    segments: Tensor | None,
    words: Tensor,
    places: Tensor,
    kinds: Tensor | None,
    gamma: Tensor,
    beta: Tensor,
    mask: Tensor | None = None,
    position: Tensor | None = None,
) -> list[Tensor | None]:
    """Returns the normalized embeddings, how many tokens each mask lets through, and the sum."""
    graph, (batch, length) = call.graph, ids.shape
    total = graph.op("embedding.default", words, ids.to("int64"))
    if position is None:
        total = total + places.slice(0, 0, length)
    else:
        total = total + graph.op("embedding.default", places, position.to("int64"))
    if segments is not None and kinds is not None:
        total = total + graph.op("embedding.default", kinds, segments.to("int64"))
    eps = call.float("epsilon", 1e-12)
    y = total.op("layer_norm.default", [total.shape[-1]], gamma, beta, eps)
    if mask is None:
        lengths = graph.known(np.zeros(batch, np.int32))
    else:
        lengths = mask.op("sum.dim_IntList", [1]).to("int32", TensorProto.INT32)
    return [y, lengths, total]
