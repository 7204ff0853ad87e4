"""Which values hold one number everywhere: constants, `full`, and views of them."""

from __future__ import annotations

import numpy as np

from npusim.abi.scalar_numpy import decode, encode
from npusim.analysis.shapes import VIEWS
from npusim.ir.graph import Attr, Constant
from npusim.ir.rewriter import Rewriter
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType, dtype_size


def uniform_value(value: str, rewriter: Rewriter) -> float | int | None:
    """Returns the number that all elements of a value are, or None."""
    while True:
        if value in rewriter.constants:
            return uniform_constant(rewriter.constants[value])
        node = rewriter.producer(value)
        if node is None:
            return None
        if node.op == "aten.full.default":
            return _stored(node.attrs["fill_value"], node.type.dtype)
        if node.op not in VIEWS or node.inputs[0] is None:
            return None
        value = node.inputs[0]


def _stored(number: Attr, dtype: str) -> float | int | None:
    """Returns a number as a tensor of a dtype holds it; a symbolic size as it is."""
    if not isinstance(number, (int, float)) or is_symbolic(number):
        return number if is_symbolic(number) else None  # type: ignore[return-value]
    array = decode(encode(np.asarray(number), dtype), TensorType(dtype, ()))
    return int(array) if array.dtype.kind in "iub" else float(array)


def uniform_constant(constant: Constant) -> float | int | None:
    """Returns the number that all elements of a constant are, or None."""
    if not constant.type.numel:
        return None
    size = dtype_size(constant.type.dtype)
    if constant.data != constant.data[:size] * constant.type.numel:  # 0 and -0 are not one number
        return None
    array = decode(constant.data, constant.type).reshape(-1)
    first = array[0]
    return int(first) if array.dtype.kind in "iub" else float(first)
