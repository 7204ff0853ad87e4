"""Scalar operations as ATen operators, and what tinygrad writes with few operations as what it is.

tinygrad has no subtraction, division, exp, cos, minimum or sigmoid of its own by the time its graph
is read: a - b is a + b * -1, and exp(x) is exp2(x * 1.4427). A number is that of a formula if the
dtype stores both as the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from npusim.frontends.tinygrad.builder import Builder
from npusim.frontends.tinygrad.known import uniform
from npusim.frontends.tinygrad.plans import Plan, operator, unary
from npusim.frontends.tinygrad.terms import Term, narrow
from npusim.ir.graph import Value

_FLOATS = ("float16", "bfloat16", "float32", "float64")

# With a tensor, with a number after the tensor, with a number before it.
_BINARY: dict[str, tuple[str, str | None, str | None]] = {
    "add": ("add.Tensor", "add.Scalar", "add.Scalar"),
    "sub": ("sub.Tensor", "sub.Scalar", "rsub.Scalar"),
    "mul": ("mul.Tensor", "mul.Scalar", "mul.Scalar"),
    "fdiv": ("div.Tensor", "div.Scalar", None),
    "max": ("maximum.default", "clamp_min.default", "clamp_min.default"),
    "pow": ("pow.Tensor_Tensor", "pow.Tensor_Scalar", "pow.Scalar"),
    "floormod": ("remainder.Tensor", "remainder.Scalar", None),
    "cmod": ("fmod.Tensor", "fmod.Scalar", None),
    "cmplt": ("lt.Tensor", "lt.Scalar", "gt.Scalar"),
    "cmpne": ("ne.Tensor", "ne.Scalar", "ne.Scalar"),
    "cmpeq": ("eq.Tensor", "eq.Scalar", "eq.Scalar"),
    "xor": ("bitwise_xor.Tensor", None, None),
    "or": ("bitwise_or.Tensor", None, None),
    "and": ("bitwise_and.Tensor", None, None),
    "shl": ("bitwise_left_shift.Tensor", None, None),
    "shr": ("bitwise_right_shift.Tensor", None, None),
}
_LOGICAL = {"xor": "logical_xor", "or": "logical_or", "and": "logical_and"} | {
    "add": "logical_or", "sub": "logical_xor", "mul": "logical_and", "max": "logical_or",
    "cmpne": "logical_xor",
}  # fmt: skip
_UNARY = {
    "exp2": "exp2", "log2": "log2", "sin": "sin", "sqrt": "sqrt", "reciprocal": "reciprocal",
    "neg": "neg", "trunc": "trunc",
}  # fmt: skip


def scalar_operation(term: Term) -> Plan | None:
    """Plans a scalar operation as the ATen operator it is; a recovery."""
    if term.op in _UNARY:
        if term.dtype == "bool":  # -True is True, as in C
            return Plan(term.sources, lambda graph, x: x)
        return unary(term.sources[0], f"{_UNARY[term.op]}.default")
    if term.op in _BINARY:
        return _binary(term)
    if term.op == "where":
        return _where(term)
    if term.op in ("cdiv", "floordiv"):
        mode = "trunc" if term.op == "cdiv" else "floor"
        sources = _stripped(term)

        def divide(graph: Builder, a: Value, b: Value) -> Value:
            return graph.op("div.Tensor_mode", a, b, rounding_mode=mode)

        return Plan(sources, divide)
    if term.op == "mulacc":
        return operator_of_three(term)
    return None


def operator_of_three(term: Term) -> Plan:
    """Plans a * b + c."""

    def build(graph: Builder, a: Value, b: Value, c: Value) -> Value:
        return graph.op("add.Tensor", graph.op("mul.Tensor", a, b), c)

    return Plan(_stripped(term), build)


def _stripped(term: Term) -> tuple[Term, ...]:
    """Returns the operands without what broadcasts them, where the operator does that itself."""
    sources = [narrow(s) for s in term.sources]
    if _broadcast(sources) != term.shape:
        return term.sources
    return tuple(sources)


def _broadcast(terms: list[Term]) -> tuple[int, ...]:
    rank = max(len(t.shape) for t in terms)
    shapes = [(1,) * (rank - len(t.shape)) + t.shape for t in terms]
    return tuple(max(sizes) if 0 not in sizes else 0 for sizes in zip(*shapes, strict=True))


def _binary(term: Term) -> Plan:
    a, b = _stripped(term)
    if a.dtype == "bool" and term.op in _LOGICAL:
        if term.op == "cmpne" and uniform(b) is True:
            return _whole(unary(a, "logical_not.default"), a, term)
        return operator(f"{_LOGICAL[term.op]}.default", (a, b))
    both, behind, front = _BINARY[term.op]
    number = uniform(b)
    if number is not None and behind is not None and a.shape == term.shape:
        return unary(a, behind, number)
    number = uniform(a)
    if number is not None and front is not None and b.shape == term.shape:
        if front == "pow.Scalar":
            return Plan((b,), lambda graph, x: graph.op(front, number, x))
        return unary(b, front, number)
    return operator(both, (a, b))


def _whole(plan: Plan, source: Term, term: Term) -> Plan:
    if source.shape == term.shape:
        return plan
    return Plan(plan.sources, lambda graph, x: graph.expand(plan.build(graph, x), term.shape))


def _where(term: Term) -> Plan:
    condition, a, b = _stripped(term)
    numbers = uniform(a), uniform(b)
    whole = _broadcast([condition, a]), _broadcast([condition, b])
    if numbers[1] is not None and numbers[0] is None and whole[0] == term.shape:
        return unary_where(condition, a, numbers[1], "where.ScalarOther")
    if numbers[0] is not None and numbers[1] is None and whole[1] == term.shape:
        return unary_where(condition, b, numbers[0], "where.ScalarSelf")
    return operator("where.self", (condition, a, b))


def unary_where(condition: Term, x: Term, number: float, name: str) -> Plan:
    """Returns the plan of a choice between a tensor and a number."""
    if name == "where.ScalarOther":
        return Plan((condition, x), lambda graph, c, v: graph.op(name, c, v, number))
    return Plan((condition, x), lambda graph, c, v: graph.op(name, c, number, v))


# ---- what few operations stand for ----


def formula(term: Term) -> Plan | None:
    """Plans a few scalar operations as the one they stand for; a recovery."""
    if term.dtype not in _FLOATS and term.op != "cmpne":
        return None
    for recognise in _FORMULAS.get(term.op, ()):
        plan = recognise(term)
        if plan is not None:
            return plan
    return None


def _times(term: Term) -> list[tuple[Term, float]]:
    """Returns (x, number) for x * number, in either order."""
    if term.op != "mul":
        return []
    pairs = (term.sources, term.sources[::-1])
    found = [(x, uniform(n)) for x, n in pairs]
    return [(x, float(n)) for x, n in found if n is not None and x.shape == term.shape]


def _plus(term: Term) -> list[tuple[Term, float]]:
    if term.op != "add":
        return []
    found = [(x, uniform(n)) for x, n in (term.sources, term.sources[::-1])]
    return [(x, float(n)) for x, n in found if n is not None and x.shape == term.shape]


def is_stored_as(number: float, wanted: float, dtype: str) -> bool:
    """Tells whether a dtype holds two numbers as one; of float64 the last place may be rounded."""
    if dtype == "float64":
        return abs(number - wanted) <= math.ulp(wanted)
    return bool(np.float32(number) == np.float32(wanted))  # which all narrower ones are computed in


def _factor(term: Term, number: float) -> Term | None:
    """Returns x for x * number."""
    return next((x for x, n in _times(term) if is_stored_as(n, number, term.dtype)), None)


def _summand(term: Term, number: float) -> Term | None:
    """Returns x for x + number."""
    return next((x for x, n in _plus(term) if is_stored_as(n, number, term.dtype)), None)


def _exponential(term: Term) -> Plan | None:
    x = _factor(term.sources[0], math.log2(math.e))
    return None if x is None else unary(x, "exp.default")


def _logarithm(term: Term) -> Plan | None:
    x = _factor(term, math.log(2.0))
    return unary(x.sources[0], "log.default") if x is not None and x.op == "log2" else None


def _cosine(term: Term) -> Plan | None:
    x = _summand(term.sources[0], math.pi / 2)
    inner = None if x is None else _factor(x, -1.0)
    return None if inner is None else unary(inner, "cos.default")


def sigmoid_of(term: Term) -> Term | None:
    """Returns x for 1 / (1 + exp2(-1.4427 x))."""
    total = _summand(term.sources[0], 1.0) if term.op == "reciprocal" else None
    if total is None or total.op != "exp2":
        return None
    return _factor(total.sources[0], -math.log2(math.e))


def _sigmoid(term: Term) -> Plan | None:
    x = sigmoid_of(term)
    return None if x is None else unary(x, "sigmoid.default")


def _tanh(term: Term) -> Plan | None:
    """2 * sigmoid(2 x) - 1."""
    doubled = _summand(term, -1.0)
    half = None if doubled is None else _factor(doubled, 2.0)
    inner = None if half is None else sigmoid_of(half)
    x = None if inner is None else _factor(inner, 2.0)
    return None if x is None else unary(x, "tanh.default")


def _reciprocal_root(term: Term) -> Plan | None:
    root = term.sources[0]
    return unary(root.sources[0], "rsqrt.default") if root.op == "sqrt" else None


def negated(term: Term) -> Term | None:
    """Returns x for -x."""
    term = narrow(term)
    return term.sources[0] if term.op == "neg" else _factor(term, -1.0)


def _difference(term: Term) -> Plan | None:
    for a, b in (term.sources[::-1], term.sources):
        minus = negated(a)
        if minus is not None and uniform(b) is None:
            return _pair("sub.Tensor", b, minus, term)
    return None


def _quotient(term: Term) -> Plan | None:
    for a, b in (term.sources, term.sources[::-1]):
        b = narrow(b)
        if b.op == "reciprocal" and uniform(b) is None and sigmoid_of(b) is None:
            if b.sources[0].op == "sqrt":
                continue  # a reciprocal root is a factor
            number = uniform(a)
            if number is None:
                return _pair("div.Tensor", a, b.sources[0], term)
    return None


def _pair(name: str, a: Term, b: Term, term: Term) -> Plan | None:
    """Returns the plan of an operator of two terms that broadcast to a third."""
    pair = [narrow(a), narrow(b)]
    if _broadcast(pair) != term.shape:
        pair = [a, b]
    return operator(name, pair) if _broadcast(pair) == term.shape else None


def _negation(term: Term) -> Plan | None:
    x = _factor(term, -1.0)
    return None if x is None else unary(x, "neg.default")


def _minimum(term: Term) -> Plan | None:
    """-max(-a, -b)."""
    largest = _factor(term, -1.0)
    if largest is None or largest.op != "max":
        return None
    for a, b in (largest.sources, largest.sources[::-1]):
        x, number = negated(a), uniform(b)
        if x is not None and number is not None and x.shape == term.shape:
            return unary(x, "clamp_max.default", -number)
    both = [negated(s) for s in largest.sources]
    if both[0] is None or both[1] is None:
        return None
    return _pair("minimum.default", both[0], both[1], term)


def _absolute(term: Term) -> Plan | None:
    """x * sign(x)."""
    for x, sign in (term.sources, term.sources[::-1]):
        if _signed(sign) is x:
            return unary(x, "abs.default")
    return None


def _signed(term: Term) -> Term | None:
    """Returns x for where(x != 0, where(x < 0, -1, 1), 0)."""
    if term.op != "where" or uniform(term.sources[2]) != 0:
        return None
    nonzero, inner, _ = term.sources
    if inner.op != "where" or [uniform(s) for s in inner.sources[1:]] != [-1, 1]:
        return None
    less = inner.sources[0]
    if nonzero.op != "cmpne" or less.op != "cmplt":
        return None
    fits = uniform(nonzero.sources[1]) == 0 and uniform(less.sources[1]) == 0
    x = nonzero.sources[0]
    return x if fits and less.sources[0] is x else None


def _equal(term: Term) -> Plan | None:
    """(a != b) != True."""
    inner, flag = term.sources
    if uniform(flag) is not True or inner.op != "cmpne" or inner.sources[0].dtype == "bool":
        return None
    a, b = _stripped(inner)
    number = uniform(b)
    if inner.shape != term.shape:
        return None
    if number is not None and a.shape == term.shape:
        return unary(a, "eq.Scalar", number)
    return operator("eq.Tensor", (a, b)) if _broadcast([a, b]) == term.shape else None


_FORMULAS: dict[str, tuple[Callable[[Term], Plan | None], ...]] = {
    "exp2": (_exponential,),
    "sin": (_cosine,),
    "reciprocal": (_sigmoid, _reciprocal_root),
    "mul": (_absolute, _logarithm, _minimum, _negation, _quotient),
    "add": (_tanh, _difference),
    "cmpne": (_equal,),
}
