"""Recovers batch norm with fixed statistics: (x - mean) * weight * rsqrt(var + eps) + bias.

Layer norm and RMS norm are means, roots and products, which passes read for all sources of models.
"""

from __future__ import annotations

from npusim.frontends.tinygrad.builder import Builder
from npusim.frontends.tinygrad.known import uniform
from npusim.frontends.tinygrad.plans import Plan
from npusim.frontends.tinygrad.pointwise import negated
from npusim.frontends.tinygrad.terms import Term
from npusim.ir.graph import Value

_FLOATS = ("float16", "bfloat16", "float32")


def batch_norm(term: Term) -> Plan | None:
    """Plans a batch norm of x[n, c, …] in evaluation; a recovery."""
    if term.op not in ("add", "mul") or term.dtype not in _FLOATS or len(term.shape) < 2:
        return None
    body, bias = _channels(term, "add")
    scaled = body if bias is not None else term
    factors: list[Term] = []
    while scaled.op == "mul" and len(factors) < 3:
        inner, factor = _channels(scaled, "mul")
        if factor is None:
            break
        factors.append(factor)
        scaled = inner
    spreads = [(f, _spread(f)) for f in factors]
    found = [s for _, s in spreads if s is not None]
    weights = [f for f, s in spreads if s is None]
    centred, mean = _channels(scaled, "add")
    minus = None if mean is None else negated(mean)
    shift = None if minus is None else _vector(minus, term.shape[1])
    if len(found) != 1 or len(weights) > 1 or shift is None or centred.shape != term.shape:
        return None
    variance, eps = found[0]
    parts = [p for p in (*weights, bias) if p is not None]
    both = len(parts) == 2

    def build(graph: Builder, x: Value, mean: Value, var: Value, *rest: Value) -> Value:
        weight = rest[0] if weights else None
        offset = rest[-1] if bias is not None and (both or not weights) else None
        return graph.op("batch_norm.default", x, weight, offset, mean, var, False, 0.0, eps, False)

    vectors = [_vector(p, term.shape[1]) or p for p in parts]
    if any(len(v.shape) != 1 for v in vectors):
        return None
    return Plan((centred, shift, variance, *vectors), build, "batch_norm")


def _channels(term: Term, op: str) -> tuple[Term, Term | None]:
    """Returns x and the static operand with a number for each channel, of x op that."""
    if term.op == op:
        for x, other in (term.sources, term.sources[::-1]):
            if other.static and not x.static and x.shape == term.shape:
                inner = negated(other)
                if _vector(other if inner is None else inner, term.shape[1]) is not None:
                    return x, other
    return term, None


def _vector(term: Term, channels: int) -> Term | None:
    """Returns the vector that a term shows along dimension 1 of a larger one."""
    rank = len(term.shape)
    while term.op in ("expand", "reshape"):
        source = term.sources[0]
        if source.shape == (channels,):
            kept = [d for d, n in enumerate(term.shape) if n != 1]
            fits = kept == [rank - len(term.shape) + 1] or (not kept and channels == 1)
            return source if fits or _is_column(term.shape, channels) else None
        term = source
    return term if term.op not in ("add", "mul") and _is_column(term.shape, channels) else None


def _is_column(shape: tuple[int, ...], channels: int) -> bool:
    """Tells whether a shape has only channels: [1, c, 1, …], or without the first."""
    lead = shape[1:] if shape[:1] == (1,) else shape
    return lead[:1] == (channels,) and all(n == 1 for n in lead[1:])


def _spread(term: Term) -> tuple[Term, float] | None:
    """Returns (variance, eps) for a vector of 1 / sqrt(variance + eps)."""
    while term.op in ("expand", "reshape"):
        term = term.sources[0]
    root = term.sources[0] if term.op == "reciprocal" else term
    total = root.sources[0] if root.op == "sqrt" and root is not term else None
    if total is None or total.op != "add":
        return None
    for variance, number in (total.sources, total.sources[::-1]):
        eps = uniform(number)
        while variance.op in ("expand", "reshape"):
            variance = variance.sources[0]
        if eps is not None and variance.static and len(variance.shape) == 1:
            return variance, float(eps)
    return None
