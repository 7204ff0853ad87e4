"""Whether two scalar formulas of one value are the same function, proved by algebra.

Owns the form in which that is decided: quotients of sums of c · xⁿ · exp(p(x)) · atoms, with exact
coefficients. Every formula is read as a function of a real number, piece by piece between the
points at which it compares, so two that get the same form differ by rounding and by overflow
alone. What has no such form is not equal to anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from npusim.abi.scalar import Arg, ScalarOp, ScalarProgram
from npusim.ir.symbolic import is_symbolic

# A product: powers of √2, √π and ln 2, a power of x (0 or more), an exponent of e (a frozen sum),
# and atoms: functions that have no simpler form, with what they are applied to.
Monomial = tuple[Any, int, Any, Any]
Sum = dict[Monomial, Fraction]
Bound = Fraction | float  # the latter where it is infinite
Region = tuple[Bound, Bound]  # an open interval of x

_ONE: Monomial = ((), 0, (), ())
_X: Monomial = ((), 1, (), ())
_SYMBOLS = {"ln2": math.log(2), "root2": math.sqrt(2), "rootpi": math.sqrt(math.pi)}
_TANH_CUBE = Fraction(44715, 10**6)  # of the tanh form of gelu
_MOST_TERMS = 64


class Unknown(Exception):
    """A formula has no closed form here."""


class _Split(Exception):
    """A formula compares at a point inside the region."""

    def __init__(self, point: Fraction) -> None:
        self.point = point


def same_function(a: ScalarProgram, b: ScalarProgram) -> list[float] | None:
    """Tells whether two programs of one float operand are the same function of a real number.

    Returns:
        The points at which either changes from one piece to another; None when they are not
        proved to be the same.
    """
    pending: list[Region] = [(-math.inf, math.inf)]
    points: list[float] = []
    while pending:
        low, high = pending.pop()
        try:
            if not _equal(_Reader((low, high)).value(a), _Reader((low, high)).value(b)):
                return None
        except _Split as split:
            points.append(float(split.point))
            pending += [(low, split.point), (split.point, high)]
        except Unknown:
            return None
    return points


@dataclass(frozen=True)
class _Form:
    """A quotient of two sums, the lower one positive everywhere."""

    above: Sum
    below: Sum

    def __add__(self, other: _Form) -> _Form:
        if self.below == other.below:
            return _Form(_plus(self.above, other.above), self.below)
        above = _plus(_times(self.above, other.below), _times(other.above, self.below))
        return _Form(above, _times(self.below, other.below))

    def __mul__(self, other: _Form) -> _Form:
        return _Form(_times(self.above, other.above), _times(self.below, other.below))

    def __neg__(self) -> _Form:
        return _Form({m: -c for m, c in self.above.items()}, self.below)

    def __sub__(self, other: _Form) -> _Form:
        return self + -other

    def inverse(self) -> _Form:
        """Returns 1 / self; Unknown where self may be 0."""
        constant = _constant_inverse(self.above)
        if constant is not None:
            return _Form(_times(self.below, constant), {_ONE: Fraction(1)})
        if _is_positive(self.above):
            return _Form(self.below, self.above)
        negative = -self
        if _is_positive(negative.above):
            return -_Form(negative.below, negative.above)
        raise Unknown

    def key(self) -> Any:
        """Returns the form as something that can be compared and hashed."""
        return _frozen(self.above), _frozen(self.below)


def _number(value: Fraction | int) -> _Form:
    return _Form({_ONE: Fraction(value)} if value else {}, {_ONE: Fraction(1)})


def _symbol(name: str, power: int = 1) -> _Form:
    return _Form({(((name, power),), 0, (), ()): Fraction(1)}, {_ONE: Fraction(1)})


def _frozen(terms: Sum) -> Any:
    return tuple(sorted(terms.items(), key=repr))


def _plus(a: Sum, b: Sum) -> Sum:
    total = dict(a)
    for monomial, coefficient in b.items():
        total[monomial] = total.get(monomial, Fraction(0)) + coefficient
    return {m: c for m, c in total.items() if c}


def _times(a: Sum, b: Sum) -> Sum:
    if len(a) * len(b) > _MOST_TERMS:
        raise Unknown
    total: Sum = {}
    for (m, c), (n, d) in product(a.items(), b.items()):
        monomial, factor = _joined(m, n)
        total = _plus(total, {monomial: c * d * factor})
    return total


def _joined(m: Monomial, n: Monomial) -> tuple[Monomial, Fraction]:
    """Returns the product of two monomials, and a rational factor: √2 · √2 is 2."""
    symbols, factor = _powers(m[0], n[0]), Fraction(1)
    if symbols.get("root2", 0) not in (0, 1):
        pairs, rest = divmod(symbols.pop("root2"), 2)
        factor = Fraction(2) ** pairs
        symbols |= {"root2": 1} if rest else {}
    exponent = _frozen(_plus(dict(m[2]), dict(n[2])))
    atoms = tuple(sorted(_powers(m[3], n[3]).items(), key=repr))
    return (tuple(sorted(symbols.items())), m[1] + n[1], exponent, atoms), factor


def _constant_inverse(terms: Sum) -> Sum | None:
    """Returns 1 / c for a sum that is one number."""
    if len(terms) != 1:
        return None
    ((symbols, power, exponent, atoms), coefficient), *_ = terms.items()
    if power or exponent or atoms:
        return None
    inverse = tuple((name, -p) for name, p in symbols)
    return _times({(inverse, 0, (), ()): 1 / coefficient}, {_ONE: Fraction(1)})


def _powers(a: Any, b: Any) -> dict[Any, int]:
    total = dict(a)
    for name, power in b:
        total[name] = total.get(name, 0) + power
    return {name: power for name, power in total.items() if power}


def _is_positive(terms: Sum) -> bool:
    """Tells whether a sum is above 0 for every x: of positive terms, one of them never 0."""
    even = all(c > 0 and m[1] % 2 == 0 and not m[3] for m, c in terms.items())
    return even and any(m[1] == 0 for m in terms)


def _equal(a: _Form, b: _Form) -> bool:
    return _times(a.above, b.below) == _times(b.above, a.below)


# ---- numbers ----


@cache
def _known_numbers(dtype: type) -> dict[float, _Form]:
    """Returns the numbers of the activations' definitions by how a dtype stores them."""
    known: dict[float, _Form] = {}
    rational = [Fraction(1, n) for n in (1, 2, 3, 4, 6)] + [Fraction(n) for n in (2, 4)]
    rational += [_TANH_CUBE * q for q in rational]
    signs: list[tuple[int, ...]] = list(product((0, -1, 1), repeat=len(_SYMBOLS)))
    for powers, q in product(signs, rational):
        form, value = _number(q), float(q)
        for (name, base), power in zip(_SYMBOLS.items(), powers, strict=True):
            if power:
                form, value = form * _symbol(name, power), value * base**power
        known.setdefault(float(dtype(value)), form)
    return known


def _literal(value: float | int, cls: str) -> _Form:
    """Returns what a literal stands for: the number of a definition that it is the nearest to
    store, or exactly itself."""
    if is_symbolic(value) or not math.isfinite(value):
        raise Unknown
    dtype = np.float64 if cls == "d" else np.float32
    stored = float(dtype(value)) if cls != "i" else float(value)
    if not math.isfinite(stored):
        raise Unknown
    exact = Fraction(stored)
    if exact.denominator <= 1024:
        return _number(exact)
    form = _known_numbers(dtype).get(abs(stored))
    if form is None:
        return _number(exact)
    return form if stored > 0 else -form


# ---- functions ----


def _exp(x: _Form) -> _Form:
    if x.below != {_ONE: Fraction(1)}:
        raise Unknown
    whole = _number(1)
    exponent: Sum = {}
    for monomial, coefficient in x.above.items():
        logarithm = _logarithm(monomial)
        if logarithm is None:
            if monomial[2] or monomial[3]:
                raise Unknown
            exponent[monomial] = coefficient
        elif coefficient.denominator == 1 and 0 < abs(coefficient) <= 4:
            for _ in range(abs(int(coefficient))):
                whole = whole * (logarithm if coefficient > 0 else logarithm.inverse())
        else:
            raise Unknown
    power: Sum = {((), 0, _frozen(exponent), ()): Fraction(1)}
    return whole * _Form(power, {_ONE: Fraction(1)})


def _logarithm(monomial: Monomial) -> _Form | None:
    """Returns what a monomial is the bare logarithm of."""
    symbols, power, exponent, atoms = monomial
    if symbols or power or exponent or len(atoms) != 1:
        return None
    ((name, (above, below)), times), *_ = atoms
    return _Form(dict(above), dict(below)) if name == "log" and times == 1 else None


def _atom(name: str, x: _Form) -> _Form:
    return _Form({((), 0, (), (((name, x.key()), 1),)): Fraction(1)}, {_ONE: Fraction(1)})


def _log(x: _Form) -> _Form:
    if not _is_positive(x.above):
        raise Unknown
    return _atom("log", x)


def _erf(x: _Form) -> _Form:
    """erf is odd: the sign of the first term stands before it."""
    if not x.above:
        return _number(0)
    negative = _frozen(x.above)[0][1] < 0
    return -_atom("erf", -x) if negative else _atom("erf", x)


def _sigmoid(x: _Form) -> _Form:
    return (_number(1) + _exp(-x)).inverse()


def _tanh(x: _Form) -> _Form:
    square = _exp(x + x)
    return (square - _number(1)) * (square + _number(1)).inverse()


def _gelu(x: _Form) -> _Form:
    half = _number(Fraction(1, 2))
    return half * x * (_number(1) + _erf(x * half * _symbol("root2")))


def _gelu_tanh(x: _Form) -> _Form:
    inner = _symbol("root2") * _symbol("rootpi", -1) * (x + _number(_TANH_CUBE) * x * x * x)
    return _number(Fraction(1, 2)) * x * (_number(1) + _tanh(inner))


_FUNCTIONS: dict[str, Callable[..., _Form]] = {
    **dict.fromkeys(("copy", "to_f", "to_d"), lambda x: x),
    "neg": lambda x: -x,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a * b.inverse(),
    "fma": lambda a, b, c: a * b + c,
    "reciprocal": lambda x: x.inverse(),
    "exp": _exp,
    "exp2": lambda x: _exp(x * _symbol("ln2")),
    "expm1": lambda x: _exp(x) - _number(1),
    "log": _log,
    "log1p": lambda x: _log(_number(1) + x),
    "log2": lambda x: _log(x) * _symbol("ln2", -1),
    "erf": _erf,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "mish": lambda x: x * _tanh(_log(_number(1) + _exp(x))),
}


# ---- pieces ----


class _Reader:
    """Reads programs over one region, in which every comparison has one answer."""

    def __init__(self, region: Region) -> None:
        self.low, self.high = region

    def value(self, program: ScalarProgram) -> _Form:
        """Returns what a program computes; _Split where that takes a smaller region."""
        x = _Form({_X: Fraction(1)}, {_ONE: Fraction(1)})
        values: list[_Form] = [x]
        for op in program.body:
            values.append(self._instruction(op, values))
        return values[-1]

    def _instruction(self, op: ScalarOp, values: Sequence[_Form]) -> _Form:
        args = [self._operand(a, op.cls, values) for a in op.args]
        if op.op in _COMPARISONS:
            self._is_bare(*args)
            return _number(_COMPARISONS[op.op](self._sign(args[0] - args[1])))
        if op.op == "where":
            return args[1] if self._sign(args[0]) else args[2]
        if op.op in _PIECES:
            return _PIECES[op.op](self, *args)
        if op.op not in _FUNCTIONS or (op.cls == "i" and op.op not in ("to_f", "to_d")):
            raise Unknown
        return _FUNCTIONS[op.op](*args)

    def _operand(self, arg: Arg, cls: str, values: Sequence[_Form]) -> _Form:
        return values[arg] if isinstance(arg, int) else _literal(arg[1], cls)

    def _is_bare(self, *args: _Form) -> None:
        """A comparison jumps, so what it reads must not be rounded: ±x, or a number."""
        for form in args:
            bare = form.below == {_ONE: Fraction(1)} and len(form.above) <= 1
            for monomial, coefficient in form.above.items():
                bare &= monomial == _ONE or (monomial == _X and abs(coefficient) == 1)
            if not bare:
                raise Unknown

    def _sign(self, form: _Form) -> int:
        """Returns the sign of an affine form in the region: -1, 0 or 1."""
        a, b = (form.above.get(m, Fraction(0)) for m in (_X, _ONE))
        if len(form.below) != 1 or _ONE not in form.below:
            raise Unknown
        if len(form.above) > (a != 0) + (b != 0):
            raise Unknown
        if a == 0:
            return (b > 0) - (b < 0)
        root = -b / a
        if self.low < root < self.high:
            raise _Split(root)
        beyond = root <= self.low
        return 1 if (a > 0) == beyond else -1

    def _maximum(self, a: _Form, b: _Form) -> _Form:
        return a if self._sign(a - b) >= 0 else b

    def _minimum(self, a: _Form, b: _Form) -> _Form:
        return a if self._sign(a - b) <= 0 else b

    def _clamp(self, x: _Form, low: _Form, high: _Form) -> _Form:
        return self._minimum(self._maximum(x, low), high)

    def _abs(self, x: _Form) -> _Form:
        return x if self._sign(x) >= 0 else -x

    def _six(self, x: _Form) -> _Form:
        """Returns clamp(x + 3, 0, 6) / 6."""
        clamped = self._clamp(x + _number(3), _number(0), _number(6))
        return clamped * _number(Fraction(1, 6))

    def _softplus(self, x: _Form) -> _Form:
        return x if self._sign(x - _number(20)) > 0 else _log(_number(1) + _exp(x))


_COMPARISONS: dict[str, Callable[[int], bool]] = {
    "lt": lambda s: s < 0,
    "le": lambda s: s <= 0,
    "gt": lambda s: s > 0,
    "ge": lambda s: s >= 0,
    "eq": lambda s: s == 0,
    "ne": lambda s: s != 0,
}
_PIECES: dict[str, Callable[..., _Form]] = {
    "maximum": _Reader._maximum,
    "minimum": _Reader._minimum,
    "clamp": _Reader._clamp,
    "abs": _Reader._abs,
    "relu": lambda reader, x: reader._maximum(x, _number(0)),
    "hardsigmoid": _Reader._six,
    "hardswish": lambda reader, x: x * reader._six(x),
    "softplus": _Reader._softplus,
    "isnan": lambda reader, x: _number(0),
    "isinf": lambda reader, x: _number(0),
    "to_bool": lambda reader, x: _number(abs(reader._sign(x))),
    "logical_not": lambda reader, x: _number(1 - abs(reader._sign(x))),
}
