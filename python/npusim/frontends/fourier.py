"""Fourier transforms of pairs as products with matrices of cosines and sines.

A transform of n is one product over n and the two parts, of 4 n² multiply-adds; a long one with
factors n = n1 · n2 is two shorter ones (Cooley and Tukey, 1965), of 4 n (n1 + n2), between copies
that turn it. The powers between the two are part of the first one's matrices, one for each of n2.
The matrices are made by the graph itself, from weights alone, so a program computes them once, when
it is loaded. In PyTorch's terms forward transforms have the negative exponent, and `normalization`
is 0 none, 1 by the root of n, 2 by n.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, pi, prod
from typing import Any

import torch
from torch.fx import Node

from npusim.frontends.complex_pairs import NoPair, Rule, Writer, rank

aten = torch.ops.aten

# Multiply-adds that the copies of a transform in two steps are worth, an element.
_COPIES = 192
_MOST_ELEMENTS = 1 << 25  # of a matrix


def _c2c(writer: Writer, node: Node) -> Node:
    x, dims, normalization, forward = node.args
    pair = writer.pair(x)
    for dim in dims:  # type: ignore[union-attr]
        pair = _along(writer, pair, dim, normalization, forward=forward)
    return pair


def _r2c(writer: Writer, node: Node) -> Node:
    x, dims, normalization, onesided = node.args
    *others, last = dims  # type: ignore[misc]
    pair = _along(writer, x, last, normalization, real=True, half=onesided)
    for dim in others:
        pair = _along(writer, pair, dim, normalization)
    return pair


def _c2r(writer: Writer, node: Node) -> Node:
    x, dims, normalization, size = node.args
    *others, last = dims  # type: ignore[misc]
    pair = writer.pair(x)
    for dim in others:
        pair = _along(writer, pair, dim, normalization, forward=False)
    return _inverse_of_half(writer, pair, last, normalization, size)


FOURIER: dict[Any, Rule] = {
    aten._fft_c2c.default: _c2c,
    aten._fft_r2c.default: _r2c,
    aten._fft_c2r.default: _c2r,
}


def _along(
    writer: Writer,
    x: Any,
    dim: int,
    normalization: Any,
    *,
    forward: Any = True,
    real: bool = False,
    half: Any = False,
) -> Node:
    """Returns the transform of a pair, or of what is real, along one dimension.

    Args:
        half: gives the first n // 2 + 1 alone; the others are their conjugates.
    """
    count = rank(x) - (not real)
    dim %= count
    rows = writer.call(aten.permute.default, x, _to_end(dim, count, rank(x)))
    shape = list(rows.meta["val"].shape)
    n = shape[count - 1]
    _check(rows, n)
    scale = _scale(n, normalization)
    sign = -1.0 if forward else 1.0
    kept = n // 2 + 1 if half else n
    parts = 1 if real else 2
    first = _first_step(n, parts * kept)
    if first > 1:
        found = _two_steps(writer, rows, n, first, parts, sign, scale, kept)
    else:
        table = _table(writer, x, n, kept, parts, sign, scale)
        flat = rows if real else writer.view(rows, [*shape[:-2], 2 * n])
        found = writer.call(aten.matmul.default, flat, table)
    found = writer.view(found, [*shape[: count - 1], kept, 2], rows)
    return writer.call(aten.permute.default, found, _from_end(dim, count, count + 1))


def _inverse_of_half(writer: Writer, pair: Node, dim: int, normalization: Any, n: Any) -> Node:
    """Returns the n real numbers whose transform begins with n // 2 + 1 complex ones."""
    count = rank(pair) - 1
    dim %= count
    rows = writer.call(aten.permute.default, pair, _to_end(dim, count, count + 1))
    shape = list(rows.meta["val"].shape)
    _check(rows, n)
    half = n // 2 + 1
    if shape[-2] != half:
        raise NoPair
    scale, first = _scale(n, normalization), _first_step(n, 2 * half)
    if first > 1:
        whole = _whole_of_half(writer, rows, n)
        found = _two_steps(writer, whole, n, first, 2, 1.0, scale, n)
        found = writer.call(aten.select.int, found, 2, 0)
        found = writer.view(found, [*shape[:-2], n], rows)
    else:
        flat = writer.view(rows, [*shape[:-2], 2 * half])
        table = _table_of_half(writer, pair, n, scale)
        found = writer.call(aten.matmul.default, flat, table)
    return writer.call(aten.permute.default, found, _from_end(dim, count, count))


def _whole_of_half(writer: Writer, rows: Node, n: int) -> Node:
    """Returns [..., n, 2] of its first n // 2 + 1: the others are conjugates, from the end on."""
    last = rank(rows) - 2
    mirrored = writer.call(aten.slice.Tensor, rows, last, 1, (n + 1) // 2)
    mirrored = writer.call(aten.flip.default, mirrored, [last])
    real, imaginary = (writer.call(aten.select.int, mirrored, last + 1, i) for i in (0, 1))
    conjugate = writer.join(real, writer.call(aten.neg.default, imaginary))
    return writer.call(aten.cat.default, [rows, conjugate], last)


def _two_steps(
    writer: Writer,
    rows: Node,
    n: int,
    first: int,
    parts: int,
    sign: float,
    scale: float,
    kept: int,
) -> Node:
    """Returns [batch, kept, 2] of rows [..., n] or [..., n, 2]: x[j1 n2 + j2] to y[k1 + n1 k2]."""
    second = n // first
    front = rows.meta["val"].shape[: rank(rows) - parts]
    batch = prod(front) if all(isinstance(d, int) for d in front) else -1
    x = writer.view(rows, [batch, first, second, parts])
    x = writer.call(aten.permute.default, x, [2, 0, 1, 3])
    x = writer.view(x, [second, batch, first * parts])
    step = _tables_of_first(writer, rows, first, second, parts, sign)
    x = writer.call(aten.bmm.default, x, step)  # [n2, batch, n1 * 2]
    x = writer.view(x, [second, batch, first, 2])
    x = writer.call(aten.permute.default, x, [1, 2, 0, 3])
    x = writer.view(x, [batch, first, 2 * second])
    columns = -(-kept // first)
    table = _table(writer, rows, second, columns, 2, sign, scale)
    x = writer.call(aten.matmul.default, x, table)  # [batch, n1, columns * 2]
    x = writer.view(x, [batch, first, columns, 2])
    x = writer.call(aten.permute.default, x, [0, 2, 1, 3])
    x = writer.view(x, [batch, columns * first, 2])
    return x if columns * first == kept else writer.call(aten.slice.Tensor, x, 1, 0, kept)


# ---- matrices ----


def _table(
    writer: Writer, like: Node, n: int, kept: int, parts: int, sign: float, scale: float
) -> Node:
    """Returns [parts * n, 2 * kept]: what an element's parts add to each result's."""
    dtype = like.meta["val"].dtype

    def make() -> Node:
        angles = _angles(writer, _outer(writer, like, n, kept), n, sign)
        return _paired(writer, angles, parts, scale, dtype)

    return _once(writer, ("whole", n, kept, parts, sign, scale, dtype), make)


def _tables_of_first(
    writer: Writer, like: Node, first: int, second: int, parts: int, sign: float
) -> Node:
    """Returns [n2, parts * n1, 2 * n1]: element j1 of column j2 adds to k1 by j1 k1 and j2 k1."""
    dtype, n = like.meta["val"].dtype, first * second

    def make() -> Node:
        inner = _outer(writer, like, first, first)  # j1 k1, of n1
        outer = _outer(writer, like, second, first)  # j2 k1, of n
        inner = writer.call(aten.mul.Scalar, inner, second)
        outer = writer.call(aten.unsqueeze.default, outer, 1)
        turns = writer.call(aten.add.Tensor, inner, outer)  # [n2, n1, n1]
        return _paired(writer, _angles(writer, turns, n, sign), parts, 1.0, dtype)

    return _once(writer, ("first", first, second, parts, sign, dtype), make)


def _table_of_half(writer: Writer, like: Node, n: int, scale: float) -> Node:
    """Returns [2 * (n // 2 + 1), n]: elements but the outermost stand for their conjugates too."""
    dtype, half = like.meta["val"].dtype, n // 2 + 1

    def make() -> Node:
        angles = _angles(writer, _outer(writer, like, half, n), n, 1.0)
        cosines, sines = _turned(writer, angles)
        rows = [cosines, writer.call(aten.neg.default, sines)]
        table = writer.call(aten.cat.default, [_column(writer, r, 1) for r in rows], 1)
        place = _count(writer, like, half)
        edges = [writer.call(aten.eq.Scalar, place, 0)]
        if n % 2 == 0:
            edges.append(writer.call(aten.eq.Scalar, place, half - 1))
        edge = edges[0] if len(edges) == 1 else writer.call(aten.logical_or.default, *edges)
        edge = writer.call(aten._to_copy.default, edge, dtype=torch.float64)
        weight = writer.call(aten.add.Scalar, writer.call(aten.neg.default, edge), 2.0)
        weight = writer.view(writer.call(aten.mul.Scalar, weight, scale), [half, 1, 1])
        table = writer.call(aten.mul.Tensor, table, weight)
        return _cast(writer, writer.view(table, [2 * half, n]), dtype)

    return _once(writer, ("half", n, scale, dtype), make)


def _paired(writer: Writer, angles: Node, parts: int, scale: float, dtype: torch.dtype) -> Node:
    """Returns the matrices [..., parts * j, 2 * k] of angles[..., j, k]."""
    cosines, sines = _turned(writer, angles)
    last = rank(angles)
    # What a real part adds to (real, imaginary), and what an imaginary part does.
    rows = [(cosines, sines), (writer.call(aten.neg.default, sines), cosines)][:parts]
    pairs = [
        writer.call(aten.cat.default, [_column(writer, p, last) for p in row], last) for row in rows
    ]  # each [..., j, k, 2]
    table = writer.call(
        aten.cat.default, [_column(writer, p, last - 1) for p in pairs], last - 1
    )  # [..., j, parts, k, 2]
    if scale != 1.0:
        table = writer.call(aten.mul.Scalar, table, scale)
    *front, j, k = angles.meta["val"].shape
    return _cast(writer, writer.view(table, [*front, parts * j, 2 * k]), dtype)


def _turned(writer: Writer, angles: Node) -> list[Node]:
    """Returns cosines and sines, exactly 0 where that is what they are: π is not a float64."""
    exact = []
    for function in (aten.cos.default, aten.sin.default):
        value = writer.call(function, angles)
        size = writer.call(aten.abs.default, value)
        there = writer.call(aten.gt.Scalar, size, 1e-14)
        exact.append(writer.call(aten.mul.Tensor, value, there))
    return exact


def _angles(writer: Writer, turns: Node, n: int, sign: float) -> Node:
    """Returns 2π/n for each turn, as float64; whole turns are taken out first, exactly."""
    rest = writer.call(aten.remainder.Scalar, turns, n)
    rest = writer.call(aten._to_copy.default, rest, dtype=torch.float64)
    return writer.call(aten.mul.Scalar, rest, sign * 2 * pi / n)


def _outer(writer: Writer, like: Node, rows: int, columns: int) -> Node:
    """Returns the products j k of whole numbers, [rows, columns]."""
    j = writer.call(aten.unsqueeze.default, _count(writer, like, rows), 1)
    return writer.call(aten.mul.Tensor, j, _count(writer, like, columns))


def _count(writer: Writer, like: Node, n: int) -> Node:
    device = like.meta["val"].device
    return writer.call(aten.arange.start_step, 0, n, dtype=torch.int64, device=device)


def _column(writer: Writer, x: Node, dim: int) -> Node:
    return writer.call(aten.unsqueeze.default, x, dim)


def _cast(writer: Writer, x: Node, dtype: torch.dtype) -> Node:
    same = x.meta["val"].dtype == dtype
    return x if same else writer.call(aten._to_copy.default, x, dtype=dtype)


def _once(writer: Writer, key: object, make: Any) -> Node:
    if key not in writer.known:
        writer.known[key] = make()
    return writer.known[key]


# ---- choices ----


def _check(x: Node, n: Any) -> None:
    """Refuses what has no matrix: an extent that calls choose; 16-bit floats."""
    if not isinstance(n, int) or n < 1:
        raise NoPair
    if x.meta["val"].dtype not in (torch.float32, torch.float64):
        raise NoPair


def _scale(n: int, normalization: Any) -> float:
    return {0: 1.0, 1: n**-0.5, 2: 1.0 / n}[normalization]


def _first_step(n: int, numbers: int) -> int:
    """Returns n1 where two steps take less time than one, else 1; refuses what takes too much room.

    Args:
        numbers: that one step reads of each element times those it gives for each.
    """
    first = next(d for d in range(isqrt(n), 0, -1) if n % d == 0)
    if first == 1 or 4 * (first + n // first) + _COPIES >= 2 * numbers:
        first, elements = 1, 2 * n * numbers
    else:
        elements = 4 * max(n * first, (n // first) ** 2)
    if elements > _MOST_ELEMENTS:
        raise NoPair
    return first


def _to_end(dim: int, count: int, dims: int) -> Sequence[int]:
    """Returns the order that makes one of the first `count` dimensions the last of them."""
    return [*(d for d in range(count) if d != dim), dim, *range(count, dims)]


def _from_end(dim: int, count: int, dims: int) -> Sequence[int]:
    order = list(range(count - 1))
    return [*order[:dim], count - 1, *order[dim:], *range(count, dims)]
