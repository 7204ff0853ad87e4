"""What is known while importing is computed while importing, with NumPy.

Owns what each scalar operation of tinygrad means as a NumPy function. Ranges, triangles and masks
are towers of operations in tinygrad's graph; here they become the arrays they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from npusim.frontends.tinygrad.index import Access, behind, loop
from npusim.frontends.tinygrad.terms import Term, numpy_dtype

Array = np.ndarray[Any, Any]
MAX_ELEMENTS = 1 << 25  # of an array on the way

SCALAR: dict[str, Callable[..., Any]] = {
    "exp2": np.exp2,
    "log2": np.log2,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "reciprocal": lambda x: np.divide(x.dtype.type(1), x),
    "neg": lambda x: x if x.dtype == bool else np.negative(x),  # -True is True, as in C
    "trunc": np.trunc,
    "add": np.add,
    "sub": lambda a, b: a ^ b if a.dtype == bool else np.subtract(a, b),
    "mul": np.multiply,
    "max": np.maximum,
    "fdiv": np.true_divide,
    "pow": np.power,
    "cdiv": lambda a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)),
    "cmod": np.fmod,
    "floordiv": np.floor_divide,
    "floormod": np.mod,
    "cmplt": np.less,
    "cmpne": np.not_equal,
    "cmpeq": np.equal,
    "xor": np.bitwise_xor,
    "or": np.bitwise_or,
    "and": np.bitwise_and,
    "shl": np.left_shift,
    "shr": np.right_shift,
    "where": np.where,
    "mulacc": lambda a, b, c: a * b + c,
}
_REDUCE: dict[str, Any] = {"add": np.sum, "max": np.max, "mul": np.prod}


def evaluate(term: Term) -> Array | None:
    """Returns the elements of a known term; None when an array on the way would be too large."""
    values: dict[int, Array] = {}
    pending = [term]
    while pending:
        each = pending[-1]
        counted = _counted(each) if each.index not in values else None
        if counted is not None:
            values[each.index] = counted
        missing = [s for s in each.sources if s.index not in values]
        if each.index in values or not missing:
            pending.pop()
            if each.index not in values:
                value = _evaluated(each, [values[s.index] for s in each.sources])
                if value is None:
                    return None
                values[each.index] = value
        elif each.numel > MAX_ELEMENTS and each.op != "expand":
            return None
        else:
            pending.extend(missing)
    return values[term.index]


def _counted(term: Term) -> Array | None:
    """Returns a running sum of one number: the number times how often a window is inside.

    So tinygrad writes ranges, through windows that would take the square of their length.
    """
    if term.op != "reduce" or term.arg[0] != "add" or len(term.arg[1]) != 1:
        return None
    (source,), (axis,) = term.sources, term.arg[1]
    access: Access = loop(source, source.shape)
    while (before := behind(access)) is not None:
        access = before
    number = uniform(access.term)
    if number is None or len(access.guards) != 1 or access.guards[0].index.factor(axis) != 1:
        return None
    (guard,) = access.guards
    shape = [1 if a == axis else n for a, n in enumerate(source.shape)]
    first = np.full(shape, guard.index.constant)
    for place, factor in guard.index.terms:
        if place != axis:
            line = [n if a == place else 1 for a, n in enumerate(shape)]
            first = first + factor * np.arange(shape[place]).reshape(line)
    low, high = np.maximum(0, -first), np.minimum(source.shape[axis], guard.size - first)
    counts = np.maximum(high - low, 0).reshape(term.shape)
    return (counts * number).astype(numpy_dtype(term.dtype))


def scalar(op: str, dtype: str, operands: list[Any]) -> Any:
    """Returns a scalar operation's result on numbers, computed in a dtype, as a NumPy scalar."""
    with np.errstate(all="ignore"):
        return np.asarray(SCALAR[op](*operands)).astype(numpy_dtype(dtype))[()]


def _evaluated(term: Term, operands: list[Array]) -> Array | None:
    with np.errstate(all="ignore"):
        return _computed(term, operands)


def _computed(term: Term, operands: list[Array]) -> Array | None:
    dtype = numpy_dtype(term.dtype)
    if term.op == "const":
        return np.asarray(term.arg).astype(dtype)
    if term.op == "leaf":
        return np.asarray(term.arg.data).astype(dtype)
    if term.op == "cast":
        return operands[0].astype(dtype)
    if term.op == "stack":
        return np.stack(operands)
    if term.op == "reduce":
        operation, axes = term.arg
        result = _REDUCE[operation](operands[0], axis=axes)
        return np.asarray(result).astype(dtype)
    if term.op in SCALAR:
        return np.asarray(SCALAR[term.op](*operands)).astype(dtype)
    return _moved(term, operands[0]) if operands else None


def _moved(term: Term, x: Array) -> Array | None:
    if term.op == "reshape":
        return x.reshape(term.arg)
    if term.op == "expand":
        return np.broadcast_to(x, term.arg)
    if term.op == "permute":
        return x.transpose(term.arg)
    if term.op == "pad":
        return np.pad(x, term.arg)
    if term.op == "shrink":
        return x[tuple(slice(a, b) for a, b in term.arg)]
    if term.op == "flip":
        return np.asarray(np.flip(x, term.arg))
    return None


def uniform(term: Term) -> bool | int | float | None:
    """Returns the number that all elements of a term are, if operations on numbers show that."""
    while term.op in ("reshape", "expand", "permute", "shrink", "flip"):
        term = term.sources[0]
    if term.op == "const":
        number: bool | int | float = term.arg
        return number
    if not term.known or not term.sources or term.op not in (*SCALAR, "cast", "pad"):
        return None
    numbers = [uniform(s) for s in term.sources]
    if any(n is None for n in numbers):
        return None
    if term.op == "pad":
        return numbers[0] if numbers[0] == 0 else None
    types = (numpy_dtype(s.dtype) for s in term.sources)
    operands = [np.asarray(n).astype(t) for n, t in zip(numbers, types, strict=True)]
    if term.op == "cast":
        result = operands[0].astype(numpy_dtype(term.dtype))[()]
    else:
        result = scalar(term.op, term.dtype, operands)
    return result.item()  # type: ignore[no-any-return]
