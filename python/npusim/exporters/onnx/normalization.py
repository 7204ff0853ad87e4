"""Normalizations."""

from __future__ import annotations

import math

from npusim.exporters.onnx.registry import Call, Results, Tensor, translation


def _ones(call: Call, count: int, dtype: str) -> Tensor:
    return call.const([1.0] * count, dtype)


def _zeros(call: Call, count: int, dtype: str) -> Tensor:
    return call.const([0.0] * count, dtype)


def _affine(call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Returns x times a weight a channel, plus a bias a channel."""
    for op, factor in (("Mul", weight), ("Add", bias)):
        if factor is not None:
            spread = call.reshape(factor, (factor.shape[0], *(1,) * (x.rank - 2)))
            x = call.broadcast(op, x, spread)
    return x


def _standardized(call: Call, x: Tensor, dims: list[int], eps: float) -> Tensor:
    """Returns x less its mean, divided by its standard deviation, over dimensions."""
    apart = call.broadcast("Sub", x, call.reduce("ReduceMean", x, dims, True))
    variance = call.reduce("ReduceMean", call.op("Mul", apart, apart), dims, True)
    root = call.op("Sqrt", call.op("Add", variance, call.const(eps, x.dtype)))
    return call.broadcast("Div", apart, root)


@translation("aten.batch_norm.default", "aten._native_batch_norm_legit_no_training.default")
def _batch_norm(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, *running: Tensor | None
) -> Results:
    mean, variance = (*running, None, None)[:2]
    more: list[Tensor | None] = [None] * (len(call.node.outputs) - 1)
    eps = float(call.attr("eps"))
    if call.attr("training") or mean is None or variance is None:
        dims = [0, *range(2, x.rank)]
        return [_affine(call, _standardized(call, x, dims, eps), weight, bias), *more]
    channels = x.shape[1]
    weight = weight or _ones(call, channels, x.dtype)
    bias = bias or _zeros(call, channels, x.dtype)
    for i in range(1, len(call.node.outputs)):
        more[i - 1] = call.const([], call.node.outputs[i].type.dtype)
    return [call.op("BatchNormalization", x, weight, bias, mean, variance, epsilon=eps), *more]


@translation("aten.layer_norm.default")
def _layer_norm(
    call: Call, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    shape = tuple(call.attr("normalized_shape"))
    if weight is None:
        weight = call.expand(call.const([1.0], x.dtype), shape)
    axis = x.rank - len(shape)
    return call.op(
        "LayerNormalization", x, weight, bias, axis=axis, epsilon=float(call.attr("eps"))
    )


@translation("aten.rms_norm.default")
def _rms_norm(call: Call, x: Tensor, weight: Tensor | None = None) -> Tensor:
    import torch

    shape, eps = tuple(call.attr("normalized_shape")), call.attr("eps")
    eps = torch.finfo(getattr(torch, x.dtype)).eps if eps is None else float(eps)
    return rms_norm(call, x, weight, shape, eps)


def rms_norm(
    call: Call, x: Tensor, weight: Tensor | None, shape: tuple[int, ...], eps: float
) -> Tensor:
    """Returns x divided by its root mean square over the last dimensions, times a weight."""
    axis = x.rank - len(shape)
    if call.opset >= 23:
        weight = weight or call.expand(call.const([1.0], x.dtype), shape)
        return call.op("RMSNormalization", x, weight, axis=axis, epsilon=eps)
    square = call.reduce("ReduceMean", call.op("Mul", x, x), list(range(axis, x.rank)), True)
    root = call.op("Sqrt", call.op("Add", square, call.const(eps, x.dtype)))
    normed = call.broadcast("Div", x, root)
    return normed if weight is None else call.broadcast("Mul", normed, weight)


@translation("aten.group_norm.default")
def group_norm(
    call: Call, x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """By groups of channels as rows of one instance each, which every opset has."""
    groups, eps = int(call.attr("num_groups")), float(call.attr("eps"))
    rows = (x.shape[0], groups, math.prod(x.shape[1:]) // groups)
    unit = (_ones(call, groups, x.dtype), _zeros(call, groups, x.dtype))
    wide = call.op("InstanceNormalization", call.reshape(x, rows), *unit, epsilon=eps)
    return _affine(call, call.reshape(wide, x.shape), weight, bias)


@translation("aten.instance_norm.default")
def _instance_norm(
    call: Call, x: Tensor, weight: Tensor | None, bias: Tensor | None, *running: Tensor | None
) -> Tensor:
    eps, channels = float(call.attr("eps")), x.shape[1]
    mean, variance = (*running, None, None)[:2]
    weight = weight or _ones(call, channels, x.dtype)
    bias = bias or _zeros(call, channels, x.dtype)
    if call.attr("use_input_stats") or mean is None or variance is None:
        return call.op("InstanceNormalization", x, weight, bias, epsilon=eps)
    return call.op("BatchNormalization", x, weight, bias, mean, variance, epsilon=eps)
