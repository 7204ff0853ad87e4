"""Reads a graph of UOps into terms. What differs between releases stands in `releases.py`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from npusim.errors import ExportError
from npusim.frontends import MAX_CONSTANT_BYTES
from npusim.frontends.tinygrad.known import scalar
from npusim.frontends.tinygrad.releases import SAME, Release
from npusim.frontends.tinygrad.terms import MOVEMENT, WEAK, Leaf, Term, Terms, numpy_dtype

DTYPES = {
    "bool": "bool", "signed char": "int8", "char": "int8", "short": "int16", "int": "int32",
    "long": "int64", "unsigned char": "uint8", "unsigned short": "uint16",
    "unsigned int": "uint32", "unsigned long": "uint64", "half": "float16",
    "__bf16": "bfloat16", "float": "float32", "double": "float64",
    "float8_e4m3": "float8_e4m3fn", "float8_e5m2": "float8_e5m2",
    "weakint": "weakint", "weakfloat": "weakfloat",
}  # fmt: skip
_COMPARISONS = ("cmplt", "cmpne", "cmpeq")
_MOVED = tuple(op.upper() for op in MOVEMENT)


def dtype_name(dtype: Any) -> str:
    """Returns npusim's name of a dtype of tinygrad.

    Raises:
        ExportError: npusim has no such dtype.
    """
    name = DTYPES.get(dtype.name)
    if name is None:
        raise ExportError(f"dtype {dtype.name} is not supported.")
    return name


def stored_dtype(tensor: Any) -> Any:
    """Returns the dtype a tensor is stored in: numbers without one of their own have a default."""
    from tinygrad import dtypes

    usual = WEAK.get(dtype_name(tensor.dtype))
    return getattr(dtypes, usual) if usual else tensor.dtype


class Reader:
    """Reads UOps.

    Args:
        leaves: the UOps that inputs, weights and states are.
        data: returns the elements of a buffer that is none of these, or None when it has none.
    """

    def __init__(
        self,
        release: Release,
        leaves: Mapping[Any, tuple[Leaf, str, tuple[int, ...]]],
        data: Callable[[Any], Any],
    ) -> None:
        self.release, self.data = release, data
        self.terms = Terms()
        self.leaves: dict[Any, Term] = {}
        for uop, (leaf, dtype, shape) in leaves.items():
            term = self.terms.make("leaf", dtype, shape, (), leaf)
            self.leaves[uop] = term
            while uop.op.name == "RESHAPE":  # the buffer itself, for who looks after its shape
                uop = uop.src[0]
                flat = tuple(int(d) for d in uop.shape)
                self.leaves.setdefault(uop, self.terms.reshape(term, flat))
        self.read_terms: dict[Any, Term] = dict(self.leaves)
        self.contents: dict[Any, Term] = {}

    def read(self, uop: Any) -> Term:
        """Returns the term of a UOp.

        Raises:
            ExportError: it, or what it depends on, has no meaning here.
        """
        pending = [uop]
        while pending:
            top = pending[-1]
            if top in self.read_terms:
                pending.pop()
                continue
            missing = [s for s in self._sources(top) if s not in self.read_terms]
            if missing:
                pending.extend(missing)
                continue
            pending.pop()
            self.terms.trace = top.metadata[0].name if top.metadata else ""
            self.read_terms[top] = self._translate(top)
        return self.read_terms[uop]

    def _sources(self, uop: Any) -> Sequence[Any]:
        op = uop.op.name
        self.release.refuse(uop)
        if op in ("CONST", "BUFFER"):
            return ()
        if op in (*_MOVED, "COPY", "REDUCE", "CAST"):
            return uop.src[:1]
        if op == "AFTER":
            return tuple(self._chain(uop)[1:])
        return tuple(uop.src)

    def _translate(self, uop: Any) -> Term:
        op, terms = uop.op.name, self.terms
        if op == "AFTER":
            root, *_ = self._chain(uop)
            return self._replayed(self._content(uop), self._moves(uop, root))
        if op == "BUFFER":
            return self._constant(uop)
        dtype = dtype_name(uop.dtype)
        if op == "CONST":
            return terms.number(uop.arg, dtype)
        sources = [self.read_terms[s] for s in self._sources(uop)]
        if op in SAME:
            return sources[0]
        if op in _MOVED:
            return self._moved(uop, sources[0])
        if op == "CAST":
            return terms.cast(sources[0], dtype)
        if op == "STACK":
            return terms.stack(terms.strong(sources))
        if op == "BITCAST":
            return terms.make("bitcast", dtype, [int(d) for d in uop.shape], sources)
        if op == "REDUCE":
            return self._reduced(uop, sources[0])
        return self._scalar(op.lower(), dtype, sources)

    def _scalar(self, op: str, dtype: str, sources: list[Term]) -> Term:
        if op in _COMPARISONS:
            sources = self.terms.strong(sources)
        else:  # numbers take the dtype of the result
            values = sources[1:] if op == "where" else sources
            values = [self.terms.cast(s, dtype) if s.dtype in WEAK else s for s in values]
            sources = [*sources[: len(sources) - len(values)], *values]
        if all(s.op == "const" for s in sources):
            operands = [np.asarray(s.arg).astype(_exact(s.dtype)) for s in sources]
            value = scalar(op, _exact(dtype), operands)
            return self.terms.number(value.item(), dtype)
        whole = np.broadcast_shapes(*(s.shape for s in sources))
        # Computed first and broadcast then: releases differ in when they broadcast.
        sources = [s.sources[0] if s.op == "expand" else s for s in sources]
        shape = np.broadcast_shapes(*(s.shape for s in sources))
        result = self.terms.make(op, dtype, shape, sources)
        return self.terms.expand(result, whole)

    def _moved(self, uop: Any, x: Term) -> Term:
        op, terms = uop.op.name, self.terms
        shape = tuple(int(d) for d in uop.shape)
        if op == "RESHAPE":
            return terms.reshape(x, shape)
        if op == "EXPAND":
            return terms.expand(x, shape)
        if op == "PERMUTE":
            return terms.permute(x, uop.marg)
        if op == "FLIP":
            return terms.flip(x, [d for d, flipped in enumerate(uop.marg) if flipped])
        starts = [int(pair[0]) for pair in uop.marg]
        if op == "PAD":
            sizes = zip(starts, shape, x.shape, strict=True)
            return terms.pad(x, [(a, n - a - m) for a, n, m in sizes])
        return terms.shrink(x, [(a, a + n) for a, n in zip(starts, shape, strict=True)])

    def _reduced(self, uop: Any, x: Term) -> Term:
        operation, axes = self.release.reduction(uop)
        if x.dtype in WEAK:
            x = self.terms.cast(x, WEAK[x.dtype])
        result = self.terms.reduce(x, operation, axes)
        return self.terms.reshape(result, [int(d) for d in uop.shape])

    def _constant(self, uop: Any) -> Term:
        """Returns a buffer that nobody named: a table the model made."""
        shape = (math.prod(int(d) for d in uop.shape),)
        dtype = dtype_name(uop.dtype)
        if math.prod(shape) * numpy_dtype(dtype).itemsize > MAX_CONSTANT_BYTES:
            raise ExportError(
                f"A tensor of {shape[0]} elements is neither an input nor a weight, and too large "
                "for a constant.",
                hint="Name it: weights={'table': tensor}.",
            )
        data = self.data(uop)
        kind = "undefined" if data is None else "constant"
        return self.terms.make("leaf", dtype, shape, (), Leaf(kind, kind, data))

    # ---- writes: AFTER(x, STORE(part of x, value)) ----

    def _chain(self, uop: Any) -> list[Any]:
        """Returns what a view is one of, then what must be read to know its elements."""
        while uop not in self.leaves and uop.op.name in (*_MOVED, "AFTER"):
            if uop.op.name == "AFTER":
                inner = [s for d in uop.src[1:] for s in self._effects(d)]
                root, *rest = self._chain(uop.src[0])
                return [root, *rest, *inner]
            uop = uop.src[0]
        return [uop, uop]

    def _effects(self, uop: Any) -> list[Any]:
        """Returns what must be read to know what a dependence writes."""
        if uop.op.name == "STORE":
            return [*self._chain(uop.src[0])[1:], uop.src[1]]
        if uop.op.name == "AFTER":
            return self._chain(uop)[1:]
        raise ExportError(f"{uop.op.name} as a dependence of a write has no meaning here.")

    def _moves(self, uop: Any, root: Any) -> list[Any]:
        """Returns the movements that make a view of its root, outermost last."""
        moves: list[Any] = []
        while uop is not root:
            if uop.op.name != "AFTER":
                moves.append(uop)
            uop = uop.src[0]
        return moves[::-1]

    def _replayed(self, x: Term, moves: Sequence[Any]) -> Term:
        for move in moves:
            x = self._moved(move, x)
        return x

    def _content(self, uop: Any) -> Term:
        """Returns the whole tensor that a view is of, once the writes it waits for are done."""
        root = self._chain(uop)[0]
        while uop is not root and uop.op.name != "AFTER":
            uop = uop.src[0]
        if uop is root:
            return self.read_terms[root]
        if uop not in self.contents:
            content = self._content(uop.src[0])
            for effect in uop.src[1:]:
                content = self._written(effect, content, root)
            self.contents[uop] = content
        return self.contents[uop]

    def _written(self, effect: Any, content: Term, root: Any) -> Term:
        if effect.op.name == "AFTER":
            if self._chain(effect)[0] is not root:
                raise ExportError("a tensor waits for a write to another one.")
            return self._content(effect)
        target, value = effect.src[0], self.read_terms[effect.src[1]]
        if any(u.op.name == "AFTER" for u in _views(target, root)):
            content = self._content(target)
        stages = [content]
        moves = self._moves(target, root)
        for move in moves:
            stages.append(self._moved(move, stages[-1]))
        value = self.terms.cast(self.terms.expand(value, stages[-1].shape), content.dtype)
        for move, before in zip(moves[::-1], stages[-2::-1], strict=True):
            value = self._put(move, before, value)
        return value

    def _put(self, move: Any, before: Term, value: Term) -> Term:
        """Returns a tensor with what a movement shows of it replaced."""
        op, terms = move.op.name, self.terms
        if op == "RESHAPE":
            return terms.reshape(value, before.shape)
        if op == "PERMUTE":
            return terms.permute(value, np.argsort(move.marg).tolist())
        if op == "FLIP":
            return terms.flip(value, [d for d, flipped in enumerate(move.marg) if flipped])
        if op == "SHRINK":
            return terms.write(before, value, [int(pair[0]) for pair in move.marg])
        raise ExportError(f"a write through {op} has no meaning here.")


def _views(uop: Any, root: Any) -> list[Any]:
    views = []
    while uop is not root:
        views.append(uop)
        uop = uop.src[0]
    return views


def _exact(dtype: str) -> str:
    """Returns the dtype that numbers are combined in."""
    return {"weakfloat": "float64", "weakint": "int64"}.get(dtype, dtype)
