"""Tensors made from nothing: constants folded into the program, never computed at run time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npusim.abi.literals import checked_literal, filled_literal
from npusim.abi.scalar_numpy import encode
from npusim.errors import GraphError, at
from npusim.ir.graph import Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.symbolic import is_symbolic, upper
from npusim.ir.types import TensorType, dtype_size, is_float
from npusim.lowering.context import Lowering, element_bits
from npusim.lowering.view import View

_MAX_TABLE = 1 << 27  # elements that are computed when compiling


def _uniform(node: Node, low: Lowering, value: float | int | bool) -> None:
    """One element in the program, shown as the whole tensor through strides of 0.

    A symbolic size is written at each call.
    """
    tensor = node.type
    if is_symbolic(value):
        size = low.temp(TensorType("int64", ()), static=False)
        low.fill(size, value)  # type: ignore[arg-type]
        low.define(node.output, low.cast(size, tensor.dtype).expand(tensor.shape))
        return
    number = filled_literal(value, tensor, f"{node.op}{at(node.source)}")
    bits = np.array([element_bits(number, tensor.dtype)], np.int64).view(np.uint8)
    flat = low.constant(bits[: dtype_size(tensor.dtype)], "uint8")
    low.define(node.output, View(flat.buffer, 0, tensor.dtype, (), ()).expand(tensor.shape))


def _filled(name: str | float) -> Callable[[Node, Lowering], None]:
    """full and its kin: the value is an attribute, or fixed."""

    def lower(node: Node, low: Lowering) -> None:
        value = node.attrs[name] if isinstance(name, str) else name
        assert isinstance(value, (int, float))
        _uniform(node, low, value)

    return lower


def _tabulated(node: Node, low: Lowering, array: np.ndarray) -> None:
    """Stores an array computed at compile time, in the node's dtype.

    For symbolic sizes it is that of the greatest ones: its low corner must be right for all.
    """
    tensor = node.type
    stored = np.frombuffer(encode(array, tensor.dtype), f"u{dtype_size(tensor.dtype)}")
    view = low.constant(stored.reshape(array.shape), tensor.dtype)
    low.define(node.output, replace(view, shape=tensor.shape))


def _check_table(node: Node, elements: int) -> None:
    """Refuses to compute more elements at compile time than a program should hold."""
    if elements > _MAX_TABLE:
        raise GraphError(
            f"node {node.name!r} ({node.op}){at(node.source)}: its {elements:,} elements would be "
            f"computed when compiling and stand in the program; at most {_MAX_TABLE:,} may.",
            hint="Give the tensor to the model as an input or a weight.",
        )


def arange(node: Node) -> np.ndarray:
    """Returns what an `aten.arange` counts, for its greatest size, not yet in its dtype."""
    start, step = node.attrs.get("start", 0), node.attrs.get("step", 1)
    assert isinstance(start, (int, float)) and isinstance(step, (int, float))
    if not is_float(node.type.dtype):  # PyTorch cuts both off before it counts
        start, step = int(start), int(step)
    return start + step * np.arange(upper(node.type.shape[0]))


def _arange(node: Node, low: Lowering) -> None:
    _check_table(node, upper(node.type.shape[0]))
    _tabulated(node, low, arange(node))


def _linspace(node: Node, low: Lowering) -> None:
    start, end = node.attrs["start"], node.attrs["end"]
    assert isinstance(start, (int, float)) and isinstance(end, (int, float))
    _check_table(node, node.type.shape[0])
    steps, dtype = node.type.shape[0], node.type.dtype
    if is_float(dtype):
        return _tabulated(node, low, np.linspace(start, end, steps))
    # PyTorch converts both ends first, and counts the later half from the end.
    first, last = (checked_literal(v, dtype, f"{node.op}{at(node.source)}") for v in (start, end))
    index = np.arange(steps)
    step = (float(last) - float(first)) / max(steps - 1, 1)
    rising, falling = first + step * index, last - step * (steps - 1 - index)
    return _tabulated(node, low, np.where(index < steps // 2, rising, falling))


def _eye(node: Node, low: Lowering) -> None:
    rows, columns = node.type.shape
    _check_table(node, upper(rows) * upper(columns))
    _tabulated(node, low, np.eye(upper(rows), upper(columns)))


def _triangle_indices(lower: bool) -> Callable[[Node, Lowering], None]:
    """tril_indices, triu_indices: rows and columns of a triangle, [2, count]."""

    def lower_indices(node: Node, low: Lowering) -> None:
        row, col, offset = (node.attrs[k] for k in ("row", "col", "offset"))
        assert isinstance(row, int) and isinstance(col, int) and isinstance(offset, int)
        _check_table(node, row * col)
        offset = max(-row, min(offset, col))
        chosen = np.tri(row, col, offset if lower else offset - 1, dtype=bool)
        _tabulated(node, low, np.stack(np.nonzero(chosen if lower else ~chosen)))

    return lower_indices


def _fill_tensor(node: Node, low: Lowering) -> None:
    """fill.Tensor: one element, in the other's dtype, shown as the whole tensor."""
    value = low.inputs(node)[1]
    assert value is not None
    low.define(node.output, low.cast(value, node.type.dtype).expand(node.type.shape))


def _triangle(keep_lower: bool) -> Callable[[Node, Lowering], None]:
    """tril, triu: a where against a tabulated mask of the last two dimensions."""

    def lower(node: Node, low: Lowering) -> None:
        from npusim.abi.scalar import ScalarBuilder, compute_class
        from npusim.lowering.pointwise_kernel import emit_program

        x = low.inputs(node)[0]
        assert x is not None
        diagonal = node.attrs.get("diagonal", 0)
        assert isinstance(diagonal, int)
        rows, columns = map(upper, x.shape[-2:])
        _check_table(node, rows * columns)
        diagonal = max(-rows, min(diagonal, columns))
        ones = np.ones(tuple(map(upper, x.shape[-2:])), np.uint8)
        mask = np.tril(ones, diagonal) if keep_lower else np.triu(ones, diagonal)
        cls = compute_class(x.dtype)
        builder = ScalarBuilder(("i", cls))
        builder.op("where", cls, 0, 1, builder.to(("const", 0), cls))
        y = low.result(node.output, strided=True)
        corner = replace(low.constant(mask, "bool"), shape=x.shape[-2:])
        emit_program(low, builder.build(x.dtype), [corner, x], y)

    return lower


_DTYPES = ("float32", "bfloat16", "int64")


def _op(name: str, lower: Callable[[Node, Lowering], None], *cases: Case) -> None:
    register(OpDef(f"aten.{name}", lower=lower, cases=cases, dtypes=_DTYPES))


_op("full.default", _filled("fill_value"), Case((), {"size": (2, 3), "fill_value": 3}))
_op("full_like.default", _filled("fill_value"), Case(((2, 3),), {"fill_value": 3}))
_op("scalar_tensor.default", _filled("s"), Case((), {"s": 3}))
for _kind, _value in (("zeros", 0.0), ("ones", 1.0), ("empty", 0.0)):
    _op(
        f"{_kind}.{'memory_format' if _kind == 'empty' else 'default'}",
        _filled(_value),
        *([Case((), {"size": (2, 3)})] if _kind != "empty" else []),
    )
    _op(f"{_kind}_like.default", _filled(_value), *([Case(((2, 3),))] if _kind != "empty" else []))
_op("fill.Scalar", _filled("value"), Case(((2, 3),), {"value": 3}))
_op("fill.Tensor", _fill_tensor, Case(((2, 3), ())))
for _name in ("empty_strided", "new_empty_strided", "empty_permuted"):
    _op(f"{_name}.default", _filled(0.0))
for _kind in ("tril", "triu"):
    _cases = (Case((), {"row": 4, "col": 3, "offset": o}) for o in (-1, 0, 1))
    register(
        OpDef(
            f"aten.{_kind}_indices.default",
            lower=_triangle_indices(_kind == "tril"),
            cases=tuple(_cases),
            dtypes=("int64", "int32"),
        )
    )
_op("arange.start_step", _arange, Case((), {"start": 1, "end": 9, "step": 2}),
    Case((), {"start": 2.1, "end": -2.9, "step": -1.0}, "fractions"))  # fmt: skip
_op("arange.start", _arange, Case((), {"start": 2, "end": 7}))
_op("arange.default", _arange, Case((), {"end": 7}))
_op("linspace.default", _linspace, Case((), {"start": -1, "end": 2, "steps": 7}))
_op("eye.default", _eye, Case((), {"n": 4}))
_op("eye.m", _eye, Case((), {"n": 4, "m": 3}))
_X = (Case(((3, 4, 5),), {"diagonal": 1}), Case(((4, 3),), {"diagonal": -1}))
_op("tril.default", _triangle(True), *_X)
_op("triu.default", _triangle(False), *_X)
