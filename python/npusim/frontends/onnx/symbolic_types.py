"""Types of results where shapes hold symbolic sizes: PyTorch's operators on tensors without data.

Shapes become PyTorch's own symbolic integers and come back as npusim's. PyTorch decides by example
sizes which way an operator goes; what it asked is checked against the bounds of the symbols, so
that a type holds for all sizes or is refused. Operators that are told their result's shape need
no run.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from npusim.errors import Error, ShapeError, SymbolicSizeError, first_line
from npusim.frontends.dynamic_shapes import always, size_of
from npusim.ir.graph import Attr
from npusim.ir.symbolic import Symbol, bounds, computed, dim_of, is_symbolic, maximum, minimum
from npusim.ir.types import TensorType
from npusim.ops import schema
from npusim.ops.check_types import inferred
from npusim.ops.reference import execute, infer_types

_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
}
_SHAPED = {
    "aten.view.default": "size",
    "aten.expand.default": "size",
    "aten.full.default": "size",
}
_CONVOLUTIONS = (
    *("aten.conv1d.default", "aten.conv2d.default", "aten.conv3d.default"),
    *("aten.conv_transpose1d.default", "aten.conv_transpose2d.input"),
    *("aten.conv_transpose3d.input", "aten.convolution.default"),
)
_EXAMPLES = (0.73, 0.41)  # where in a symbol's range the sizes lie that PyTorch decides by


class SymbolicTypes:
    """Infers types over the symbols of one model.

    Args:
        symbols: all that shapes may hold.
    """

    def __init__(self, symbols: Iterable[Symbol]) -> None:
        self._symbols = sorted(symbols, key=lambda s: s.name)
        self._worlds = {part: _World(self._symbols, part) for part in _EXAMPLES}

    def infer(
        self, op: str, inputs: Sequence[TensorType | None], attrs: Mapping[str, Attr]
    ) -> tuple[TensorType, ...]:
        """Returns the types of an op's results.

        Raises:
            SymbolicSizeError: they depend on more than expressions of the symbols say.
            Error: the op refuses the operands.
        """
        told = _told(op, inputs, attrs)
        if told is not None:
            return (told,)
        if op.startswith("npu."):  # no operator of PyTorch's: what it gives is said of any sizes
            return infer_types(op, inputs, attrs)
        *others, last = _EXAMPLES
        for part in others:
            try:
                return self._inferred(part, op, inputs, attrs)
            except Error:  # an example may happen to be a number that the model has as well
                continue
        return self._inferred(last, op, inputs, attrs)

    def _inferred(
        self,
        part: float,
        op: str,
        inputs: Sequence[TensorType | None],
        attrs: Mapping[str, Attr],
    ) -> tuple[TensorType, ...]:
        try:
            return self._worlds[part].infer(op, inputs, attrs)
        except Error:  # PyTorch goes on as if what it decided were so
            self._worlds[part] = _World(self._symbols, part)
            raise


def _told(
    op: str, inputs: Sequence[TensorType | None], attrs: Mapping[str, Attr]
) -> TensorType | None:
    """Returns the type of a result whose shape the attributes say; None for other operators."""
    if op in _SHAPED:
        shape: Any = attrs[_SHAPED[op]]
        x = inputs[0] if inputs else None
        if op == "aten.expand.default" and x is not None:
            own = (*(1,) * (len(shape) - x.rank), *x.shape)
            shape = tuple(o if s == -1 else s for s, o in zip(shape, own, strict=True))
        dtype = attrs.get("dtype") if x is None else x.dtype
        if op == "aten.view.default" and x is not None and prod(shape) != prod(x.shape):
            raise ShapeError(f"{x} cannot be seen as {list(shape)}.")
        return TensorType(str(dtype), tuple(shape))
    if op in _CONVOLUTIONS:
        return _convolved(op, inputs, attrs)
    if op == "aten.constant_pad_nd.default" and inputs[0] is not None:
        return _padded(inputs[0], attrs["pad"])
    if op == "aten.slice.Tensor" and inputs[0] is not None:
        return _sliced(inputs[0], attrs)
    if "upsample_" in op and inputs[0] is not None:
        size: Any = attrs["output_size"]
        return TensorType(inputs[0].dtype, (*inputs[0].shape[:2], *size))
    if op == "aten.arange.start_step":
        start, end, step = (attrs[name] for name in ("start", "end", "step"))
        if all(isinstance(v, int) for v in (start, end, step)):
            return TensorType(str(attrs["dtype"]), (range_length(start, end, step),))  # type: ignore[arg-type]
    return None


def _convolved(
    op: str, inputs: Sequence[TensorType | None], attrs: Mapping[str, Attr]
) -> TensorType | None:
    """Returns the type of a convolution that fits at all sizes; None where that is not certain.

    PyTorch's own answer depends on sizes: from a batch of 16 on it would take other kernels.
    """
    x, weight = inputs[:2]
    if x is None or weight is None or x.rank < weight.rank - 1:
        return None
    channel = x.rank - weight.rank + 1
    if is_symbolic((x.shape[channel], *weight.shape)):
        return None
    (result,) = inferred(op, inputs, attrs) or (None,)
    if result is None or any(bounds(size)[0] < 1 for size in result.shape[channel + 1 :]):
        return None
    return result


def _padded(x: TensorType, amounts: Any) -> TensorType:
    shape = list(x.shape)
    for place in range(0, len(amounts), 2):
        dim = x.rank - 1 - place // 2
        shape[dim] = shape[dim] + amounts[place] + amounts[place + 1]
    return TensorType(x.dtype, tuple(shape))


def range_length(start: int, end: int, step: int) -> int:
    """Returns how many integers a range holds; its bounds may be symbolic, its step is not 0."""
    if step < 0:
        return range_length(-start, -end, -step)
    return maximum((end - start + step - 1) // step, 0)


def _sliced(x: TensorType, attrs: Mapping[str, Attr]) -> TensorType:
    """Returns the type of a slice from a start to an end that lie within the dimension."""
    dim, start, end, step = (attrs[name] for name in ("dim", "start", "end", "step"))
    assert all(isinstance(v, int) for v in (dim, start, end, step))
    shape = list(x.shape)
    shape[dim] = range_length(start, minimum(end, shape[dim]), step)  # type: ignore[index, arg-type, type-var]
    return TensorType(x.dtype, tuple(shape))


class _World:
    """PyTorch's symbolic integers for the symbols, with examples at a part of their ranges."""

    def __init__(self, symbols: Sequence[Symbol], part: float) -> None:
        self.environment = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self.environment)
        self._numbers: dict[str, Any] = {}
        self._symbols: dict[sympy.Symbol, int] = {}
        taken: set[int] = set()
        for symbol in symbols:
            example = max(2, symbol.low + int(part * (symbol.high - symbol.low)))
            while example in taken:
                example += 1
            taken.add(example)
            source = ConstantSource(symbol.name)
            variable = self.environment.create_symbol(example, source, DimDynamic.DYNAMIC)
            number = self.environment.create_symintnode(variable, hint=example, source=source)
            self._numbers[symbol.name] = number
            self._symbols[variable] = dim_of(symbol)

    def infer(
        self, op: str, inputs: Sequence[TensorType | None], attrs: Mapping[str, Attr]
    ) -> tuple[TensorType, ...]:
        """Returns the types of an op's results."""
        given = {name: self.numbers(value) for name, value in attrs.items()}
        try:
            with self.checked(op), torch.no_grad():
                tensors = [None if t is None else self.empty(t) for t in inputs]
                with self.mode:
                    results = execute(op, tensors, given, torch.device("cpu"))
        except Error:
            raise
        except Exception as error:  # whatever an operator raises on operands it cannot take
            shapes = ", ".join(map(str, inputs))
            raise Error(f"{op} refuses {shapes}: {first_line(error)}") from None
        return tuple(map(self.type_of, results))

    def empty(self, type: TensorType) -> torch.Tensor:
        """Returns a tensor without data of a type."""
        with self.mode:
            return torch.empty(self.numbers(type.shape), dtype=getattr(torch, type.dtype))

    def numbers(self, value: Any) -> Any:
        """Returns a value with PyTorch's symbolic integers for npusim's."""
        if isinstance(value, (tuple, list)):
            return type(value)(self.numbers(item) for item in value)
        return computed(value, self._numbers, _OPERATIONS) if is_symbolic(value) else value

    def size(self, value: Any) -> int:
        """Returns one of PyTorch's integers as a size."""
        if isinstance(value, torch.SymInt):
            return size_of(sympy.sympify(value.node.expr), self._symbols)
        return int(value)

    def type_of(self, tensor: torch.Tensor) -> TensorType:
        """Returns the type of a tensor without data."""
        return TensorType(schema.dtype_name(tensor.dtype), tuple(map(self.size, tensor.shape)))

    @contextmanager
    def checked(self, op: str) -> Iterator[None]:
        """Refuses what PyTorch decided inside by the examples and the bounds do not decide."""
        before = len(self.environment.guards)
        yield
        for guard in self.environment.guards[before:]:
            if not always(sympy.sympify(guard.expr), self._symbols):
                raise SymbolicSizeError(f"{op} goes one way only where {guard.expr}.")
