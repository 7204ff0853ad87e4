"""The values of a dtype at which formulas part that agree elsewhere.

Owns the list: zeros of both signs, infinities, NaN, the ends of the range and of the denormals,
and around every number that a graph holds its neighbours in the last place. Recognition, `verify`
and the property tests try all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from npusim.abi.scalar_numpy import decode
from npusim.ir.graph import Graph, Node
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import is_float

_MOST_ELEMENTS = 64  # of a constant whose elements are tried
_STORED = {"bfloat16": "float32"}  # which NumPy lacks; it has the range and not the digits


def float_edges(dtype: str, numbers: Iterable[float] = ()) -> NDArray[Any]:
    """Returns edge values of a floating-point dtype, distinct by their bits; bfloat16 as float32.

    Args:
        dtype: float64, float32, float16 or bfloat16.
        numbers: constants of a formula; each comes with both signs and its neighbours.
    """
    kind = np.dtype(_STORED.get(dtype, dtype)).type
    limits = np.finfo(kind)
    unit = kind(2.0**-7) if dtype == "bfloat16" else limits.eps
    tiny = kind(2.0**-133) if dtype == "bfloat16" else limits.smallest_subnormal
    largest = kind(limits.max * (1 - unit / 2)) if dtype == "bfloat16" else limits.max
    fixed = [kind(0), tiny, limits.tiny, limits.tiny - tiny, unit, kind(1), largest, kind(np.inf)]
    with np.errstate(all="ignore"):
        around = [kind(n) for n in numbers]
        around = [n for n in around if np.isfinite(n)]
        values = [*fixed, *(m for n in (kind(1), *around) for m in _neighbours(n, unit, tiny))]
        both = np.array([*values, *(-v for v in values), kind(np.nan)], kind)
    bits = np.unique(both.view(f"u{kind().itemsize}"))
    return bits.view(kind)


def integer_edges(dtype: str, numbers: Iterable[float] = ()) -> NDArray[Any]:
    """Returns edge values of an integer dtype: its ends, 0, and what lies around numbers."""
    limits = np.iinfo(dtype)
    fixed = (limits.min, limits.min + 1, -1, 0, 1, 2, limits.max - 1, limits.max)
    around = [int(n) + d for n in numbers if np.isfinite(n) for d in (-1, 0, 1)]
    kept = {v for v in (*fixed, *around) if limits.min <= v <= limits.max}
    return np.array(sorted(kept), dtype)


def numbers_of(graph: Graph) -> list[float]:
    """Returns the numbers in a graph's attributes and small constants, distinct and in order."""
    found: dict[float, None] = {}
    for constant in graph.constants:
        if constant.type.numel <= _MOST_ELEMENTS and is_float(constant.type.dtype):
            elements = decode(constant.data, constant.type).reshape(-1)
            found.update((float(v), None) for v in elements)
    for node in graph.nodes:
        found.update((number, None) for number in _numbers(node))
    return list(found)


def _numbers(node: Node) -> Iterable[float]:
    pending: list[Any] = list(node.attrs.values())
    while pending:
        value = pending.pop()
        if isinstance(value, tuple):
            pending += value
        elif isinstance(value, (int, float)) and not is_symbolic(value) and abs(value) < 1e300:
            yield float(value)


def _neighbours(number: Any, unit: Any, tiny: Any) -> list[Any]:
    """Returns a number and what lies one and two last places to either side of it."""
    step = max(type(number)(2.0 ** np.floor(np.log2(abs(number)))) * unit, tiny) if number else tiny
    return [number, *(number + d * step for d in (-2, -1, 1, 2))]
