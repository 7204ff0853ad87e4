"""Sizes that calls choose, as ONNX has them: named dimensions, and numbers computed from the shapes
of the inputs while the model runs.

Every expression over symbols is exact int64 arithmetic, as in `ir/symbolic.py`. A translation that
needs such a size as a number while exporting raises SymbolicSizeError, and its node is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from npusim.ir.graph import Graph
from npusim.ir.symbolic import computed, is_symbolic
from npusim.ir.verify import symbol_of_dimension

if TYPE_CHECKING:
    from npusim.exporters.onnx.builder import Builder, Tensor


def dimensions(shape: Iterable[int]) -> list[int | str]:
    """Returns a shape as ONNX declares it: an expression is a dimension's name."""
    return [str(size) if is_symbolic(size) else size for size in shape]


@dataclass(frozen=True)
class Told:
    """Where a symbol's value is read: a dimension of an input is `factor` times it, plus `rest`."""

    input: str
    axis: int
    factor: int
    rest: int


def told_by_inputs(graph: Graph, names: Mapping[str, str]) -> dict[str, Told]:
    """Returns where each symbol is read; `names` are those of the inputs in the model."""
    found: dict[str, Told] = {}
    for value in graph.inputs:
        for axis, size in enumerate(value.type.shape):
            read = symbol_of_dimension(size)
            if read is not None:
                symbol, factor, rest = read
                found.setdefault(symbol.name, Told(names[value.name], axis, factor, rest))
    return found


class Sizes:
    """Computes sizes as vectors of one int64, each expression once."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.told: dict[str, Told] = {}
        self._made: dict[Any, Tensor] = {}

    def one(self, size: int) -> Tensor:
        """Returns a size, as a constant where it is one."""
        if not is_symbolic(size):
            return self.builder.constant(torch.tensor([size]))
        if size not in self._made:
            symbols = _Symbols(self)
            self._made[size] = computed(size, symbols, _OPERATIONS).tensor
        return self._made[size]

    def vector(self, sizes: Sequence[int]) -> Tensor:
        """Returns sizes one behind the other."""
        key = tuple(sizes)
        if key not in self._made:
            parts = [self.one(size) for size in key]
            made = self.builder.add("Concat", parts, [("int64", (len(key),))], "sizes", {"axis": 0})
            self._made[key] = made[0]
        return self._made[key]

    def forget(self, name: str) -> None:
        """Drops what has a name that is about to change."""
        self._made = {key: tensor for key, tensor in self._made.items() if tensor.name != name}

    def symbol(self, name: str) -> Tensor:
        """Returns the value of a symbol, from the shape of an input."""
        told, builder = self.told[name], self.builder
        attrs = {"start": told.axis, "end": told.axis + 1}
        (read,) = builder.operate("Shape", [told.input], [("int64", (1,))], name, attrs)
        size = _Size(self, read) + -told.rest
        return (size // told.factor).tensor if told.factor != 1 else size.tensor


class _Symbols(Mapping[str, "_Size"]):
    """The symbols by name, each read when it is first asked for."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes

    def __getitem__(self, name: str) -> _Size:
        made = self.sizes._made
        if name not in made:
            made[name] = self.sizes.symbol(name)
        return _Size(self.sizes, made[name])

    def __iter__(self) -> Any:
        return iter(self.sizes.told)

    def __len__(self) -> int:
        return len(self.sizes.told)


@dataclass(frozen=True)
class _Size:
    """A size in the model: what is done to it becomes nodes."""

    sizes: Sizes
    tensor: Tensor

    def node(self, op: str, other: _Size | int, *, swapped: bool = False) -> _Size:
        """Returns the result of an operator with another size."""
        right = other.tensor if isinstance(other, _Size) else self.sizes.one(other)
        operands = [right, self.tensor] if swapped else [self.tensor, right]
        (made,) = self.sizes.builder.add(op, operands, [("int64", (1,))], "size", {})
        return _Size(self.sizes, made)

    def __add__(self, other: _Size | int) -> _Size:
        return self if isinstance(other, int) and other == 0 else self.node("Add", other)

    def __mul__(self, other: _Size | int) -> _Size:
        return self if isinstance(other, int) and other == 1 else self.node("Mul", other)

    def __floordiv__(self, other: _Size | int) -> _Size:
        # ONNX's division rounds to zero; of a multiple of the divisor nothing is rounded.
        return self.node("Sub", self.node("Mod", other)).node("Div", other)

    __radd__, __rmul__ = __add__, __mul__


def _either(op: str) -> Callable[[Any, Any], _Size]:
    def apply(a: _Size | int, b: _Size | int) -> _Size:
        if isinstance(a, _Size):
            return a.node(op, b)
        assert isinstance(b, _Size)
        return _Size(b.sizes, b.sizes.one(a)).node(op, b)

    return apply


def _quotient(a: _Size | int, b: _Size | int) -> _Size:
    if not isinstance(a, _Size):
        assert isinstance(b, _Size)
        a = _Size(b.sizes, b.sizes.one(a))
    return a // b


_OPERATIONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "*": lambda a, b: a * b,
    "//": _quotient,
    "%": _either("Mod"),  # the sign is the divisor's, as in Python
    "max": _either("Max"),
    "min": _either("Min"),
}
