"""Symbolic sizes of a method as a file has them: symbols, and expressions in steps.

Owns the way between sizes (ir/symbolic.py) and the records of docs/npubin.md ("Symbolic sizes"),
and the rules for these records; `cpp/runtime/sizes.cpp` has the same ones.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import cast

from npusim.errors import ProgramFormatError, SymbolicSizeError
from npusim.ir.symbolic import (
    MAX_SIZE,
    OPERATIONS,
    Atom,
    Call,
    Symbol,
    dim_of,
    is_symbolic,
    symbols_of,
)
from npusim.program.container import Section
from npusim.program.program import Command, Method, Patch, PatchKind, TensorSpec

_MAX_NUMBER = 1 << 62  # what an expression may be, at any step
_MAX_WEIGHT = 1000  # steps of an expression that is written out


class Op(enum.IntEnum):
    """What a step computes from two earlier ones; CONST and SYMBOL from none."""

    CONST = 0
    SYMBOL = 1
    ADD = 2
    MUL = 3
    FLOOR_DIV = 4
    MOD = 5
    MAX = 6
    MIN = 7


_CALLS = {Op.FLOOR_DIV: "//", Op.MOD: "%", Op.MAX: "max", Op.MIN: "min", Op.ADD: "+", Op.MUL: "*"}
_OPS = {text: op for op, text in _CALLS.items()}


@dataclass(frozen=True, slots=True)
class Step:
    """One record of EXPRESSIONS: `a` and `b` are indices, of a symbol in the case of SYMBOL."""

    op: int
    a: int = 0
    b: int = 0
    value: int = 0


@dataclass
class SizeTable:
    """The symbols of a method and the steps of its expressions; equal steps are stored once."""

    symbols: list[Symbol] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    _known: dict[Step, int] = field(default_factory=dict)

    @classmethod
    def over(cls, sizes: Iterable[int]) -> SizeTable:
        """Returns a table with the symbols that sizes are made of."""
        return cls(sorted(symbols_of(tuple(sizes)), key=lambda s: s.name))

    def add(self, size: int) -> int:
        """Returns the index of the step that computes a size."""
        if not is_symbolic(size):
            return self._step(Step(Op.CONST, value=size))
        total: int | None = None
        for monomial, coefficient in size.terms:  # type: ignore[attr-defined]
            factors = [self._atom(atom) for atom, power in monomial for _ in range(power)]
            if coefficient != 1 or not factors:
                factors.append(self._step(Step(Op.CONST, value=coefficient)))
            term = factors[0]
            for factor in factors[1:]:
                term = self._step(Step(Op.MUL, term, factor))
            total = term if total is None else self._step(Step(Op.ADD, total, term))
        return cast(int, total)

    def _atom(self, atom: Atom) -> int:
        if isinstance(atom, Symbol):
            return self._step(Step(Op.SYMBOL, self.symbols.index(atom)))
        return self._step(Step(_OPS[atom.op], self.add(atom.a), self.add(atom.b)))

    def _step(self, step: Step) -> int:
        if step not in self._known:
            self._known[step] = len(self.steps)
            self.steps.append(step)
        return self._known[step]


def read_symbol(name: str, low: int, high: int) -> Symbol | str:
    """Returns the symbol of a record, or what is wrong with it."""
    if not (name.isascii() and name.isidentifier()):
        return "a symbol's name is not made of letters, digits and '_'"
    if not 0 <= low < high <= MAX_SIZE:
        return f"symbol bounds {low} … {high}"
    return Symbol(name, low, high)


@dataclass(slots=True)
class _Fact:
    """What is known of a step: bounds, steps when written out, a * symbol + b if it is that."""

    low: int
    high: int
    weight: int = 1
    linear: tuple[int, int, int] | None = None  # symbol (-1: none), a, b


class Expressions:
    """Steps that have passed the rules.

    Attributes:
        sizes: what each step computes.
        wrong: what is wrong with the first step that breaks a rule: it reads one that is not
            before it, may divide by what is not positive, passes 62 bits, or is written out in
            more than 1000 steps. None when all is well.
    """

    def __init__(self, symbols: Sequence[Symbol], steps: Sequence[Step]) -> None:
        self._symbols = symbols
        self._facts: list[_Fact] = []
        self.sizes: list[int] = []
        found = ((index, self._wrong(step)) for index, step in enumerate(steps))
        self.wrong = next((f"step {i}: {why}" for i, why in found if why is not None), None)

    def _wrong(self, step: Step) -> str | None:
        """Appends a step; returns what is wrong with it instead."""
        if step.op not in list(Op):
            return f"operation {step.op} is unknown"
        unused = step.b or step.a if step.op == Op.CONST else step.value
        if step.op == Op.SYMBOL:
            unused = step.b or step.value
        if unused:
            return "a field without meaning is not zero"
        if step.op == Op.SYMBOL and step.a >= len(self._symbols):
            return f"there is no symbol {step.a}"
        if step.op > Op.SYMBOL and max(step.a, step.b) >= len(self._facts):
            return "it reads a step that is not before it"
        fact = self._fact(step)
        if isinstance(fact, str):
            return fact
        if max(abs(fact.low), abs(fact.high)) > _MAX_NUMBER:
            return "it may pass 62 bits"
        if fact.weight > _MAX_WEIGHT:
            return f"it takes more than {_MAX_WEIGHT} steps"
        self._facts.append(fact)
        self.sizes.append(self._size(step))
        return None

    def _fact(self, step: Step) -> _Fact | str:
        if step.op == Op.CONST:
            return _Fact(step.value, step.value, 1, (-1, 0, step.value))
        if step.op == Op.SYMBOL:
            found = self._symbols[step.a]
            return _Fact(found.low, found.high, 1, (step.a, 1, 0))
        a, b = self._facts[step.a], self._facts[step.b]
        if step.op in (Op.FLOOR_DIV, Op.MOD) and b.low < 1:
            return "it may divide by what is not positive"
        low, high = _interval(Op(step.op), a, b)
        return _Fact(low, high, 1 + a.weight + b.weight, _linear(Op(step.op), a.linear, b.linear))

    def _size(self, step: Step) -> int:
        if step.op == Op.CONST:
            return step.value
        if step.op == Op.SYMBOL:
            return dim_of(self._symbols[step.a])
        a, b = self.sizes[step.a], self.sizes[step.b]
        call = _CALLS[Op(step.op)]
        try:
            return OPERATIONS[call](a, b)
        except SymbolicSizeError:  # too long a polynomial: as it is written
            return dim_of(Call(call, a, b))

    def linear(self, index: int) -> tuple[int, int, int] | None:
        """Returns (symbol, a, b) when a step is a * symbol + b with a > 0, else None."""
        found = self._facts[index].linear
        return found if found is not None and found[0] >= 0 and found[1] > 0 else None


class SizesReader:
    """Puts the sizes of one method together from its records.

    Args:
        method: with the greatest sizes throughout.
        dims: (spec, axis, step, reserved) each; specs count the inputs, then the outputs.
        patches: (command, kind, at, step) each.
        refuse: makes the error for a fault in the record of a section taken last.
    """

    def __init__(
        self,
        method: Method,
        symbols: Sequence[Symbol],
        steps: Sequence[Step],
        dims: Iterator[tuple[int, ...]],
        patches: Iterator[tuple[int, ...]],
        refuse: Mapping[Section, Callable[[str], ProgramFormatError]],
    ) -> None:
        self._method = method
        self._symbols = symbols
        self._refuse = refuse
        self._expressions = Expressions(symbols, steps)
        if self._expressions.wrong is not None:
            raise refuse[Section.EXPRESSIONS](self._expressions.wrong)
        self._dims, self._patches = dims, patches
        self._told: set[int] = set()

    def method(self) -> Method:
        """Returns the method with its symbolic sizes."""
        count = len(self._method.inputs)
        specs = self._specs([*self._method.inputs, *self._method.outputs], count)
        commands = self._commands(list(self._method.commands))
        names = [symbol.name for symbol in self._symbols]
        if not names or names != sorted(set(names)):
            raise self._refuse[Section.SHAPES]("its symbols are none, or not sorted by name")
        if self._told != set(range(len(names))):
            raise self._refuse[Section.SHAPES]("no dimension of an input tells one of its symbols")
        inputs, outputs = tuple(specs[:count]), tuple(specs[count:])
        return replace(self._method, commands=tuple(commands), inputs=inputs, outputs=outputs)

    def _specs(self, specs: list[TensorSpec], inputs: int) -> list[TensorSpec]:
        before = (-1, -1)
        for number, axis, step, reserved in self._dims:
            refuse = self._refuse[Section.SYMBOLIC_DIMS]
            if reserved:
                raise refuse("a reserved field is not zero")
            if (number, axis) <= before:
                raise refuse("the dimensions are not in order")
            before = (number, axis)
            if number >= len(specs) or axis >= len(specs[number].shape):
                raise refuse(f"dimension {axis} of tensor {number} does not exist")
            spec = specs[number]
            if spec.shape[axis] != spec.alloc_shape[axis]:
                raise refuse("a symbolic dimension is padded")
            size = self._at(step, refuse)
            if not is_symbolic(size):  # a number after all; whether it fits, the call will say
                size = dim_of(Call("+", size, 0))
            shape = (*spec.shape[:axis], size, *spec.shape[axis + 1 :])
            specs[number] = replace(spec, shape=shape)
            found = self._expressions.linear(step) if number < inputs else None
            if found is not None:
                self._told.add(found[0])
        return specs

    def _commands(self, commands: list[Command]) -> list[Command]:
        before = (-1, -1, -1)
        for number, kind, at, step in self._patches:
            refuse = self._refuse[Section.PATCHES]
            if (number, kind, at) <= before:
                raise refuse("the patches are not in order")
            before = (number, kind, at)
            if number >= len(commands):
                raise refuse(f"command {number} does not exist")
            command = commands[number]
            if not _fits(kind, at, command):
                raise refuse(f"a patch of kind {kind} at {at} does not fit its command")
            patch = Patch(PatchKind(kind), at, self._at(step, refuse))
            commands[number] = replace(command, patches=(*command.patches, patch))
        return commands

    def _at(self, step: int, refuse: Callable[[str], ProgramFormatError]) -> int:
        if step >= len(self._expressions.sizes):
            raise refuse(f"step {step} does not exist")
        return self._expressions.sizes[step]


_WIDTHS = {PatchKind.I32: 4, PatchKind.I64: 8, PatchKind.F32: 4, PatchKind.F64: 8}


def _fits(kind: int, at: int, command: Command) -> bool:
    """Tells whether a patch lies in its command: aligned in the parameters, or at an operand."""
    if kind == PatchKind.OPERAND:
        return at < len(command.operands)
    if kind not in list(PatchKind):
        return False
    width = _WIDTHS[PatchKind(kind)]
    return at % width == 0 and at + width <= len(command.params)


def _interval(op: Op, a: _Fact, b: _Fact) -> tuple[int, int]:
    if op is Op.ADD:
        return a.low + b.low, a.high + b.high
    if op is Op.MOD:
        return 0, (min(a.high, b.high - 1) if a.low >= 0 else b.high - 1)
    if op is Op.MAX:
        return max(a.low, b.low), max(a.high, b.high)
    if op is Op.MIN:
        return min(a.low, b.low), min(a.high, b.high)
    corners = product((a.low, a.high), (b.low, b.high))
    ends = [x * y if op is Op.MUL else x // y for x, y in corners]
    return min(ends), max(ends)


_Linear = tuple[int, int, int] | None


def _linear(op: Op, x: _Linear, y: _Linear) -> _Linear:
    if x is None or y is None:
        return None
    if op is Op.ADD and (x[0] == y[0] or -1 in (x[0], y[0])):
        found = max(x[0], y[0]), x[1] + y[1], x[2] + y[2]
    elif op is Op.MUL and -1 in (x[0], y[0]):
        (factor, other) = (x[2], y) if x[0] == -1 else (y[2], x)
        found = other[0], other[1] * factor, other[2] * factor
    else:
        return None
    return found if max(abs(found[1]), abs(found[2])) <= _MAX_NUMBER else None
