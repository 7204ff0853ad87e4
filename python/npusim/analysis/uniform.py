"""Which values hold one number everywhere: constants, `full`, and views of them."""

from __future__ import annotations

import numpy as np

from npusim.analysis.shapes import VIEWS
from npusim.ir.graph import Constant
from npusim.ir.rewriter import Rewriter
from npusim.ops.scalar_numpy import decode


def uniform_value(value: str, rewriter: Rewriter) -> float | int | None:
    """Returns the number that all elements of a value are, or None."""
    while True:
        if value in rewriter.constants:
            return uniform_constant(rewriter.constants[value])
        node = rewriter.producer(value)
        if node is None:
            return None
        if node.op == "aten.full.default":
            number = node.attrs["fill_value"]
            return number if isinstance(number, (int, float)) else None
        if node.op not in VIEWS or node.inputs[0] is None:
            return None
        value = node.inputs[0]


def uniform_constant(constant: Constant) -> float | int | None:
    """Returns the number that all elements of a constant are, or None."""
    if not constant.type.numel:
        return None
    array = decode(constant.data, constant.type).reshape(-1)
    first = array[0]
    if not bool(np.all(array == first)):
        return None
    return int(first) if array.dtype.kind in "iub" else float(first)
