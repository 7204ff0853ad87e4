"""Reading quantized arithmetic as frontends write it out: which bytes a float stands for, and which
floats a node turns into bytes.

Owns the two formulas, (q - zero) * scale and saturate(round(x / scale) + zero), behind any views;
decides nothing. Numbers and values are `Operand`s, as in `match`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npusim.abi.scalar_numpy import Array, decode, encode
from npusim.analysis.match import Operand, instruction
from npusim.analysis.shapes import PERMUTATIONS, VIEWS, permutation
from npusim.ir.graph import Node
from npusim.ir.rewriter import Rewriter
from npusim.ir.types import TensorType

LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int32": (-(2**31), 2**31 - 1)}
_COPY = "aten._to_copy.default"


@dataclass(frozen=True)
class Dequantized:
    """A value that integers stand for: views of (source - zero) * scale.

    Attributes:
        source: the integers, an int8, uint8 or int32 value.
        zero: None where it is 0.
        scale: None where the integers stand for themselves.
        views: what follows, in order.
    """

    source: str
    zero: Operand | None
    scale: Operand | None
    views: tuple[Node, ...]


@dataclass(frozen=True)
class Quantization:
    """What becomes bytes, saturate(round(value / scale) + zero), or * scale where `inverted`."""

    value: str
    scale: Operand
    inverted: bool
    zero: Operand | None


def dequantized(value: str, rewriter: Rewriter) -> Dequantized | None:
    """Returns what a value stands for, or None when no integers do."""
    views: list[Node] = []
    while (node := rewriter.producer(value)) is not None and node.op in VIEWS:
        if len(node.outputs) != 1 or node.inputs[0] is None:
            return None
        views.append(node)
        value = node.inputs[0]
    views.reverse()
    plain = _shifted(value, None, tuple(views), rewriter)
    product = None if plain else instruction(value, "mul", rewriter)
    for x, scale in _orders(product):
        found = _shifted(x, scale, tuple(views), rewriter)
        if found is not None:
            return found
    return plain


def _orders(pair: list[Operand] | None) -> list[tuple[Operand, Operand]]:
    return [] if pair is None else [(pair[0], pair[1]), (pair[1], pair[0])]


def _shifted(
    value: Operand, scale: Operand | None, views: tuple[Node, ...], rewriter: Rewriter
) -> Dequantized | None:
    difference = instruction(value, "sub", rewriter)
    wide, zero = (value, None) if difference is None else (difference[0], difference[1])
    node = rewriter.producer(wide) if isinstance(wide, str) else None
    if node is None or node.op != _COPY or node.inputs[0] is None:
        return None
    source = rewriter.types[node.inputs[0]]
    if source.dtype == "int64" and node.type.dtype == "float32" and difference is None:
        return _shifted(node.inputs[0], scale, views, rewriter)  # shifted before, exactly
    if source.dtype not in LIMITS or node.type.dtype not in ("float32", "int64"):
        return None
    # What is shifted or scaled is not broadcast, so that its shape is the bytes'.
    last = rewriter.types[views[0].inputs[0]] if views and views[0].inputs[0] else None
    shape = source.shape if last is None else last.shape
    return Dequantized(node.inputs[0], zero, scale, views) if shape == source.shape else None


def quantization(node: Node, rewriter: Rewriter) -> Quantization | None:
    """Returns what a node turns into all the bytes of its dtype, or None for another node."""
    if node.op != _COPY or node.type.dtype not in ("int8", "uint8") or node.inputs[0] is None:
        return None
    bounded = instruction(node.inputs[0], "clamp", rewriter, node)
    if bounded is None or tuple(bounded[1:]) != LIMITS[node.type.dtype]:
        return None
    whole, zero = bounded[0], None
    summed = instruction(whole, "add", rewriter)
    rounded = instruction(whole, "round", rewriter)
    if rounded is None and summed is not None:
        for x, other in _orders(summed):
            rounded, zero = instruction(x, "round", rewriter), other
            if rounded is not None:
                break
    if rounded is None:
        return None
    if (quotient := instruction(rounded[0], "div", rewriter)) is not None:
        value, scale = quotient
        return Quantization(value, scale, False, zero) if isinstance(value, str) else None
    for value, scale in _orders(instruction(rounded[0], "mul", rewriter)):
        if isinstance(value, str) and _is_vector(scale, rewriter):
            return Quantization(value, scale, True, zero)
    value = rounded[0]  # in steps of 1, by which nobody divides
    return Quantization(value, 1.0, False, zero) if isinstance(value, str) else None


def _is_vector(scale: Operand, rewriter: Rewriter) -> bool:
    return not isinstance(scale, str) or scale in rewriter.static


def array_of(operand: Operand, rewriter: Rewriter) -> Array | None:
    """Returns the elements of a number or constant; None for what is computed."""
    if not isinstance(operand, str):
        return np.asarray(operand)
    constant = rewriter.constants.get(operand)
    return None if constant is None else decode(constant.data, constant.type)


def number_of(operand: Operand | None, rewriter: Rewriter) -> float | None:
    """Returns a scale or zero point that is known and one number; 0 for None."""
    array = np.zeros(()) if operand is None else array_of(operand, rewriter)
    return None if array is None or array.size != 1 else float(array.reshape(()))


def same(a: Operand | None, b: Operand | None, rewriter: Rewriter) -> bool:
    """Tells whether two scales or zero points are surely equal, and one number each."""
    if isinstance(a, str) and a == b:
        return rewriter.types[a].numel == 1
    first, second = number_of(a, rewriter), number_of(b, rewriter)
    return first is not None and first == second


def vector_of(
    operand: Operand, dtype: str, axis: int, rank: int, like: Node, rewriter: Rewriter
) -> str | None:
    """Returns a scale or zero point as a vector of a dtype: one element, or one a channel.

    Args:
        axis: the only dimension along which it may differ, of a tensor of `rank` dimensions.

    Returns:
        None for one that differs along others, or is not in the dtype and cannot be put into it.
    """
    array = array_of(operand, rewriter)
    if array is not None:
        if not _along(array.shape, axis, rank) or not _fits(array, dtype):
            return None
        flat = array.reshape(-1)
        type = TensorType(dtype, flat.shape)
        return rewriter.constant("quantization", type, encode(flat, dtype))
    assert isinstance(operand, str)
    if not _along(rewriter.types[operand].shape, axis, rank):
        return None
    value = operand
    while rewriter.types[value].dtype != dtype:
        node = rewriter.producer(value)
        looks_on = node is not None and (node.op == _COPY or node.op in VIEWS)
        if node is None or not looks_on or node.inputs[0] is None:
            return None
        value = node.inputs[0]
    type = TensorType(dtype, (rewriter.types[value].numel,))
    if type.numel != rewriter.types[operand].numel:
        return None
    if rewriter.types[value].shape == type.shape:
        return value
    attrs = {"size": type.shape}
    return rewriter.emit("aten.view.default", (value,), type, attrs, like=like)


def _along(shape: Sequence[int], axis: int, rank: int) -> bool:
    aligned = (1,) * (rank - len(shape)) + tuple(shape)
    return len(aligned) == rank and all(n == 1 for d, n in enumerate(aligned) if d != axis)


def _fits(array: Array, dtype: str) -> bool:
    if dtype not in LIMITS:
        return True
    low, high = LIMITS[dtype]
    return bool(np.all((array == np.rint(array)) & (array >= low) & (array <= high)))


def axis_after(views: Sequence[Node], axis: int, rank: int) -> int | None:
    """Returns the dimension before permutations that ends up as `axis`; None behind others."""
    for view in reversed(views):
        if view.op not in PERMUTATIONS:
            return None
        axis = permutation(view, rank)[axis]
    return axis


def bytes_of(found: Dequantized, like: Node, rewriter: Rewriter) -> str:
    """Returns the integers in the shape of the value that they stand for."""
    value = found.source
    dtype = rewriter.types[value].dtype
    for view in found.views:
        type = TensorType(dtype, view.type.shape)
        value = rewriter.emit(view.op, (value,), type, view.attrs, like=like)
    return value
