"""Values made of symbolic sizes: what models compute from `Shape` is computed while importing.

An array of Python objects holds ints and symbolic sizes. What is no exact integer, or depends on
what the bounds leave open, is not computed here: it becomes part of the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any, Union

import numpy as np
from onnx import TensorProto

from npusim.errors import SymbolicSizeError
from npusim.frontends.onnx.kinds import INTEGERS, Array
from npusim.ir.symbolic import bounds, is_symbolic, lower, maximum, minimum

Attributes = Mapping[str, Any]
Function = Callable[..., Union[Array, Sequence[Array], None]]


def objects(values: Any) -> Array:
    """Returns values as an array of Python objects: of their shape, when they are an array."""
    if isinstance(values, np.ndarray):
        return values.astype(object)
    array = np.empty(len(values), object)
    for i, value in enumerate(values):
        array[i] = value
    return array


def has_sizes(array: Array) -> bool:
    """Tells whether an array of objects holds a symbolic size."""
    return any(is_symbolic(value) for value in array.reshape(-1))


def kind_of(op: str, kinds: Sequence[int], attrs: Attributes) -> int:
    """Returns the element type of an operator's results, of the operators that `computed` knows."""
    if op == "Cast":
        return int(attrs["to"])
    if op in _TRUTHS:
        return TensorProto.BOOL
    return kinds[1] if op == "Where" else kinds[0]


def computed(op: str, arrays: Sequence[Array | None], attrs: Attributes) -> list[Array] | None:
    """Returns the results of an operator over arrays of objects, or None when it has none here."""
    function = _FUNCTIONS.get(op)
    if function is None:
        return None
    try:
        found = function(attrs, *arrays)
    except SymbolicSizeError:  # left to the run
        return None
    if found is None:
        return None
    return [np.asarray(a, object) for a in ([found] if isinstance(found, np.ndarray) else found)]


def _elementwise(function: Callable[[Any, Any], Any]) -> Function:
    pairwise = np.frompyfunc(function, 2, 1)
    return lambda attrs, *arrays: _array(reduce(pairwise, arrays))


def _each(function: Callable[[Any], Any]) -> Function:
    return lambda attrs, x: _array(np.frompyfunc(function, 1, 1)(x))


def _array(value: Any) -> Array:
    """Returns what NumPy gives for arrays of rank 0, an element, as such an array again."""
    if isinstance(value, np.ndarray):
        return value
    array = np.empty((), object)
    array[()] = value
    return array


def _quotient(a: int, b: int) -> int:
    """Returns a / b rounded towards zero; of sizes, which are not negative, that is a // b."""
    if not is_symbolic((a, b)):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    if lower(a) < 0:
        raise SymbolicSizeError(f"whether {a} is negative depends on the sizes of the call.")
    return a // b


def _equal(a: Any, b: Any) -> bool:
    if not is_symbolic((a, b)):
        return bool(a == b)
    low, high = bounds(a - b)
    if low <= 0 <= high and low != high:
        raise SymbolicSizeError(f"whether {a} is {b} depends on the sizes of the call.")
    return low == high == 0


def _cast(attrs: Attributes, x: Array) -> Array | None:
    kind = attrs.get("to")
    if kind == TensorProto.BOOL:
        return _array(np.frompyfunc(bool, 1, 1)(x))
    return x if kind in INTEGERS else None


def _ints(x: Array | None) -> list[int] | None:
    """Returns numbers, which must be known: axes, places, steps."""
    if x is None:
        return None
    if has_sizes(x):
        raise SymbolicSizeError("an axis or a place depends on the sizes of the call.")
    return [int(v) for v in x.reshape(-1)]


def _axes(attrs: Attributes, given: Array | None) -> list[int] | None:
    return attrs.get("axes") if given is None else _ints(given)


def _gather(attrs: Attributes, x: Array, places: Array) -> Array:
    if has_sizes(places):
        raise SymbolicSizeError("a place depends on the sizes of the call.")
    return _array(np.take(x, places.astype(np.int64), axis=attrs.get("axis", 0)))


def _unsqueeze(attrs: Attributes, x: Array, axes: Array | None = None) -> Array:
    return np.expand_dims(x, tuple(_axes(attrs, axes) or ()))


def _squeeze(attrs: Attributes, x: Array, axes: Array | None = None) -> Array:
    chosen = _axes(attrs, axes)
    return np.squeeze(x, None if chosen is None else tuple(chosen))


def _reshape(attrs: Attributes, x: Array, shape: Array) -> Array:
    return x.reshape(_ints(shape) or ())


def _expand(attrs: Attributes, x: Array, shape: Array) -> Array:
    wanted = np.broadcast_shapes(x.shape, tuple(_ints(shape) or ()))
    return np.broadcast_to(x, wanted).copy()


def _slice(
    attrs: Attributes,
    x: Array,
    starts: Array | None = None,
    ends: Array | None = None,
    axes: Array | None = None,
    steps: Array | None = None,
) -> Array:
    first, last = (
        attrs[name] if given is None else _ints(given) or []
        for name, given in (("starts", starts), ("ends", ends))
    )
    dims = _axes(attrs, axes) or range(len(first))
    strides = _ints(steps) or [1] * len(first)
    for start, end, dim, step in zip(first, last, dims, strides, strict=True):
        index: list[Any] = [slice(None)] * x.ndim
        index[dim] = slice(start, None if step < 0 and end < -(2**31) else end, step)
        x = x[tuple(index)]
    return x


def _split(attrs: Attributes, x: Array, sizes: Array | None = None) -> Sequence[Array] | None:
    lengths = attrs.get("split") if sizes is None else _ints(sizes)
    if lengths is None:
        return None
    return np.split(x, np.cumsum(lengths)[:-1], axis=attrs.get("axis", 0))


def _reduced(function: Callable[[Any, Any], Any]) -> Function:
    def reduced(attrs: Attributes, x: Array, axes: Array | None = None) -> Array:
        chosen = _axes(attrs, axes)
        dims = tuple(range(x.ndim)) if not chosen else tuple(chosen)
        ufunc = np.frompyfunc(function, 2, 1)
        for dim in sorted((d % x.ndim for d in dims), reverse=True):
            x = _array(ufunc.reduce(x, axis=dim, keepdims=bool(attrs.get("keepdims", 1))))
        return x

    return reduced


def _where(attrs: Attributes, condition: Array, x: Array, y: Array) -> Array:
    return _array(np.frompyfunc(lambda c, a, b: a if c else b, 3, 1)(condition, x, y))


_TRUTHS = frozenset(
    ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Not", "And", "Or")
)
_FUNCTIONS: dict[str, Function] = {
    "Identity": lambda attrs, x: x,
    "Cast": _cast,
    "Add": _elementwise(lambda a, b: a + b),
    "Sub": _elementwise(lambda a, b: a - b),
    "Mul": _elementwise(lambda a, b: a * b),
    "Div": _elementwise(_quotient),
    "Mod": _elementwise(lambda a, b: a % b),
    "Neg": _each(lambda a: -a),
    "Abs": _each(abs),
    "Max": _elementwise(maximum),
    "Min": _elementwise(minimum),
    "Equal": _elementwise(_equal),
    "Less": _elementwise(lambda a, b: bool(a < b)),
    "LessOrEqual": _elementwise(lambda a, b: bool(a <= b)),
    "Greater": _elementwise(lambda a, b: bool(a > b)),
    "GreaterOrEqual": _elementwise(lambda a, b: bool(a >= b)),
    "Not": _each(lambda a: not a),
    "And": _elementwise(lambda a, b: bool(a and b)),
    "Or": _elementwise(lambda a, b: bool(a or b)),
    "Where": _where,
    "Gather": _gather,
    "Concat": lambda attrs, *parts: np.concatenate(parts, attrs["axis"]),
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "Expand": _expand,
    "Slice": _slice,
    "Split": _split,
    "Transpose": lambda attrs, x: x.transpose(attrs.get("perm")),
    "ReduceProd": _reduced(lambda a, b: a * b),
    "ReduceSum": _reduced(lambda a, b: a + b),
    "ReduceMax": _reduced(maximum),
    "ReduceMin": _reduced(minimum),
}
