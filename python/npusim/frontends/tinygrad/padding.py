"""Recovers padding with a number, and concatenation: what tinygrad writes with zeros around.

where(mask, zero padded, number) pads with the number if the mask is true exactly inside. A sum of
zero padded tensors whose boxes fill the result side by side is their concatenation.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.frontends.tinygrad.builder import Builder
from npusim.frontends.tinygrad.index import Access, behind
from npusim.frontends.tinygrad.known import uniform
from npusim.frontends.tinygrad.plans import Plan
from npusim.frontends.tinygrad.terms import Term
from npusim.ir.graph import Value

_MOST_PARTS = 256


def filled(access: Access) -> Access | None:
    """Returns the read after a padding with a number; None where there is none."""
    inner = _filling(access.term)
    if inner is None or access.guards:
        return None
    padded, fill = inner
    inside = replace(access, term=padded)
    if padded.op != "pad":
        return inside
    found = behind(inside)
    return None if found is None else replace(found, fill=fill)


def padding(term: Term) -> Plan | None:
    """Plans a padding, with zeros or with another number; a recovery."""
    inner = _filling(term)
    padded, fill = inner if inner is not None else (term, 0.0)
    if padded.op != "pad":
        return None if inner is None else Plan((padded,), lambda graph, x: x)
    widths = [n for pair in reversed(padded.arg) for n in pair]

    def build(graph: Builder, x: Value) -> Value:
        return graph.op("constant_pad_nd.default", x, widths, fill)

    return Plan((padded.sources[0],), build, "pad" if inner is not None else "")


def _filling(term: Term) -> tuple[Term, float] | None:
    """Returns what a term shows where its mask holds, and the number elsewhere."""
    if term.op != "where":
        return None
    mask, inside, outside = term.sources
    fill = uniform(outside)
    if fill is None or inside.shape != term.shape:
        return None
    if uniform(mask):
        return inside, 0.0
    while mask.op == "cast":
        mask = mask.sources[0]
    fits = mask.op == "pad" and inside.op == "pad" and mask.arg == inside.arg
    if not fits or not uniform(mask.sources[0]):
        return None
    return inside, float(fill)


def concatenation(term: Term) -> Plan | None:
    """Plans a sum of paddings, or a stack, as a concatenation; a recovery."""
    if term.op in ("permute", "reshape"):
        return _stacked(term)
    if term.op not in ("add", "or", "xor"):
        return None
    parts = _parts(term)
    if len(parts) < 2 or any(p.op != "pad" or p.shape != term.shape for p in parts):
        return None
    dims = {d for p in parts for d, widths in enumerate(p.arg) if any(widths)}
    if len(dims) != 1:
        return None
    (dim,) = dims
    parts.sort(key=lambda p: p.arg[dim][0])
    end = 0
    for part in parts:
        if part.arg[dim][0] != end:
            return None
        end += part.sources[0].shape[dim]
    if end != term.shape[dim]:
        return None

    def build(graph: Builder, *values: Value) -> Value:
        return graph.op("cat.default", list(values), dim)

    return Plan(tuple(p.sources[0] for p in parts), build, "cat")


def _stacked(term: Term) -> Plan | None:
    """Plans a stack whose new dimension was moved, and perhaps merged into the one behind it."""
    moved = term.sources[0] if term.op == "reshape" else term
    stack = moved.sources[0] if moved.op == "permute" else moved
    if stack.op != "stack":
        return None
    order = moved.arg if moved is not stack else tuple(range(len(stack.shape)))
    dim = order.index(0)
    if [d for d in order if d] != list(range(1, len(order))):
        return None
    if term.op == "permute":
        return Plan(
            stack.sources, lambda graph, *parts: graph.op("stack.default", list(parts), dim), "cat"
        )
    shape = moved.shape
    merged = (*shape[:dim], *(shape[dim] * n for n in shape[dim + 1 : dim + 2]), *shape[dim + 2 :])
    if dim + 1 == len(shape) or term.shape != merged:
        return None
    return Plan(
        stack.sources, lambda graph, *parts: graph.op("cat.default", list(parts), dim), "cat"
    )


def _parts(term: Term) -> list[Term]:
    """Returns the summands of a sum, nested sums taken apart while they are of paddings."""
    parts: list[Term] = []
    pending = [term]
    while pending and len(parts) < _MOST_PARTS:
        part = pending.pop()
        if part.op == term.op:
            pending.extend(part.sources)
        else:
            parts.append(part)
    return parts
