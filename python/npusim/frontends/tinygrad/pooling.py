"""Recovers pooling and averages: sums and maxima over windows, and means.

A window is read as in a convolution (`windows.py`), with nothing to multiply by. A sum that is
divided by the number of its terms is a mean, or over windows an average pooling.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from npusim.frontends.tinygrad.builder import Builder
from npusim.frontends.tinygrad.contractions import contraction
from npusim.frontends.tinygrad.index import Access, loop
from npusim.frontends.tinygrad.known import uniform
from npusim.frontends.tinygrad.plans import Plan
from npusim.frontends.tinygrad.pointwise import is_stored_as
from npusim.frontends.tinygrad.terms import Term
from npusim.frontends.tinygrad.windows import (
    Window,
    convolution,
    padded,
    stages,
    symmetric,
    whole,
    window,
)
from npusim.ir.graph import Value

_FLOATS = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class _Pool:
    """A reduction over windows of the last one or two dimensions of a tensor."""

    x: Access
    windows: list[Window]
    lead: list[int]


def pooling(term: Term) -> Plan | None:
    """Plans a sum or maximum over windows as pooling; a recovery."""
    if term.op != "reduce":
        return None
    if term.arg[0] == "max":
        return _over_windows(term, term, "max_pool2d")
    return _over_windows(term, term, "sum_pool2d") if term.arg[0] == "add" else None


def averaged(term: Term) -> Plan | None:
    """Plans a sum over the number of its terms as a mean or an average pooling; a recovery."""
    if term.op != "mul":
        return None
    for total, factor in (term.sources, term.sources[::-1]):
        number = uniform(factor)
        while total.op == "reshape":
            total = total.sources[0]
        if number is None or total.op != "reduce" or total.arg[0] != "add":
            continue
        axes = total.arg[1]
        count = math.prod(total.sources[0].shape[a] for a in axes)
        fits = (
            is_stored_as(number, 1 / count, term.dtype)
            and term.numel == total.numel
            and not total.known
        )
        if not fits or total.dtype not in (*_FLOATS, "float64"):
            continue
        if convolution(total) is None and contraction(total) is None:
            return _over_windows(total, term, "avg_pool2d") or _mean(total, term, list(axes))
    return None


def _mean(total: Term, term: Term, axes: list[int]) -> Plan:
    def build(graph: Builder, x: Value) -> Value:
        return graph.view(graph.op("mean.dim", x, axes, True), term.shape)

    return Plan((total.sources[0],), build, "mean")


def _over_windows(total: Term, term: Term, name: str) -> Plan | None:
    """Plans a reduction as a pooling whose result is `term`, the reduction or its average."""
    source = total.sources[0]
    summed = {a for a in total.arg[1] if source.shape[a] > 1}
    if not summed or source.known:
        return None
    if name != "max_pool2d" and total.dtype not in _FLOATS:
        return None
    pools = [_pool(access, summed) for access in stages(loop(source, source.shape))]
    plans = [_planned(pool, total, term, name) for pool in pools if pool is not None]
    found = [plan for plan in plans if plan is not None]
    exact = [plan for plan in found if not plan.problem]
    return (exact or found)[-1] if found else None  # the farthest takes paddings in


def _pool(x: Access, summed: set[int]) -> _Pool | None:
    shape, rank = x.term.shape, len(x.term.shape)
    first = next((d for d, i in enumerate(x.index) if set(i.axes) & summed), rank)
    if rank - first not in (1, 2):
        return None
    lead: list[int] = []
    for index, size in zip(x.index[:first], shape[:first], strict=True):
        axes = whole(index, size, x.sizes, summed)
        if axes is None:
            return None
        lead += axes
    pairs = zip(x.index[first:], shape[first:], strict=True)
    found = [window(i, n, x, summed) for i, n in pairs]
    windows = [w for w in found if w is not None]
    if len(windows) != rank - first or {w.tap for w in windows} - {None} != summed:
        return None
    if not {g.index for g in x.guards} <= set(x.index[first:]):
        return None
    if not any(w.tap is not None and w.out is not None for w in windows):
        return None  # the whole dimension: a plain reduction
    places = [*lead, *(w.out for w in windows if w.out is not None)]
    if any(n > 1 and a not in summed and a not in places for a, n in enumerate(x.sizes)):
        return None  # an axis that only repeats the result
    return _Pool(x, windows, lead) if len(set(places)) == len(places) else None


def _planned(pool: _Pool, total: Term, term: Term, name: str) -> Plan | None:
    x, windows = pool.x, pool.windows
    maximum = name == "max_pool2d"
    if not maximum and (x.fill or any(w.dilation > 1 and w.taps > 1 for w in windows)):
        return None
    spatial = x.term.shape[-len(windows) :]
    padding = symmetric(windows, spatial)
    if padding and any(2 * p > w.taps for p, w in zip(padding, windows, strict=True)):
        padding = None
    if maximum and x.guards and x.fill != -math.inf:
        padding = None  # PyTorch's padding is the least number
    outs = [w.out for w in windows if w.out is not None]
    ones = [a for a, n in enumerate(x.sizes) if a not in (*total.arg[1], *pool.lead, *outs)]
    order = [*ones, *pool.lead, *outs]

    def build(graph: Builder, data: Value) -> Value:
        if padding is None:
            data = padded(graph, data, windows, x.fill)
        y = _pooled(graph, data, windows, padding, maximum)
        if name == "sum_pool2d":
            y = graph.op("mul.Scalar", y, float(math.prod(w.taps for w in windows)))
        y = graph.view(y, [x.sizes[a] for a in order])
        places = [order.index(a) for a in sorted(order)]
        return graph.view(graph.ordered(y, places), term.shape)

    return Plan((x.term,), build, name, "padded" if padding is None else "")


def _pooled(
    graph: Builder, data: Value, windows: list[Window], padding: list[int] | None, maximum: bool
) -> Value:
    """Returns PyTorch's pooling over the last dimensions, as an image of one channel each."""
    flat = [1] * (2 - len(windows))
    kernel = [*flat, *(w.taps for w in windows)]
    stride = [*flat, *(w.stride for w in windows)]
    pad = [*(0 for _ in flat), *(padding or (0 for _ in windows))]
    shape = data.type.shape
    lead = shape[: len(shape) - len(windows)]
    image = lead if len(lead) == 2 else (math.prod(lead), 1)
    data = graph.view(data, [*image, *flat, *shape[len(lead) :]])
    if not maximum:
        return graph.op("avg_pool2d.default", data, kernel, stride, pad, False, True, None)
    dilation = [*flat, *(w.dilation if w.taps > 1 else 1 for w in windows)]
    return graph.op("max_pool2d.default", data, kernel, stride, pad, dilation)
