"""Plans: how a term becomes nodes, decided from the outputs backwards, before any node is made.

A recovery looks at a term and says which other terms it needs and how nodes are made of them. What
lies between is then never built, unless somebody else needs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from npusim.frontends.tinygrad.builder import Builder
from npusim.frontends.tinygrad.terms import Term
from npusim.ir.graph import Value

Build = Callable[..., Value]


@dataclass(frozen=True)
class Plan:
    """How a term is computed.

    Attributes:
        sources: the terms whose values are needed.
        build: called as build(builder, *values); returns a value of the term's shape and dtype.
        recovered: the operation that was recognised, for the report; "" for one taken as it is.
        problem: what keeps it from being the operator alone; another plan is better then.
    """

    sources: tuple[Term, ...]
    build: Build
    recovered: str = ""
    problem: str = ""


Recovery = Callable[[Term], "Plan | None"]


def unary(term: Term, name: str, *args: Any, **kwargs: Any) -> Plan:
    """Returns the plan of an ATen operator of one term."""
    return Plan((term,), lambda graph, x: graph.op(name, x, *args, **kwargs))


def operator(name: str, sources: Sequence[Term], *args: Any) -> Plan:
    """Returns the plan of an ATen operator of several terms."""
    return Plan(tuple(sources), lambda graph, *values: graph.op(name, *values, *args))


def arranged(
    graph: Builder,
    x: Value,
    dims: dict[int, int],
    groups: Sequence[Sequence[int]],
    sizes: Sequence[int],
) -> Value:
    """Returns a value with one dimension a group of axes, flattened in their order.

    Args:
        dims: the dimension of the value that each axis is; others are of size 1.
        groups: axes; those that are no dimension must be of size 1.
        sizes: of the axes.
    """
    wanted = [dims[a] for group in groups for a in group if a in dims]
    moving = iter(wanted)
    used = set(wanted)
    order = [next(moving) if d in used else d for d in range(len(x.type.shape))]
    x = graph.ordered(x, order)
    shape = []
    for group in groups:
        size = 1
        for axis in group:
            size *= sizes[axis]
        shape.append(size)
    return graph.view(x, shape)
