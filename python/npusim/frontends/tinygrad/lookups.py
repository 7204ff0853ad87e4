"""Recovers lookups: rows of a table chosen by an index, which tinygrad writes as a masked sum.

The sum over v of where(v == index, table[v], 0) is table[index]; outside the table it is a zero in
tinygrad, and an error of the run here. That the compared numbers are 0, 1, 2 … is checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npusim.frontends.tinygrad.builder import Builder
from npusim.frontends.tinygrad.contractions import simplest
from npusim.frontends.tinygrad.index import Access, Linear, loop
from npusim.frontends.tinygrad.known import evaluate, uniform
from npusim.frontends.tinygrad.plans import Plan, arranged
from npusim.frontends.tinygrad.terms import Term
from npusim.ir.graph import Value

_INDICES = ("int32", "int64")


@dataclass(frozen=True)
class _Lookup:
    """table read at `axis` = index.

    Attributes:
        axis: the axis summed over.
    """

    axis: int
    index: Access
    table: Access


def lookup(term: Term) -> Plan | None:
    """Plans a masked sum as a lookup; a recovery."""
    found = _masked(term)
    if found is None:
        return None
    free = [a for a in range(len(found.table.sizes)) if a not in term.arg[1]]
    shared = found.index.axes & found.table.axes
    chosen = [a for a in free if a in found.index.axes]
    kept = [a for a in free if a in found.table.axes and a not in shared]
    ones = [a for a in free if a not in (*chosen, *kept)]
    if not shared:
        return _rows(term, found, chosen, kept, ones)
    return None if kept else _gathered(term, found, chosen, ones)


def _masked(term: Term) -> _Lookup | None:
    """Returns the lookup that a sum is, or None."""
    if term.op != "reduce" or term.arg[0] != "add" or term.sources[0].op != "where":
        return None
    source = term.sources[0]
    summed = [a for a in term.arg[1] if source.shape[a] > 1]
    mask, table, other = source.sources
    if len(summed) != 1 or uniform(other) != 0 or isinstance(uniform(other), bool):
        return None
    compared = _equality(mask)
    if compared is None:
        return None
    reading = simplest(loop(table, source.shape))
    (axis,) = summed
    for places, index in (compared, compared[::-1]):
        at, what = (_masking(each, mask, source.shape) for each in (places, index))
        if at.axes != {axis} or axis in what.axes or not places.known or index.known:
            continue
        fits = reading.is_simple() and what.is_simple() and axis in reading.axes
        if fits and what.term.dtype in _INDICES and _counts(at, source.shape[axis]):
            return _Lookup(axis, what, reading)
    return None


def _equality(mask: Term) -> tuple[Term, Term] | None:
    """Returns the two sides of an equality that a mask is, perhaps moved."""
    while mask.op in ("reshape", "expand"):
        mask = mask.sources[0]
    if mask.op == "cmpeq":
        return mask.sources[0], mask.sources[1]
    if mask.op == "cmpne" and uniform(mask.sources[1]) is True:
        inner = mask.sources[0]
        if inner.op == "cmpne":
            return inner.sources[0], inner.sources[1]
    return None


def _masking(side: Term, mask: Term, shape: tuple[int, ...]) -> Access:
    """Returns how the loop reads a side of a comparison that its mask was made of."""
    access = simplest(loop(mask, shape))
    inner = access.term
    while inner.op == "cmpne" and inner is not side and uniform(inner.sources[1]) is True:
        inner = inner.sources[0]
    first = len(inner.shape) - len(side.shape)
    pairs = zip(access.index[first:], side.shape, strict=True)
    index = tuple(i if n > 1 else Linear() for i, n in pairs)
    return simplest(Access(side, index, (), shape))


def _counts(access: Access, size: int) -> bool:
    """Tells whether a known term is 0, 1, 2 … along its only axis."""
    values = evaluate(access.term)
    return values is not None and np.array_equal(values.reshape(-1), np.arange(size))


def _rows(term: Term, found: _Lookup, chosen: list[int], kept: list[int], ones: list[int]) -> Plan:
    index, table, sizes = found.index, found.table, found.table.sizes

    def build(graph: Builder, at: Value, rows: Value) -> Value:
        at = arranged(graph, at, index.dims(), [[a] for a in chosen], sizes)
        rows = arranged(graph, rows, table.dims(), [[found.axis], kept], sizes)
        y = graph.op("embedding.default", rows, at)
        return _laid_out(graph, y, [*chosen, *kept, *ones], sizes, term)

    return Plan((index.term, table.term), build, "embedding")


def _gathered(term: Term, found: _Lookup, chosen: list[int], ones: list[int]) -> Plan:
    index, table, sizes = found.index, found.table, found.table.sizes
    alone = [a for a in chosen if a not in table.axes]
    shared = [a for a in chosen if a in table.axes]

    def build(graph: Builder, at: Value, rows: Value) -> Value:
        rows = arranged(graph, rows, table.dims(), [shared, [found.axis]], sizes)
        at = arranged(graph, at, index.dims(), [shared, alone], sizes)
        y = graph.op("gather.default", rows, 1, graph.cast(at, "int64"))
        return _laid_out(graph, y, [*shared, *alone, *ones], sizes, term)

    return Plan((index.term, table.term), build, "gather")


def _laid_out(
    graph: Builder, y: Value, order: list[int], sizes: tuple[int, ...], term: Term
) -> Value:
    y = graph.view(y, [sizes[a] for a in order])
    places = [order.index(a) for a in sorted(order)]
    return graph.view(graph.ordered(y, places), term.shape)
