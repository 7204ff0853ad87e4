"""Terms as they stand: movement, conversions, reductions and writes, one operator or two each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npusim.frontends.tinygrad.builder import Builder
from npusim.frontends.tinygrad.plans import Plan
from npusim.frontends.tinygrad.terms import Term
from npusim.ir.graph import Value


def verbatim(term: Term) -> Plan | None:
    """Plans a term as it stands; a recovery."""
    shape, arg = term.shape, term.arg
    if term.op == "reshape":
        return Plan(term.sources, lambda graph, x: graph.view(x, shape))
    if term.op == "expand":
        return Plan(term.sources, lambda graph, x: graph.expand(x, shape))
    if term.op == "permute":
        return Plan(term.sources, lambda graph, x: graph.permute(x, arg))
    if term.op == "shrink":
        return Plan(term.sources, lambda graph, x: _sliced(graph, x, arg))
    if term.op == "flip":
        return Plan(term.sources, lambda graph, x: graph.op("flip.default", x, list(arg)))
    if term.op == "cast":
        return Plan(term.sources, lambda graph, x: graph.cast(x, term.dtype))
    if term.op == "stack":
        return Plan(term.sources, lambda graph, *parts: graph.op("stack.default", list(parts), 0))
    if term.op == "bitcast":
        dtype = getattr(torch, term.dtype)
        return Plan(term.sources, lambda graph, x: graph.op("view.dtype", x, dtype))
    if term.op == "write":
        return Plan(term.sources, lambda graph, x, y: _written(graph, x, y, arg))
    return _reduction(term) if term.op == "reduce" else None


def _sliced(graph: Builder, x: Value, bounds: Sequence[tuple[int, int]]) -> Value:
    for dim, (start, end) in enumerate(bounds):
        if (start, end) != (0, x.type.shape[dim]):
            x = graph.op("slice.Tensor", x, dim, start, end, 1)
    return x


def _written(graph: Builder, base: Value, part: Value, starts: Sequence[int]) -> Value:
    """Returns the base with a box of it replaced, one dimension after the other."""
    shape, box = base.type.shape, part.type.shape
    dims = [d for d, n in enumerate(shape) if box[d] != n]
    for number, dim in enumerate(dims):
        around = base
        for outer in dims[number + 1 :]:
            start = starts[outer]
            around = graph.op("slice.Tensor", around, outer, start, start + box[outer], 1)
        start = starts[dim]
        part = graph.op("slice_scatter.default", around, part, dim, start, start + box[dim], 1)
    return part


def _reduction(term: Term) -> Plan:
    operation, axes = term.arg
    dims = list(axes)

    def build(graph: Builder, x: Value) -> Value:
        if not dims:
            return graph.cast(x, term.dtype)
        if operation == "max":
            if x.type.dtype == "bool":
                y = graph.op("any.dims", x, dims, True)
            else:
                y = graph.op("amax.default", x, dims, True)
        elif operation == "mul":
            y = x
            for dim in dims:
                y = graph.op("prod.dim_int", y, dim, True)
        else:
            whole = x.type.dtype in ("bool", "int8", "int16", "int32", "int64", "uint8")
            dtype = torch.int64 if whole else None
            y = graph.op("sum.dim_IntList", x, dims, True, dtype=dtype)
        return graph.view(graph.cast(y, term.dtype), term.shape)

    return Plan(term.sources, build)
