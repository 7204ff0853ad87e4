"""Sizes that are known only when a model is called: integer expressions over bounded symbols.

A `Dim` is an exact expression such as `batch*seq` or `(h + 1)//2`. It stands wherever a graph, a
view or a kernel's parameters hold a size, and computes like an int. What it refuses is being taken
for a number: every decision about it is either sound for all values of its symbols or raises.

* Arithmetic with ints and Dims gives Dims; a result that is constant is a plain int.
* `==` means "is the same expression", so a Dim never equals a number, and two symbols are never
  confused, whatever values they take at the call. Code that asks `size == 1` gets False and takes
  its general path, which must be right for 1 too.
* `<`, `>`, truth and `abs` are decided when the bounds of the symbols decide them, and raise
  SymbolicSizeError otherwise.
* `range`, NumPy, `struct` and whatever else asks for the number (`__index__`) raise as well. So a
  Dim is no subclass of int, whose value C code would read; for `isinstance` it counts as one.
* `upper` and `lower` give bounds, `evaluate` the value for given symbols, `substituted` all of a
  structure's. These are the ways to a number.

An expression is a polynomial with integer coefficients in canonical form. What is no polynomial
(`//`, `%`, max, min that nothing decides) is an atom of one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NoReturn, TypeAlias, cast

from npusim.errors import SymbolicSizeError

MAX_SIZE = 1 << 40  # of a symbol; also what a file's dimensions may be
_MAX_TERMS = 64
_MAX_DEGREE = 16
_MAX_NUMBER = 1 << 62  # coefficients and bounds; the runtime computes with 64 bits
_MAX_QUOTIENTS = 3  # in a sum up to which bounds say that they go along with other terms
_MAX_CORNERS = 6  # symbols up to which exact bounds are computed at all corners


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that a caller chooses, from `low` to `high`, both included."""

    name: str
    low: int
    high: int

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Call:
    """An operation that is no polynomial: `op` is one of "//", "%", "max", "min".

    "+" and "*" are legal as well, for sums and products that were not multiplied out.
    """

    op: str
    a: int  # int or Dim, as everywhere
    b: int

    def __str__(self) -> str:
        if self.op in ("max", "min"):
            return f"{self.op}({self.a}, {self.b})"
        return f"{_factor(self.a)}{self.op}{_factor(self.b)}"


Atom: TypeAlias = "Symbol | Call"
Monomial: TypeAlias = "tuple[tuple[Atom, int], ...]"  # (atom, power), sorted by text
Terms: TypeAlias = "dict[Monomial, int]"

_ONE: Monomial = ()


def _factor(value: int) -> str:
    """Returns a value as it stands in a product: in parentheses if it is a sum or product."""
    text = str(value)
    return text if text.isidentifier() or text.isdigit() else f"({text})"


class Dim:
    """A size that is not known before the call; see the module's text."""

    def __init__(self, terms: Terms) -> None:
        self.terms: tuple[tuple[Monomial, int], ...] = tuple(
            sorted(terms.items(), key=lambda term: _order(term[0]))
        )

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # type: ignore[override]
        return int

    # What makes it a value

    def __eq__(self, other: object) -> bool:
        return type(other) is Dim and self.terms == other.terms

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The least and the greatest value; exact for what is linear in each symbol."""
        return _bounds(self)

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that the expression reads."""
        found: set[Symbol] = set()
        for monomial, _ in self.terms:
            for atom, _ in monomial:
                if isinstance(atom, Symbol):
                    found.add(atom)
                else:
                    found |= symbols_of((atom.a, atom.b))
        return frozenset(found)

    def __str__(self) -> str:
        text = ""
        for monomial, coefficient in self.terms:
            alone = coefficient == 1 and len(monomial) == 1 and monomial[0][1] == 1
            factors = [_power(atom, power, alone) for atom, power in monomial]
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            joined = "*".join(factors)
            text += f" {sign} {joined}" if text else ("-" if coefficient < 0 else "") + joined
        return text

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)

    # What computes

    def __add__(self, other: Any) -> int:
        terms = dict(self.terms)
        for monomial, coefficient in _terms(other):
            terms[monomial] = terms.get(monomial, 0) + coefficient
        return _made(terms)

    def __mul__(self, other: Any) -> int:
        terms: Terms = {}
        for (left, a), (right, b) in product(self.terms, _terms(other)):
            monomial = _merged(left, right)
            terms[monomial] = terms.get(monomial, 0) + a * b
        return _made(terms)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> int:
        return self * -1

    def __pos__(self) -> int:
        return _int(self)

    def __sub__(self, other: Any) -> int:
        return self + -other

    def __rsub__(self, other: Any) -> int:
        return -self + other

    def __floordiv__(self, other: Any) -> int:
        return _divided(_int(self), other)[0]

    def __rfloordiv__(self, other: Any) -> int:
        return _divided(other, _int(self))[0]

    def __mod__(self, other: Any) -> int:
        return _divided(_int(self), other)[1]

    def __rmod__(self, other: Any) -> int:
        return _divided(other, _int(self))[1]

    def __divmod__(self, other: Any) -> tuple[int, int]:
        return _divided(_int(self), other)

    # What decides

    def __lt__(self, other: Any) -> bool:
        return self._compare(other, "<", operator.lt)

    def __le__(self, other: Any) -> bool:
        return self._compare(other, "<=", operator.le)

    def __gt__(self, other: Any) -> bool:
        return self._compare(other, ">", operator.gt)

    def __ge__(self, other: Any) -> bool:
        return self._compare(other, ">=", operator.ge)

    def _compare(self, other: Any, sign: str, holds: Callable[[int, int], bool]) -> bool:
        """Decides by the bounds of the difference: what holds at both holds between them."""
        low, high = bounds(self - other)
        if holds(low, 0) != holds(high, 0):
            raise SymbolicSizeError(
                f"whether {self} {sign} {other} depends on the sizes of the call "
                f"({describe(symbols_of((_int(self), other)))})."
            )
        return holds(low, 0)

    def __bool__(self) -> bool:
        low, high = self.bounds
        if low > 0 or high < 0:
            return True
        raise SymbolicSizeError(
            f"whether {self} is zero depends on the sizes of the call ({describe(self.symbols)})."
        )

    def __abs__(self) -> int:
        return _int(self) if self >= 0 else -self

    # What would specialise

    def _refuse(self, *_: object) -> NoReturn:
        raise SymbolicSizeError(
            f"this needs a size to be a number, and {self} is known only at the call "
            f"({describe(self.symbols)})."
        )

    __index__ = __int__ = __float__ = __round__ = __trunc__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = _refuse
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _refuse
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _refuse


def symbol(name: str, low: int, high: int) -> int:
    """Returns the size named `name`, from `low` to `high`; an int when these are equal.

    Raises:
        SymbolicSizeError: the name is no identifier, or the bounds are no range of sizes.
    """
    if not (name.isascii() and name.isidentifier()):
        raise SymbolicSizeError(f"{name!r} cannot name a size; use letters, digits and '_'.")
    if not 0 <= low <= high <= MAX_SIZE:
        raise SymbolicSizeError(
            f"size {name} ranges from {low} to {high}; 0 <= low <= high <= {MAX_SIZE} is legal."
        )
    return low if low == high else dim_of(Symbol(name, low, high))


def dim_of(atom: Atom) -> int:
    """Returns an atom as a size."""
    return _int(Dim({((atom, 1),): 1}))


def is_symbolic(value: object) -> bool:
    """Tells whether a value is a Dim, or a (nested) tuple or list that holds one."""
    if isinstance(value, (tuple, list)):
        return any(map(is_symbolic, value))
    return type(value) is Dim


def bounds(value: int) -> tuple[int, int]:
    """Returns the least and the greatest value a size can have."""
    return value.bounds if type(value) is Dim else (value, value)


def upper(value: int) -> int:
    """Returns the greatest value a size can have: what memory is planned for."""
    return bounds(value)[1]


def lower(value: int) -> int:
    """Returns the least value a size can have."""
    return bounds(value)[0]


def at_least(a: int, b: int) -> bool:
    """Tells whether a >= b whatever the sizes of the call are."""
    return lower(a - b) >= 0


def symbols_of(value: object) -> frozenset[Symbol]:
    """Returns the symbols in a value: a size, or a (nested) tuple or list of such."""
    if isinstance(value, (tuple, list)):
        return frozenset().union(*map(symbols_of, value))
    return value.symbols if type(value) is Dim else frozenset()


def describe(symbols: Iterable[Symbol]) -> str:
    """Returns symbols with their bounds, for messages: `batch 1 … 8, seq 1 … 128`."""
    ordered = sorted(symbols, key=lambda s: s.name)
    return ", ".join(f"{s.name} {s.low} … {s.high}" for s in ordered)


def maximum(a: int, b: int) -> int:
    """Returns the larger of two sizes, undecided if need be."""
    return _choice("max", a, b)


def minimum(a: int, b: int) -> int:
    """Returns the smaller of two sizes, undecided if need be."""
    return _choice("min", a, b)


def _choice(op: str, a: int, b: int) -> int:
    low, high = bounds(a - b)
    if low >= 0 or high <= 0:
        return a if (low >= 0) == (op == "max") else b
    return dim_of(Call(op, *sorted((a, b), key=str)))


def evaluate(value: int, sizes: Mapping[str, int]) -> int:
    """Returns what an expression is for given symbols, by their names.

    Raises:
        KeyError: a symbol is not given. ZeroDivisionError: it divides by zero there.
    """
    return substituted(value, sizes) if type(value) is Dim else value


def substituted(value: Any, sizes: Mapping[str, int]) -> Any:
    """Returns a value with its symbols replaced by sizes (ints or Dims), tuples throughout."""
    if isinstance(value, (tuple, list)):
        return type(value)(substituted(item, sizes) for item in value)
    return computed(value, sizes, OPERATIONS)


def computed(
    value: Any, symbols: Mapping[str, Any], operations: Mapping[str, Callable[[Any, Any], Any]]
) -> Any:
    """Returns what an expression is over other numbers than sizes; a value that is none, itself.

    Args:
        symbols: what symbols stand for, by name: anything that adds and multiplies.
        operations: what the operators of a `Call` do.
    """
    if type(value) is not Dim:
        return value
    total: Any = 0
    for monomial, coefficient in value.terms:
        term: Any = coefficient
        for atom, power in monomial:
            if isinstance(atom, Symbol):
                part = symbols[atom.name]
            else:
                operands = (computed(v, symbols, operations) for v in (atom.a, atom.b))
                part = operations[atom.op](*operands)
            for _ in range(power):
                term = term * part
        total = total + term
    return total


OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": maximum,
    "min": minimum,
}


# ---- polynomials ----


def _int(value: Dim) -> int:
    return cast(int, value)  # for the types: it stands where sizes stand


def _terms(value: Any) -> tuple[tuple[Monomial, int], ...]:
    if type(value) is Dim:
        return value.terms
    if type(value) is int:
        return ((_ONE, value),) if value else ()
    raise SymbolicSizeError(f"a size cannot be computed with {value!r}.")


def _order(monomial: Monomial) -> tuple[int, str]:
    """Sorts terms by falling degree, then by text; the constant comes last."""
    return -sum(power for _, power in monomial), str([(str(a), p) for a, p in monomial])


def _made(terms: Terms) -> int:
    """Returns a sum of terms: a plain int when it is constant."""
    kept = {monomial: c for monomial, c in terms.items() if c}
    if set(kept) <= {_ONE}:
        return kept.get(_ONE, 0)
    if len(kept) > _MAX_TERMS or max(map(abs, kept.values())) > _MAX_NUMBER:
        raise SymbolicSizeError("a size is too complicated, or too large, an expression.")
    return _int(Dim(kept))


def _merged(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for atom, power in b:
        powers[atom] = powers.get(atom, 0) + power
    if sum(powers.values()) > _MAX_DEGREE:
        raise SymbolicSizeError("a size is too complicated an expression.")
    return tuple(sorted(powers.items(), key=lambda item: str(item[0])))


def _power(atom: Atom, power: int, alone: bool) -> str:
    plain = alone or isinstance(atom, Symbol) or atom.op in ("max", "min")
    return "*".join([str(atom) if plain else f"({atom})"] * power)


def _divided(a: int, b: int) -> tuple[int, int]:
    """Returns a // b and a % b for b > 0.

    What b divides exactly is taken out; the rest is 0, or an atom where the bounds do not decide.
    """
    if lower(b) <= 0:
        raise SymbolicSizeError(f"{a} is divided by {b}, which may not be positive.")
    whole, rest = _split(a, b)
    low, high = bounds(rest)
    if low >= 0 and upper(rest - b) < 0:
        return whole, rest
    if type(b) is int and low // b == high // b:
        return whole + low // b, rest - low // b * b
    return whole + dim_of(Call("//", rest, b)), dim_of(Call("%", rest, b))


def _split(a: int, b: int) -> tuple[int, int]:
    """Returns (whole, rest) with a == whole * b + rest, as much as possible in `whole`."""
    if a == b:
        return 1, 0
    if type(b) is not int:
        (lead, factor), *others = b.terms  # type: ignore[attr-defined]
        whole: int = 0
        rest = a
        for monomial, coefficient in _terms(a):
            quotient = _without(monomial, lead)
            if quotient is None or coefficient % factor:
                continue
            part = _made({quotient: coefficient // factor})
            whole, rest = whole + part, rest - part * b
        if others and rest != 0:  # long division by a sum did not come out even
            return 0, a
        return whole, rest
    whole_terms: Terms = {}
    rest_terms: Terms = {}
    for monomial, coefficient in _terms(a):
        whole_terms[monomial] = coefficient // b
        rest_terms[monomial] = coefficient % b
    return _made(whole_terms), _made(rest_terms)


def _without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """Returns monomial / divisor, or None when that is no monomial."""
    powers = dict(monomial)
    for atom, power in divisor:
        if powers.get(atom, 0) < power:
            return None
        powers[atom] -= power
    return tuple((atom, power) for atom, power in powers.items() if power)


# ---- bounds ----


def _bounds(value: Dim) -> tuple[int, int]:
    low, high = _interval(value)
    symbols = sorted(value.symbols, key=lambda s: s.name)
    multilinear = all(
        power == 1 and isinstance(atom, Symbol)
        for monomial, _ in value.terms
        for atom, power in monomial
    )
    if multilinear and len(symbols) <= _MAX_CORNERS:  # the extremes are at corners
        corners = product(*((s.low, s.high) for s in symbols))
        names = [s.name for s in symbols]
        values = [evaluate(_int(value), dict(zip(names, at, strict=True))) for at in corners]
        low, high = min(values), max(values)
    elif (found := _shared_quotient(value)) is not None:
        low, high = _beside_quotient(value, *found, (low, high))
    elif (chosen := _shared_choice(value)) is not None:
        low, high = _beside_choice(value, *chosen, (low, high))
    if max(abs(low), abs(high)) > _MAX_NUMBER:
        raise SymbolicSizeError(f"{value} may be beyond 64 bits ({describe(value.symbols)}).")
    return low, high


def _interval(value: Dim) -> tuple[int, int]:
    """Adds up the bounds of the terms, each on its own."""
    low = high = 0
    for monomial, coefficient in value.terms:
        ends = [coefficient, coefficient]
        for atom, power in monomial:
            a, b = _atom_bounds(atom)
            if power % 2 == 0 and a < 0:
                a, b = (0 if b >= 0 else b), max(-a, b)
            products = [x * y**power for x in ends for y in (a, b)]
            ends = [min(products), max(products)]
        low, high = low + ends[0], high + ends[1]
    return low, high


def _shared_quotient(value: Dim) -> tuple[Monomial, int] | None:
    """Returns a term k * (a // c) whose symbols other terms read as well, so that they go along."""
    return _shared(value, _is_quotient)


def _shared_choice(value: Dim) -> tuple[Call, int] | None:
    """Returns a maximum or minimum and its factor, where other terms read its symbols as well."""
    found = _shared(value, lambda atom: isinstance(atom, Call) and atom.op in ("max", "min"))
    return None if found is None else (cast(Call, found[0][0][0]), found[1])


def _shared(value: Dim, wanted: Callable[[Atom], bool]) -> tuple[Monomial, int] | None:
    """Returns the first of a few terms k * a, a wanted, whose symbols other terms read as well."""
    found = [
        (monomial, coefficient)
        for monomial, coefficient in value.terms
        if len(monomial) == 1 and monomial[0][1] == 1 and wanted(monomial[0][0])
    ]
    for monomial, coefficient in found if len(found) <= _MAX_QUOTIENTS else []:
        others = Dim({m: c for m, c in value.terms if m != monomial})
        if symbols_of(_int(Dim({monomial: coefficient}))) & others.symbols:
            return monomial, coefficient
    return None


def _is_quotient(atom: Atom) -> bool:
    return isinstance(atom, Call) and atom.op == "//" and type(atom.b) is int


def _beside_quotient(
    value: Dim, monomial: Monomial, coefficient: int, known: tuple[int, int]
) -> tuple[int, int]:
    """Narrows bounds of a sum with k * (a // c): a // c lies between (a - c + 1) / c and a / c."""
    quotient = monomial[0][0]
    assert isinstance(quotient, Call)
    scale = quotient.b
    ends = [coefficient * (quotient.a - scale + 1), coefficient * quotient.a]
    if coefficient < 0:
        ends.reverse()
    try:
        rest = scale * (_int(value) - coefficient * dim_of(quotient))
        low, high = -(-lower(rest + ends[0]) // scale), upper(rest + ends[1]) // scale
    except SymbolicSizeError:  # a number beyond 64 bits on the way
        return known
    return max(low, known[0]), min(high, known[1])


def _beside_choice(
    value: Dim, choice: Call, coefficient: int, known: tuple[int, int]
) -> tuple[int, int]:
    """Narrows bounds of a sum with k * max(a, b), or min: it is one of the sums with k * a, k * b.

    The larger or the smaller of these, where nothing else in the sum reads the maximum.
    """
    whole, symbols = _int(value), {s.name: dim_of(s) for s in value.symbols}

    def taking(operand: int) -> int:
        def chosen(a: int, b: int) -> int:
            same = (a, b) == (choice.a, choice.b)
            return operand if same else OPERATIONS[choice.op](a, b)

        return cast(int, computed(value, symbols, {**OPERATIONS, choice.op: chosen}))

    try:
        sums = taking(choice.a), taking(choice.b)
        lows, highs = zip(*map(bounds, sums), strict=True)
        once = all(
            found == whole + coefficient * (operand - dim_of(choice))
            for found, operand in zip(sums, (choice.a, choice.b), strict=True)
        )
    except SymbolicSizeError:  # a number beyond 64 bits on the way
        return known
    pick = max if (coefficient > 0) == (choice.op == "max") else min
    low, high = (pick(lows), pick(highs)) if once else (min(lows), max(highs))
    return max(low, known[0]), min(high, known[1])


def _atom_bounds(atom: Atom) -> tuple[int, int]:
    if isinstance(atom, Symbol):
        return atom.low, atom.high
    (a_low, a_high), (b_low, b_high) = bounds(atom.a), bounds(atom.b)
    if atom.op == "%":
        return 0, (min(a_high, b_high - 1) if a_low >= 0 else b_high - 1)
    if atom.op in ("//", "*", "+"):
        step = OPERATIONS[atom.op]
        ends = [step(x, y) for x in (a_low, a_high) for y in (b_low, b_high)]
        return min(ends), max(ends)
    choose = max if atom.op == "max" else min
    return choose(a_low, b_low), choose(a_high, b_high)
