"""Cumulative operators: sums have an ONNX operator, the others reduce over every prefix."""

from __future__ import annotations

import math

import torch

from npusim.exporters.onnx.registry import Call, Results, Tensor, translation


@translation("aten.cumsum.default")
def _cumsum(call: Call, x: Tensor) -> Tensor:
    x = call.cast(x, call.type.dtype)
    if not x.rank:
        return x
    return call.op("CumSum", x, call.const(call.dim(x.rank), "int64"))


def _prefixes(call: Call, x: Tensor, neutral: float) -> Tensor:
    """Returns [..., n, n] with the dimension last: row i is x up to i, and `neutral` behind."""
    dim = call.dim(x.rank)
    last = call.transpose(x, [*(d for d in range(x.rank) if d != dim), dim])
    size = last.shape[-1]
    row = call.reshape(last, (*last.shape[:-1], 1, size))
    seen = call.builder.constant(torch.ones(size, size).tril().bool())
    return call.broadcast("Where", seen, row, call.const(neutral, x.dtype), dtype=x.dtype)


def _back(call: Call, x: Tensor) -> Tensor:
    """Returns a result, its dimension last, with the dimension in its place."""
    rank = len(call.type.shape)
    dim = call.dim(rank)
    order = list(range(rank - 1))
    order.insert(dim, rank - 1)
    return call.transpose(x, order)


@translation("aten.cumprod.default")
def _cumprod(call: Call, x: Tensor) -> Tensor:
    x = call.cast(x, call.type.dtype)
    return (
        x
        if not x.rank
        else _back(call, call.reduce("ReduceProd", _prefixes(call, x, 1), [-1], False))
    )


@translation("aten.logcumsumexp.default")
def _logcumsumexp(call: Call, x: Tensor) -> Tensor:
    if not x.rank:
        return x
    return _back(call, call.reduce("ReduceLogSumExp", _prefixes(call, x, -math.inf), [-1], False))


@translation("aten.cummax.default", "aten.cummin.default")
def _extreme(call: Call, x: Tensor) -> Results:
    """Of equal elements PyTorch names the last."""
    if not x.rank:
        return [x, call.const(0, "int64")]
    kind = "Max" if "max" in call.node.op else "Min"
    wide = call.cast(x, "int64") if x.dtype in ("bool", "int16") else x
    seen = _prefixes(call, wide, _worst(wide.dtype, kind))
    index = call.op(
        f"Arg{kind}", seen, dtype="int64", shape=seen.shape[:-1], axis=seen.rank - 1, keepdims=0,
        select_last_index=1,
    )  # fmt: skip
    best = call.reduce(f"Reduce{kind}", seen, [-1], False)
    return [_back(call, best), _back(call, index)]


def _worst(dtype: str, kind: str) -> float | int:
    if "float" in dtype:
        return -math.inf if kind == "Max" else math.inf
    info = torch.iinfo(getattr(torch, dtype))
    return info.min if kind == "Max" else info.max
