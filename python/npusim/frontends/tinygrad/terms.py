"""Terms: tinygrad's tensor graph as the rest of this package reads it, the same for each release.

A term is one tensor: a leaf, a number, movement, arithmetic, a reduction or a write. Broadcasting
is NumPy's. A reduction drops the axes it sums over. Owns the terms and how they are made; equal
ones are one object.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MOVEMENT = ("reshape", "expand", "permute", "pad", "shrink", "flip")
# Arithmetic on dtypes numbers have before they meet a tensor.
WEAK = {"weakint": "int32", "weakfloat": "float32"}
_FLOATS = ("float16", "bfloat16", "float32", "float64", "weakfloat")
# NumPy has none of these: rounded when they are stored.
_NUMPY = dict.fromkeys(("bfloat16", "float8_e4m3fn", "float8_e5m2"), "float32")


@dataclass(frozen=True, eq=False)
class Term:
    """One tensor.

    Attributes:
        op: "leaf", "const", one of `MOVEMENT`, "cast", "bitcast", "stack" (along a new first
            dimension), "reduce", "write", or the name of a scalar operation.
        dtype: npusim's name, or one of `WEAK`.
        arg: leaf: the `Leaf`; const: the number; reshape, expand: the shape; permute: the order;
            pad: (before, after) a dimension, filled with zeros; shrink: (start, end) a dimension;
            flip: the dimensions; reduce: (operation, axes); write: where the second source begins
            in the first, by dimension.
        index: terms are numbered as they are made, sources before what reads them.
        known: whether it depends on numbers alone.
        static: whether it depends on numbers and weights alone.
        trace: the name of tinygrad's method that made it: for messages, no proof of anything.
    """

    op: str
    dtype: str
    shape: tuple[int, ...]
    sources: tuple[Term, ...]
    arg: Any
    index: int
    known: bool
    static: bool
    trace: str = ""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __repr__(self) -> str:
        return f"<{self.op} {self.dtype}{list(self.shape)} #{self.index}>"


@dataclass(eq=False)
class Leaf:
    """Where data comes in.

    Attributes:
        kind: "input", "weight", "state", "constant", or "undefined" for memory that must be
            written before it is read.
        name: the input's name, the weight's or the state's key.
        data: the elements of a constant.
        aliases: further keys of a weight.
    """

    kind: str
    name: str
    data: Any = None
    aliases: tuple[str, ...] = ()


class Terms:
    """Makes terms."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], Term] = {}
        self.trace = ""

    def make(
        self, op: str, dtype: str, shape: Sequence[int], sources: Sequence[Term] = (), arg: Any = ()
    ) -> Term:
        """Returns the term with these attributes."""
        shape = tuple(shape)
        key = (op, dtype, shape, tuple(s.index for s in sources), *_key(arg))
        if key not in self._made:
            known = op not in ("leaf", "write") and all(s.known for s in sources)
            static = all(s.static for s in sources)
            if op == "leaf":
                known, static = arg.kind == "constant", arg.kind in ("weight", "constant")
            number = len(self._made)
            self._made[key] = Term(
                op, dtype, shape, tuple(sources), arg, number, known, static, self.trace
            )
        return self._made[key]

    def number(self, value: Any, dtype: str) -> Term:
        """Returns a number as a scalar of a dtype."""
        return self.make("const", dtype, (), (), _rounded(value, dtype))

    def reshape(self, x: Term, shape: Sequence[int]) -> Term:
        """Returns the elements in another shape."""
        if x.shape == tuple(shape):
            return x
        if x.op == "reshape":
            return self.reshape(x.sources[0], shape)
        return self.make("reshape", x.dtype, shape, (x,), tuple(shape))

    def expand(self, x: Term, shape: Sequence[int]) -> Term:
        """Returns the term broadcast to a shape."""
        if x.shape == tuple(shape):
            return x
        return self.make("expand", x.dtype, shape, (x,), tuple(shape))

    def permute(self, x: Term, order: Sequence[int]) -> Term:
        """Returns the term with its dimensions in another order."""
        order = tuple(order)
        if order == tuple(range(len(order))):
            return x
        if x.op == "permute":
            return self.permute(x.sources[0], tuple(x.arg[d] for d in order))
        if x.op == "expand":
            moved = self._expanded_in_place(x, order)
            if moved is not None:
                return moved
        return self.make("permute", x.dtype, [x.shape[d] for d in order], (x,), order)

    def _expanded_in_place(self, x: Term, order: tuple[int, ...]) -> Term | None:
        """Moves dimensions that an expansion put in front to where a permutation wants them."""
        source = x.sources[0]
        new = len(x.shape) - len(source.shape)
        old = [d for d in order if d >= new]
        if not new or old != sorted(old):
            return None
        shape = [x.shape[d] for d in order]
        unit = [1 if d < new else source.shape[d - new] for d in order]
        return self.expand(self.reshape(source, unit), shape)

    def pad(self, x: Term, widths: Sequence[tuple[int, int]]) -> Term:
        """Returns the term with zeros around it."""
        if not any(map(any, widths)):
            return x
        shape = [n + a + b for n, (a, b) in zip(x.shape, widths, strict=True)]
        return self.make("pad", x.dtype, shape, (x,), tuple(widths))

    def shrink(self, x: Term, bounds: Sequence[tuple[int, int]]) -> Term:
        """Returns a box of the term."""
        if all(b == (0, n) for b, n in zip(bounds, x.shape, strict=True)):
            return x
        return self.make("shrink", x.dtype, [b - a for a, b in bounds], (x,), tuple(bounds))

    def flip(self, x: Term, dims: Sequence[int]) -> Term:
        """Returns the term backwards along dimensions."""
        return self.make("flip", x.dtype, x.shape, (x,), tuple(dims)) if dims else x

    def reduce(self, x: Term, operation: str, axes: Sequence[int]) -> Term:
        """Returns the sum, product or maximum over axes, without them."""
        if x.op == "permute":  # over those it was before: which come first is no matter
            source = x.sources[0]
            summed = {x.arg[a] for a in axes}
            result = self.reduce(source, operation, sorted(summed))
            kept = [d for d in x.arg if d not in summed]
            return self.permute(result, [sorted(kept).index(d) for d in kept])
        kept = [n for d, n in enumerate(x.shape) if d not in axes]
        if x.op == "expand":  # not along what is repeated
            source = x.sources[0]
            new = len(x.shape) - len(source.shape)
            if all(a >= new and source.shape[a - new] == x.shape[a] for a in axes):
                inner = self.reduce(source, operation, [a - new for a in axes])
                return self.expand(inner, kept)
        return self.make("reduce", x.dtype, kept, (x,), (operation, tuple(axes)))

    def stack(self, parts: Sequence[Term]) -> Term:
        """Returns terms of one shape along a new first dimension."""
        shape = (len(parts), *parts[0].shape)
        return self.make("stack", parts[0].dtype, shape, parts)

    def cast(self, x: Term, dtype: str) -> Term:
        """Returns the elements in another dtype."""
        if x.dtype == dtype:
            return x
        if x.op == "const":
            return self.number(x.arg, dtype)
        if x.dtype in WEAK:  # numbers, combined: in the dtype from the start
            usual = WEAK[x.dtype]
            wanted = dtype if (dtype in _FLOATS) == (usual in _FLOATS) else usual
            sources = [self.cast(s, wanted) if s.dtype in WEAK else s for s in x.sources]
            return self.cast(self.make(x.op, wanted, x.shape, sources, x.arg), dtype)
        if x.op == "expand":
            return self.expand(self.cast(x.sources[0], dtype), x.shape)
        return self.make("cast", dtype, x.shape, (x,))

    def strong(self, sources: Sequence[Term]) -> list[Term]:
        """Returns operands of one operation in one dtype: numbers take that of the tensors."""
        dtypes = [s.dtype for s in sources if s.dtype not in WEAK]
        if dtypes:
            wanted = dtypes[0]
        else:
            weak = "weakfloat" if any(s.dtype == "weakfloat" for s in sources) else "weakint"
            return [self.cast(s, weak) for s in sources]
        return [self.cast(s, wanted) if s.dtype in WEAK else s for s in sources]

    def write(self, base: Term, value: Term, starts: Sequence[int]) -> Term:
        """Returns the base with a box of it replaced."""
        if value.shape == base.shape:
            return value
        return self.make("write", base.dtype, base.shape, (base, value), tuple(starts))


def narrow(term: Term) -> Term:
    """Returns what a term is broadcast from, without dimensions of size 1 in front.

    A reduction keeps the dimensions it is given back: so softmax and norms are recognised.
    """
    while True:
        source = term.sources[0] if term.sources else term
        if term.op == "reshape" and source.op == "reduce":
            return term
        ones = (1,) * (len(term.shape) - len(source.shape))
        if term.op != "expand" and (term.op != "reshape" or term.shape != (*ones, *source.shape)):
            return term
        term = source


def _key(arg: Any) -> tuple[Any, ...]:
    """Distinguishes numbers that compare equal: True, 1 and 1.0, and the two zeros."""
    if isinstance(arg, float):
        return ("float", repr(arg))
    return (type(arg).__name__, id(arg) if isinstance(arg, Leaf) else arg)


def _rounded(value: Any, dtype: str) -> bool | int | float:
    """Returns a number as a dtype holds it, as a Python number."""
    name = WEAK.get(dtype, dtype)
    if dtype == "weakfloat":
        return float(value)
    if name == "bfloat16" or dtype == "weakint":
        return float(value) if name == "bfloat16" else int(value)
    if name in ("float32", "float64"):
        return float(value)  # kernels round what is written down
    with np.errstate(over="ignore", invalid="ignore"):
        number: bool | int | float = np.asarray(value).astype(numpy_dtype(name)).item()
    return number


def numpy_dtype(dtype: str) -> Any:
    """Returns the NumPy dtype that elements of a dtype are computed in."""
    name = WEAK.get(dtype, dtype)
    return np.dtype(_NUMPY.get(name, name))
