"""Recovers convolutions: sums of products over windows, proved by their indices.

A spatial dimension of the data is read at stride * output + dilation * kernel - padding. How far
the tower of movement is looked behind is tried step by step; the first tensor that is read so is
the operand. What PyTorch's padding cannot say is padded before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from npusim.frontends.tinygrad.builder import Builder
from npusim.frontends.tinygrad.contractions import Product, narrowed, ordered
from npusim.frontends.tinygrad.index import Access, Linear, behind
from npusim.frontends.tinygrad.padding import filled
from npusim.frontends.tinygrad.plans import Plan, arranged
from npusim.frontends.tinygrad.terms import Term
from npusim.ir.graph import Value


@dataclass(frozen=True)
class Window:
    """How one dimension is read.

    Attributes:
        out, tap: the axis of the result and the axis summed over; None for one of size 1.
        padding: what is missing before the first and after the last element; negative for
            elements that are skipped.
    """

    out: int | None
    tap: int | None
    stride: int
    dilation: int
    padding: tuple[int, int]
    length: int
    taps: int


def stages(access: Access) -> Iterator[Access]:
    """Yields the read of each tensor behind the movement before it, nearest first."""
    found: Access | None = access
    while found is not None:
        yield found
        found = filled(found) or behind(found)


def window(index: Linear, size: int, access: Access, summed: set[int]) -> Window | None:
    """Returns how a dimension is read, if that is a window."""
    outs = [a for a in index.axes if a not in summed]
    taps = [a for a in index.axes if a in summed]
    if len(outs) > 1 or len(taps) > 1:
        return None
    sizes = access.sizes
    out, tap = next(iter(outs), None), next(iter(taps), None)
    stride = 1 if out is None else index.factor(out)
    dilation = 1 if tap is None else index.factor(tap)
    if stride < 1 or dilation < 1:
        return None
    low, high = index.bounds(sizes)
    mine = [g for g in access.guards if g.index == index]
    if any(g.size != size for g in mine) or ((low < 0 or high >= size) and not mine):
        return None
    length = 1 if out is None else sizes[out]
    count = 1 if tap is None else sizes[tap]
    return Window(out, tap, stride, dilation, (-low, high + 1 - size), length, count)


def symmetric(windows: list[Window], shape: tuple[int, ...]) -> list[int] | None:
    """Returns the padding of each dimension if the same on both sides gives the same windows."""
    paddings = []
    for w, size in zip(windows, shape, strict=True):
        before = max(w.padding[0], 0)
        span = size + 2 * before - w.dilation * (w.taps - 1) - 1
        if w.padding[0] < 0 or span < 0 or span // w.stride + 1 != w.length:
            return None
        paddings.append(before)
    return paddings


def padded(graph: Builder, x: Value, windows: list[Window], fill: float) -> Value:
    """Returns data with exactly the padding that windows need; negative padding crops."""
    widths = [n for w in reversed(windows) for n in w.padding]
    return graph.op("constant_pad_nd.default", x, widths, fill) if any(widths) else x


# ---- convolutions ----

_CONVOLVED = ("float32", "float16", "bfloat16")  # others run as multiply and reduce


def convolution(term: Term) -> Plan | None:
    """Plans a sum of products over windows as a convolution; a recovery."""
    product = narrowed(term)
    if product is None or product.dtype not in _CONVOLVED:
        return None
    for x, weight in ((product.a, product.b), (product.b, product.a)):
        if not weight.is_simple():
            continue
        images = list(zip(*(_images(access) for access in stages(x)), strict=True))
        found = [[_convolution(term, product, i, weight) for i in same] for same in images]
        plans = [[plan for plan in same if plan is not None] for same in found]
        for candidates in (*([p for p in same if not p.problem] for same in plans), *plans):
            if candidates:
                return candidates[-1]  # the farthest takes crops and paddings in
    return None


@dataclass(frozen=True)
class _Image:
    """A read of a tensor as [batch, channels, spatial …]."""

    x: Access
    shape: tuple[int, ...]
    index: tuple[Linear, ...]


def _images(x: Access) -> Iterator[_Image]:
    """Yields a tensor as it is, and as an image without the batch or channels of size 1."""
    shape, index, one = x.term.shape, x.index, (Linear(),)
    yield _Image(x, shape, index)
    yield _Image(x, (*shape[:1], 1, *shape[1:]), (*index[:1], *one, *index[1:]))
    yield _Image(x, (1, *shape), (*one, *index))
    yield _Image(x, (1, 1, *shape), (*one, *one, *index))


def _convolution(term: Term, product: Product, image: _Image, weight: Access) -> Plan | None:
    x, shape = image.x, image.shape
    rank = len(shape) - 2
    if rank not in (1, 2, 3) or x.fill:
        return None
    batch, channel, *spatial = image.index
    summed, sizes = set(product.summed), x.sizes
    windows = [window(i, n, x, summed) for i, n in zip(spatial, shape[2:], strict=True)]
    known = [w for w in windows if w is not None]
    if shape != x.term.shape and any(w.tap is None for w in known):
        return None  # what stands there may be the batch
    if (shape != x.term.shape or not weight.term.static) and any(_is_matrix(w) for w in known):
        return None
    guarded = {g.index for g in x.guards}
    if len(known) != rank or not guarded <= set(spatial):
        return None
    lead = whole(batch, shape[0], sizes, summed)
    groups = _channels(channel, shape[1], sizes, summed, weight)
    if lead is None or groups is None:
        return None
    group, depth = groups
    taps = [w.tap for w in known if w.tap is not None]
    outs = [w.out for w in known if w.out is not None]
    if {*depth, *taps} != summed or {*depth, *taps} - weight.axes:
        return None
    makers = [a for a in product.free if a in weight.axes and a not in group]
    spaces = [*lead, *group, *outs]
    if any(sizes[a] > 1 and a not in (*spaces, *makers) for a in product.free):
        return None  # an axis that only repeats the result
    if len(set(spaces)) != len(spaces) or set(outs) & weight.axes or set(lead) & weight.axes:
        return None
    if not _is_windowed(known, x, weight, group):
        return None
    return _planned(term, product, image, weight, (lead, group, makers, depth), known)


def whole(index: Linear, size: int, sizes: tuple[int, ...], summed: set[int]) -> list[int] | None:
    """Returns the axis that a dimension is, in a list, or none for a dimension of size 1."""
    if size == 1:
        return []
    if len(index.terms) != 1 or index.constant:
        return None
    ((axis, factor),) = index.terms
    fits = factor == 1 and sizes[axis] == size and axis not in summed
    return [axis] if fits else None


def _channels(
    index: Linear, size: int, sizes: tuple[int, ...], summed: set[int], weight: Access
) -> tuple[list[int], list[int]] | None:
    """Returns the axes of groups and of channels in a group, each in a list of at most one."""
    group = [a for a in index.axes if a not in summed]
    depth = [a for a in index.axes if a in summed]
    if index.constant or len(group) > 1 or len(depth) > 1 or not set(group) <= weight.axes:
        return None
    inner = sizes[depth[0]] if depth else 1
    outer = sizes[group[0]] if group else 1
    fits = inner * outer == size
    fits = fits and (not depth or index.factor(depth[0]) == 1)
    return (group, depth) if fits and (not group or index.factor(group[0]) == inner) else None


def _is_matrix(w: Window) -> bool:
    """Tells whether a dimension is [tap, out] flattened, row after row, rather than windows."""
    return w.taps > 1 and w.length > 1 and w.dilation >= w.length * w.stride


def _is_windowed(windows: list[Window], x: Access, weight: Access, group: list[int]) -> bool:
    """Tells a convolution from a matrix product, which reads no element twice and skips none."""
    if any(w.out is not None and w.tap is not None for w in windows) or x.guards:
        return True
    if any(w.stride > 1 and w.out is not None for w in windows) or group:
        return any(w.out is not None for w in windows) and weight.term.static
    pointwise = all(w.tap is None and w.out is not None for w in windows)
    return pointwise and weight.term.static and not x.term.static


def _planned(
    term: Term,
    product: Product,
    image: _Image,
    weight: Access,
    axes: tuple[list[int], list[int], list[int], list[int]],
    windows: list[Window],
) -> Plan:
    lead, group, makers, depth = axes
    x, shape = image.x, image.shape
    sizes, rank = x.sizes, len(windows)
    groups = sizes[group[0]] if group else 1
    taps = [[] if w.tap is None else [w.tap] for w in windows]
    outs = [w.out for w in windows if w.out is not None]
    padding = symmetric(windows, shape[2:])
    ones = [a for a in product.free if a not in (*lead, *group, *makers, *outs)]
    order = [*ones, *lead, *group, *makers, *outs]

    def build(graph: Builder, data: Value, filters: Value) -> Value:
        data = graph.view(data, shape)
        data, filters = graph.cast(data, term.dtype), graph.cast(filters, term.dtype)
        filters = arranged(graph, filters, weight.dims(), [[*group, *makers], depth, *taps], sizes)
        if padding is None:
            data = padded(graph, data, windows, 0.0)
        stride, dilation = [w.stride for w in windows], [w.dilation for w in windows]
        name = f"conv{rank}d.default"
        y = graph.op(name, data, filters, None, stride, padding or [0] * rank, dilation, groups)
        return ordered(graph, y, order, product, term)

    return Plan((x.term, weight.term), build, f"conv{rank}d", "padded" if padding is None else "")
