"""Transposed convolutions as plain ones, one a phase of the stride.

Positions of y that are `stride` apart read the same taps, `stride` apart: those of one phase are a
plain convolution by these taps, the last one first (Dumoulin & Visin, "A guide to convolution
arithmetic for deep learning", arXiv:1603.07285, section 4). Taken at once, all taps are tried at
each position, and most of them hit nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from npusim.ir.graph import Node
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.lowering.context import Lowering
from npusim.lowering.view import View
from npusim.ops.linear import pack_b

_JOINED_TAPS = 24  # of a phase, whose windows have a bit each


@dataclass(frozen=True, slots=True)
class Phase:
    """One dimension of a phase: y[start::stride] is x[cut:] convolved with w[taps - 1 :: -stride].

    Attributes:
        start, count: of the positions of y.
        cut: positions at x's beginning that none of them reads.
        padding: before what is left of x.
        last_tap, taps: the tap that x's first position meets, and how many there are.
    """

    start: int
    count: int
    cut: int
    padding: int
    last_tap: int
    taps: int


def has_phases(conv: Node, types: Mapping[str, TensorType]) -> bool:
    """Tells whether a transposed `npu.conv` of one group is plain ones: each phase has taps."""
    x, w = (types[i] for i in conv.inputs[:2] if i is not None)
    stride, dilation = conv.attrs["stride"], conv.attrs["dilation"]
    assert isinstance(stride, tuple) and isinstance(dilation, tuple)
    if is_symbolic((*x.shape, *w.shape)) or conv.attrs["groups"] != 1:
        return False
    pairs = zip(w.shape[2:], stride, strict=True)
    taps = all(isinstance(s, int) and k >= s for k, s in pairs)
    return taps and all(d == 1 for d in dilation)


def phases(
    out_size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]
) -> list[tuple[Phase, ...]]:
    """Returns the phases of a transposed convolution without dilation, or none.

    None where a phase has no taps (a stride beyond the kernel): its y is only what is added.
    """
    dims = [
        [_phase(p, *numbers) for p in range(min(numbers[2], numbers[0]))]
        for numbers in zip(out_size, kernel, stride, padding, strict=True)
    ]
    if any(phase.taps == 0 for dim in dims for phase in dim):
        return []
    return list(product(*dims))


def are_joined(found: Sequence[tuple[Phase, ...]], stride: Sequence[int], x: View) -> bool:
    """Tells whether tiles take all phases of one group at once.

    Each has as many positions and taps as the first, which are few, and chunks of channels.
    """
    sizes = {tuple((one.count, one.taps) for one in phase) for phase in found}
    if len(sizes) != 1 or len(found) != prod(stride):
        return False
    few = prod(one.taps for one in found[0]) <= _JOINED_TAPS
    whole = x.dtype == "float32" or x.shape[1] % 8 == 0
    return few and whole and x.shape[0] * x.strides[0] < 2**31 - 1


def phase_views(
    phase: tuple[Phase, ...],
    stride: Sequence[int],
    x: View,
    w: View,
    y: View,
    residual: View | None,
) -> tuple[View, View, View, View | None]:
    """Returns what a phase reads of x [n, c, …] and of w [c, n, k…], and its positions of y and of
    what is added to y."""
    for d, (one, step) in enumerate(zip(phase, stride, strict=True), start=2):
        x = x.slice(d, one.cut, max(0, x.shape[d] - one.cut))
        w = w.slice(d, one.last_tap, one.taps, -step)
        y = y.slice(d, one.start, one.count, step)
        if residual is not None:
            residual = residual.slice(d, one.start, one.count, step)
    return x, w, y, residual


def packed_phases(low: Lowering, w: View, stride: Sequence[int], taps: Sequence[int]) -> View:
    """w [c, n, k…] becomes (phase, n, tap, c): phases by their first taps, the last tap first."""
    w = low.dense(w)
    rank, steps = len(stride), w.strides[2:]
    last = sum(s * (t - 1) * step for s, t, step in zip(stride, taps, steps, strict=True))
    by_phase = replace(
        w,
        offset=w.offset + last * w.element_size,
        shape=(*stride, w.shape[1], *taps, w.shape[0]),
        strides=(*steps, w.strides[1], *(-s * n for s, n in zip(stride, steps, strict=True)),
                 w.strides[0]),
    )  # fmt: skip
    dense = low.dense(by_phase)
    sizes = dense.strides[rank - 1], dense.strides[rank], w.shape[0], 1
    return pack_b(
        low, dense, groups=prod(stride), n=w.shape[1], taps=prod(taps), channels=w.shape[0],
        strides=sizes,
    )  # fmt: skip


def _phase(start: int, size: int, kernel: int, stride: int, padding: int) -> Phase:
    first = (start + padding) % stride
    taps = max(0, -(-(kernel - first) // stride))
    before = taps - 1 - (start + padding - first) // stride
    return Phase(
        start=start,
        count=-(-(size - start) // stride),
        cut=max(0, -before),
        padding=max(0, before),
        last_tap=first + stride * (taps - 1),
        taps=taps,
    )
