"""Pooling over windows and over everything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from npusim.errors import SymbolicSizeError
from npusim.frontends.onnx.builder import Tensor
from npusim.frontends.onnx.matmul import differ, padded, windows
from npusim.frontends.onnx.registry import Call, translation
from npusim.ir.symbolic import is_symbolic, maximum, minimum

Setting = tuple[list[int], list[int], list[int], list[int]]


def _setting(call: Call, x: Tensor, kernel: Sequence[int]) -> tuple[Setting, list[int]]:
    """Returns strides, dilations and padding, and how far windows reach beyond the padding."""
    strides, dilations, before, after = windows(call, x.shape[2:], kernel)
    beyond = [0] * len(kernel)
    if call.int("ceil_mode"):
        for i, k in enumerate(kernel):
            size = x.shape[2 + i] + before[i] + after[i]
            reach = dilations[i] * (k - 1) + 1
            count = -(-(size - reach) // strides[i]) + 1
            # Without one that would begin in the padding behind.
            count = minimum(count, (x.shape[2 + i] + before[i] - 1) // strides[i] + 1)
            beyond[i] = maximum((count - 1) * strides[i] + reach - size, 0)
    return (strides, dilations, before, after), beyond


def unfolded(x: Tensor, kernel: Sequence[int], setting: Setting, fill: float) -> Tensor:
    """Returns the windows of x, [n, c, *out, *kernel]; x is padded with a number."""
    strides, dilations, before, after = setting
    x = padded(x, before, after, fill)
    rank = len(kernel)
    for i, k in enumerate(kernel):
        reach = dilations[i] * (k - 1) + 1
        x = x.op("unfold.default", 2 + i, reach, strides[i])
        if dilations[i] > 1:
            x = x.op("slice.Tensor", 2 + rank + i, 0, reach, dilations[i])
    return x


def _is_symmetric(before: Sequence[int], after: Sequence[int], kernel: Sequence[int]) -> bool:
    """Tells whether padding is what PyTorch's poolings take: equal at both ends, half a window."""
    if is_symbolic(before) or differ(before, after):
        return False
    return all(2 * p <= k for p, k in zip(before, kernel, strict=True))


def _pooled(name: str, x: Tensor, kernel: Sequence[int], *settings: Any) -> Tensor:
    """Returns a pooling of PyTorch's; of a line whose length calls choose, as one of an image."""
    rank = len(kernel)
    if rank != 1 or not is_symbolic(x.shape):
        return x.op(f"{name}{rank}d.default", kernel, *settings)
    neutral = [1, 1, 0, 1]  # a window, a stride, padding and dilation over one row
    lines = [
        [first, *given] if isinstance(given, (list, tuple)) else given
        for first, given in zip([*neutral, *settings[3:]], [kernel, *settings], strict=False)
    ]
    image = x.view((*x.shape[:2], 1, x.shape[2]))
    y = image.op(f"{name}2d.default", *lines)
    return y.view((*y.shape[:2], y.shape[3]))


@translation("MaxPool")
def max_pool(call: Call, x: Tensor) -> list[Tensor | None]:
    """Returns the largest elements of windows, and where they lie when the call wants that."""
    kernel = call.ints("kernel_shape") or []
    (strides, dilations, before, after), beyond = _setting(call, x, kernel)
    rank = len(kernel)
    after = [a + b for a, b in zip(after, beyond, strict=True)]
    if call.outputs == 1 and x.dtype in ("float32", "float16", "bfloat16") and rank <= 3:
        if not _is_symmetric(before, after, kernel):
            x = padded(x, before, after, float("-inf"))
            before = [0] * rank
        return [_pooled("max_pool", x, kernel, strides, before, dilations)]
    least = float("-inf") if x.dtype.startswith(("f", "b")) else float(np.iinfo(x.dtype).min)
    setting = (strides, dilations, before, after)
    seen = unfolded(x, kernel, setting, least)
    shape = seen.shape[: 2 + rank]
    flat = seen.view((*shape, int(np.prod(kernel))))
    best = flat.op("amax.default", [-1])
    if call.outputs == 1:
        return [best]
    chosen = flat.op("argmax.default", -1, True, kind=TensorProto.INT64)
    places = _places(call, x, kernel, setting)
    table = call.graph.known(places).expand(flat.shape)
    return [best, table.op("gather.default", -1, chosen).view(shape)]


def _places(call: Call, x: Tensor, kernel: Sequence[int], setting: Setting) -> np.ndarray:
    """Returns where each element of each window lies in the whole tensor, [n, c, *out, taps]."""
    strides, dilations, before, after = setting
    rank = len(kernel)
    column = call.int("storage_order") == 1
    flat = np.zeros((), np.int64)
    extents = x.shape[2:]
    step = 1
    steps = [1] * rank
    for i in range(rank) if column else reversed(range(rank)):
        steps[i] = step
        step *= extents[i]
    for i, k in enumerate(kernel):
        whole = extents[i] + before[i] + after[i]
        count = (whole - dilations[i] * (k - 1) - 1) // strides[i] + 1
        line = np.arange(count)[:, None] * strides[i] + np.arange(k) * dilations[i] - before[i]
        shape = [1] * (2 * rank)
        shape[i], shape[rank + i] = line.shape
        flat = flat + line.reshape(shape) * steps[i]
    flat = flat.reshape(*flat.shape[:rank], -1)
    n, c = x.shape[:2]
    lead = np.arange(n * c).reshape([n, c] + [1] * (rank + 1)) * step
    return np.ascontiguousarray(lead + flat)


@translation("AveragePool", "LpPool")
def average_pool(call: Call, x: Tensor) -> Tensor:
    """Averages windows, or takes the norm of an order of them."""
    kernel = call.ints("kernel_shape") or []
    setting, beyond = _setting(call, x, kernel)
    strides, dilations, before, after = setting
    rank = len(kernel)
    p = call.int("p", 2)
    if call.op == "LpPool":
        x = x.op("abs.default").op("pow.Tensor_Scalar", p)
    elif set(dilations) == {1} and rank <= 3:
        whole = bool(call.int("count_include_pad"))
        if _is_symmetric(before, after, kernel) and not differ(beyond):
            return _pooled("avg_pool", x, kernel, strides, before, False, whole)
        if is_symbolic(x.shape[2:]):
            raise SymbolicSizeError("averages of windows padded differently at both ends")
    end = [a + b for a, b in zip(after, beyond, strict=True)]
    seen = unfolded(x, kernel, (strides, dilations, before, end), 0.0)
    dims = list(range(2 + rank, 2 + 2 * rank))
    total = seen.op("sum.dim_IntList", dims)
    if call.op == "LpPool":
        return total.op("pow.Tensor_Scalar", 1.0 / p)
    counts = _counts(call, x, kernel, setting, beyond)
    return total / call.graph.table(counts, x)


def _counts(
    call: Call, x: Tensor, kernel: Sequence[int], setting: Setting, beyond: Sequence[int]
) -> np.ndarray:
    """Returns how many elements each window counts, [*out]."""
    strides, dilations, before, after = setting
    counts = np.ones(())
    for i, k in enumerate(kernel):
        own = np.ones(x.shape[2 + i])
        fill = 1.0 if call.int("count_include_pad") else 0.0
        line = np.concatenate(
            (np.full(before[i], fill), own, np.full(after[i], fill), np.zeros(beyond[i]))
        )
        reach = dilations[i] * (k - 1) + 1
        starts = range(0, len(line) - reach + 1, strides[i])
        sums = np.array([line[s : s + reach : dilations[i]].sum() for s in starts])
        counts = counts[..., None] * sums
    return np.maximum(counts, 1.0)


@translation("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool")
def _global_pool(call: Call, x: Tensor) -> Tensor:
    dims = list(range(2, x.rank))
    if call.op == "GlobalMaxPool":
        return x.op("amax.default", dims, True)
    if call.op == "GlobalLpPool":
        return x.op("linalg_vector_norm.default", call.int("p", 2), dims, True)
    return x.op("mean.dim", dims, True)


@translation("MaxUnpool")
def _max_unpool(call: Call, x: Tensor, places: Tensor, shape: Tensor | None = None) -> Tensor:
    kernel = call.ints("kernel_shape") or []
    strides, _, before, after = windows(call, x.shape[2:], kernel)
    own = [
        (d - 1) * s + k - b - a
        for d, s, k, b, a in zip(x.shape[2:], strides, kernel, before, after, strict=True)
    ]
    default = [*x.shape[:2], *own]
    wanted = default if shape is None else shape.ints("the shape of MaxUnpool")
    index = places
    if wanted != default:  # places count in the shape that pooling saw
        index = _recounted(places, default, wanted)
    count = int(np.prod(wanted))
    flat = x.graph.full((count,), 0.0, x.dtype)
    taken = index.view((int(np.prod(x.shape)),))
    return flat.op("scatter.src", 0, taken, x.view(taken.shape)).view(wanted)


def _recounted(places: Tensor, old: Sequence[int], new: Sequence[int]) -> Tensor:
    """Returns flat places in one shape as those of the same elements in another."""
    total: Tensor | None = None
    rest, step = places, 1
    for before, after in zip(reversed(old), reversed(new), strict=True):
        part = rest.op("remainder.Scalar", before) * step
        total = part if total is None else total + part
        rest = rest.op("div.Scalar_mode", before, rounding_mode="trunc")
        step *= after
    assert total is not None
    return total
