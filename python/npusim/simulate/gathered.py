"""What a command fetches piece by piece: rows of operands that lie apart, elements by an index.

A function of elements takes its operands where they lie, unless their rows are short and do not
follow one another: then a processor puts them together row by row (kernels/cpu/pointwise.cpp). An
index moves what its tensors do not tell apart as one (kernels/cpu/index_space.h).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from npusim.abi.kernels import RANK, Params

_TILE = 1024  # elements that are put together at a time; longer rows lie as they are


def gathered(stem: str, params: Params) -> int | None:
    """Returns how many pieces a command fetches one by one; None: it is of another kind.

    Args:
        stem: of its kernel.
        params: all of its kernel's fields.
    """
    if stem == "index":
        return index_items(params) * max(1, params["n"])
    return rows_apart(params) if stem == "pointwise" else None


def rows_apart(p: Params) -> int:
    """Returns the rows that a function of elements puts together, of all of its operands."""
    rank = p["rank"]
    if not rank or p["shape"][rank - 1] > _TILE:
        return 0
    walks = [p["x_strides"][i * RANK :][:rank] for i in range(p["n_inputs"])]
    apart = sum(_apart(p["shape"][:rank], walk) for walk in (*walks, p["y_strides"][:rank]))
    return apart * math.prod(p["shape"][: rank - 1])


def _apart(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Tells whether rows neither follow one another as elements do nor are the same memory."""
    outer = [(n, s) for n, s in zip(shape[:-1], strides[:-1], strict=True) if n != 1]
    step, flat = shape[-1] * strides[-1] if shape[-1] != 1 else 1, True
    for size, stride in reversed(outer):
        flat, step = flat and stride == step, step * size
    return not flat and any(stride for _, stride in outer)


def index_run(p: Params) -> int:
    """Returns the innermost elements that no index tells apart, which move as one."""
    run = 1
    for axis in reversed(range(p["rank"])):
        told = any(p["idx_strides"][i * RANK + axis] for i in range(p["n"]))
        if told and p["shape"][axis] != 1:
            break
        run *= p["shape"][axis]
    return run


def index_items(p: Params) -> int:
    """Returns how many runs an index moves."""
    return math.prod(p["shape"][: p["rank"]]) // max(1, index_run(p))
