"""Evaluates nodes with NumPy: creation ops, shape ops and pointwise ops over known arrays.

An op without an entry here is not folded, which costs speed and never a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from npusim.abi import scalar_numpy
from npusim.abi.literals import filled_literal
from npusim.abi.scalar_numpy import Array
from npusim.analysis.compose import Typed, scalar_program
from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, integer, ints, permutation
from npusim.errors import at
from npusim.ir.graph import Node
from npusim.ops.creation import arange

Function = Callable[[Node, Sequence[Array]], Array]


def evaluate(node: Node, graph: Typed, known: Mapping[str, Array]) -> Array | None:
    """Returns what a node computes, or None when it cannot be known or has no entry.

    Args:
        known: the values known so far; bfloat16 as float32.

    Returns:
        An array of the node's shape, in any dtype that holds the result before it is stored.
    """
    if node.op in _FILLS:
        what = f"{node.op}{at(node.source)}"
        number = filled_literal(_FILLS[node.op](node), node.type, what)
        return np.broadcast_to(np.asarray(number), node.type.shape)
    operands = [i for i in node.inputs if i is not None]
    if any(i not in known for i in operands):
        return None
    arrays = [known[i] for i in operands]
    function = _FUNCTIONS.get(node.op)
    if function is not None:
        return function(node, arrays)
    program = scalar_program(node, graph) if operands else None
    if program is None:
        return None
    try:
        return scalar_numpy.run(program, arrays, checked=True)
    except ZeroDivisionError:  # left to the device, which reports it
        return None


def _fill_value(node: Node) -> Any:
    return node.attrs["fill_value"]


def fill_value(node: Node) -> float | int | None:
    """Returns the number a node fills its result with, or None when it does no such thing."""
    return _FILLS[node.op](node) if node.op in _FILLS else None


# Fills read the shape of their operand, if they have one, and that is in the node's type.
_FILLS: dict[str, Callable[[Node], Any]] = {
    "aten.full.default": _fill_value,
    "aten.full_like.default": _fill_value,
    "aten.new_full.default": _fill_value,
    "aten.fill.Scalar": lambda node: node.attrs["value"],
    "aten.scalar_tensor.default": lambda node: node.attrs["s"],
    **{
        f"aten.{name}": lambda node: 0
        for name in (
            *("zeros.default", "zeros_like.default", "new_zeros.default"),
            *("empty.memory_format", "empty_like.default", "new_empty.default"),
        )
    },
    **{f"aten.{name}.default": lambda node: 1 for name in ("ones", "ones_like", "new_ones")},
}


def _eye(node: Node, arrays: Sequence[Array]) -> Array:
    rows, columns = node.type.shape
    return np.eye(rows, columns)


def _slice(node: Node, arrays: Sequence[Array]) -> Array:
    (x,) = arrays
    dim = integer(node, "dim", 0) % x.ndim
    start, end = node.attrs.get("start"), node.attrs.get("end")
    index: list[Any] = [slice(None)] * x.ndim
    index[dim] = slice(start, end, node.attrs.get("step", 1))
    return x[tuple(index)]


def _select(node: Node, arrays: Sequence[Array]) -> Array:
    return np.take(arrays[0], integer(node, "index"), axis=integer(node, "dim"))


def _flip(node: Node, arrays: Sequence[Array]) -> Array:
    return np.flip(arrays[0], ints(node, "dims"))


def _triangle(function: Callable[..., Array]) -> Function:
    return lambda node, arrays: function(arrays[0], integer(node, "diagonal", 0))


def _cumsum(node: Node, arrays: Sequence[Array]) -> Array:
    wide = arrays[0].astype(np.float64 if arrays[0].dtype.kind == "f" else np.int64)
    return np.cumsum(wide, axis=integer(node, "dim"))


_FUNCTIONS: dict[str, Function] = {
    **dict.fromkeys(RESHAPES, lambda node, arrays: arrays[0].reshape(node.type.shape)),
    **dict.fromkeys(
        PERMUTATIONS, lambda node, arrays: arrays[0].transpose(permutation(node, arrays[0].ndim))
    ),
    **{
        f"aten.arange.{name}": lambda node, arrays: arange(node)
        for name in ("default", "start", "start_step")
    },
    "aten.eye.default": _eye,
    "aten.eye.m": _eye,
    "aten.expand.default": lambda node, arrays: np.broadcast_to(arrays[0], node.type.shape),
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.flip.default": _flip,
    "aten.repeat.default": lambda node, arrays: np.tile(arrays[0], ints(node, "repeats")),
    "aten.cat.default": lambda node, arrays: np.concatenate(arrays, integer(node, "dim", 0)),
    "aten.stack.default": lambda node, arrays: np.stack(arrays, integer(node, "dim", 0)),
    "aten.tril.default": _triangle(np.tril),
    "aten.triu.default": _triangle(np.triu),
    "aten.cumsum.default": _cumsum,
}
