"""Pooling over windows, and to a size.

Owns how PyTorch's windows read in ONNX: MaxPool counts positions through the whole tensor, PyTorch
through one image; a window of an adaptive pool may be of several sizes, which only sums express.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from npusim.exporters.onnx.builder import NoForm
from npusim.exporters.onnx.registry import Call, Results, Tensor, translation


def _sizes(value: int | Sequence[int], rank: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * rank if len(values) == 1 else values


def _window(call: Call, rank: int) -> dict[str, Any]:
    kernel = _sizes(call.attr("kernel_size"), rank)
    stride = _sizes(call.attr("stride") or kernel, rank)
    pads = _sizes(call.attr("padding", 0), rank)
    return {
        "kernel_shape": kernel, "strides": stride, "pads": pads * 2,
        "ceil_mode": int(bool(call.attr("ceil_mode"))),
    }  # fmt: skip


def _batched(call: Call, x: Tensor, rank: int) -> tuple[Tensor, tuple[int, ...]]:
    """Returns x with a batch, and the result's shape with one."""
    shape = call.type.shape
    if x.rank == rank + 2:
        return x, shape
    return call.reshape(x, (1, *x.shape)), (1, *shape)


def _rank(call: Call) -> int:
    return int(call.node.op.split("pool")[1][0])


@translation(
    *(f"aten.max_pool{n}d.default" for n in (1, 2, 3)),
    *(f"aten.max_pool{n}d_with_indices.default" for n in (2, 3)),
)
def _max_pool(call: Call, x: Tensor) -> Results:
    rank = _rank(call)
    wide, shape = _batched(call, x, rank)
    attrs = _window(call, rank) | {"dilations": _sizes(call.attr("dilation", 1), rank)}
    if len(call.node.outputs) == 1 or not call.wanted(1):
        result = call.reshape(call.op("MaxPool", wide, shape=shape, **attrs), call.type.shape)
        return [result, *[None] * (len(call.node.outputs) - 1)]
    results = [(wide.dtype, shape), ("int64", shape)]
    best, index = call.ops("MaxPool", wide, results=results, **attrs)
    return [call.reshape(t, call.type.shape) for t in (best, _in_image(call, wide, index, rank))]


def _in_image(call: Call, x: Tensor, index: Tensor, rank: int) -> Tensor:
    """Returns positions in the whole tensor as positions in each image."""
    return call.op("Mod", index, call.const(math.prod(x.shape[-rank:]), "int64"))


@translation(*(f"aten.avg_pool{n}d.default" for n in (1, 2, 3)))
def _avg_pool(call: Call, x: Tensor) -> Tensor:
    rank = _rank(call)
    wide, shape = _batched(call, x, rank)
    attrs = _window(call, rank)
    divisor = call.attr("divisor_override")
    if not attrs["ceil_mode"] and divisor is None:
        included = int(bool(call.attr("count_include_pad", True)))
        attrs["count_include_pad"] = included
        return call.reshape(call.op("AveragePool", wide, shape=shape, **attrs), call.type.shape)
    return call.reshape(_sums(call, wide, rank, shape[2:], divisor), call.type.shape)


def _sums(call: Call, x: Tensor, rank: int, results: Sequence[int], divisor: int | None) -> Tensor:
    """Averages by one matrix a dimension: a row sums the window of a result."""
    kernel = _sizes(call.attr("kernel_size"), rank)
    stride = _sizes(call.attr("stride") or kernel, rank)
    padding = _sizes(call.attr("padding", 0), rank)
    included = bool(call.attr("count_include_pad", True))
    counts = torch.ones(())
    for axis in range(rank):
        size = x.shape[2 + axis]
        matrix, count = [], []
        for i in range(results[axis]):
            start = i * stride[axis] - padding[axis]
            end = min(start + kernel[axis], size + padding[axis])
            inside = range(max(start, 0), min(end, size))
            matrix.append([float(j in inside) for j in range(size)])
            count.append(float(end - start if included else len(inside)))
        x = weighed(call, x, 2 + axis, torch.tensor(matrix))
        counts = counts[..., None] * torch.tensor(count)
    if divisor is not None:
        counts = torch.tensor(float(divisor))
    return call.broadcast("Div", x, call.builder.constant(counts.to(getattr(torch, x.dtype))))


def weighed(call: Call, x: Tensor, dim: int, matrix: torch.Tensor) -> Tensor:
    """Returns x with one dimension multiplied by a constant matrix [results, size]."""
    order = [d for d in range(x.rank) if d != dim] + [dim]
    last = call.transpose(x, order)
    turned = call.builder.constant(matrix.t().contiguous().to(getattr(torch, x.dtype)))
    product = call.op("MatMul", last, turned, shape=(*last.shape[:-1], matrix.shape[0]))
    return call.transpose(product, [order.index(d) for d in range(x.rank)])


# ---- to a size ----


def _bounds(size: int, results: int) -> list[tuple[int, int]]:
    return [(i * size // results, -(-(i + 1) * size // results)) for i in range(results)]


def _even(sizes: Sequence[int], results: Sequence[int]) -> dict[str, Any] | None:
    """Returns the window of a pool whose windows are all alike, or None."""
    if any(size % result for size, result in zip(sizes, results, strict=True)):
        return None
    kernel = [size // result for size, result in zip(sizes, results, strict=True)]
    return {"kernel_shape": kernel, "strides": kernel}


@translation(
    *(f"aten.adaptive_avg_pool{n}d.default" for n in (1, 2, 3)),
    *(f"aten._adaptive_avg_pool{n}d.default" for n in (2, 3)),
)
def _adaptive_avg(call: Call, x: Tensor) -> Tensor:
    rank = _rank(call)
    wide, shape = _batched(call, x, rank)
    sizes, results = wide.shape[2:], shape[2:]
    attrs = _even(sizes, results)
    if all(n == 1 for n in results):
        wide = call.op("GlobalAveragePool", wide, shape=shape)
    elif attrs is not None:
        wide = call.op("AveragePool", wide, shape=shape, **attrs)
    else:
        for axis, (size, count) in enumerate(zip(sizes, results, strict=True)):
            rows = [
                [float(a <= j < b) / (b - a) for j in range(size)] for a, b in _bounds(size, count)
            ]
            wide = weighed(call, wide, 2 + axis, torch.tensor(rows))
    return call.reshape(wide, call.type.shape)


@translation(*(f"aten.adaptive_max_pool{n}d.default" for n in (1, 2, 3)))
def _adaptive_max(call: Call, x: Tensor) -> Results:
    rank = _rank(call)
    wide, shape = _batched(call, x, rank)
    attrs = _even(wide.shape[2:], shape[2:])
    if attrs is not None:
        results = [(wide.dtype, shape), ("int64", shape)]
        best, index = call.ops("MaxPool", wide, results=results, **attrs)
        index = _in_image(call, wide, index, rank)
        return [call.reshape(t, call.type.shape) for t in (best, index)]
    if call.wanted(1):
        raise NoForm("positions in windows of several sizes")
    for axis, (size, count) in enumerate(zip(wide.shape[2:], shape[2:], strict=True)):
        parts = [
            call.reduce("ReduceMax", call.slice(wide, 2 + axis, a, b), [2 + axis], True)
            for a, b in _bounds(size, count)
        ]
        wide = call.concat(parts, 2 + axis)
    return [call.reshape(wide, call.type.shape), None]
