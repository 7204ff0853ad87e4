"""Windows that touch, a row of memory each: a convolution of patches as one of single positions."""

from __future__ import annotations

from math import prod

from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering
from npusim.lowering.view import View

CHUNK = 8  # elements of 16 bits that kernels load at once


def patch_rows(low: Lowering, x: View, w: View, windows: tuple[int, ...]) -> tuple[View, View]:
    """Emits copies of x and of a weight in which the elements of a window are channels.

    Args:
        x: [n, c, *spatial].
        w: [out, c, *kernel], whose windows touch.
        windows: along each axis of space.

    Returns:
        x as [n, k, *windows], channels innermost, and w as [out, k, 1, …], where k is c * kernel
        and zeros up to whole chunks.
    """
    kernel = w.shape[2:]
    for axis, (count, size) in enumerate(zip(windows, kernel, strict=True), start=2):
        x = x.slice(axis, 0, count * size)
    apart = [pair for axis in zip(windows, kernel, strict=True) for pair in axis]
    split = x.reshape((x.shape[0], x.shape[1], *apart))
    assert split is not None, "splitting dimensions is a view"
    axes = range(len(windows))
    order = (0, *(2 + 2 * a for a in axes), 1, *(3 + 2 * a for a in axes))
    rows = _chunked(low, split.permute(order), 1 + len(windows))
    last = rows.rank - 1
    of_w = low.once((w, "patches"), lambda: _chunked(low, low.dense(w), 1))
    ones = (1,) * len(kernel)
    weight = of_w.reshape((*of_w.shape, *ones))
    assert weight is not None
    return rows.permute((0, last, *range(1, last))), weight


def _chunked(low: Lowering, x: View, dims: int) -> View:
    """Returns a copy of x whose dimensions behind the first `dims` are a row of whole chunks."""
    count = prod(x.shape[dims:])
    whole = -(-count // CHUNK) * CHUNK
    shape = (*x.shape[:dims], whole)
    y = low.temp(TensorType(x.dtype, shape), static=low.is_static(x))
    target = y.slice(dims, 0, count).reshape(x.shape)
    assert target is not None
    low.copy(x, target)
    low.fill(y.slice(dims, count, whole - count), 0)
    return y
