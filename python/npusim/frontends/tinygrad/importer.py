"""From tinygrad to a Graph: captures what a model computes, plans it, and builds the nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npusim.errors import Error, ExportError
from npusim.frontends import MAX_CONSTANT_BYTES
from npusim.frontends.tinygrad import releases
from npusim.frontends.tinygrad.builder import Builder
from npusim.frontends.tinygrad.capture import Captured, capture, graph_of
from npusim.frontends.tinygrad.contractions import contraction, product_of, simplest
from npusim.frontends.tinygrad.index import loop
from npusim.frontends.tinygrad.known import Array, evaluate, uniform
from npusim.frontends.tinygrad.lookups import lookup
from npusim.frontends.tinygrad.norms import batch_norm
from npusim.frontends.tinygrad.padding import concatenation, padding
from npusim.frontends.tinygrad.plans import Plan, Recovery
from npusim.frontends.tinygrad.pointwise import formula, scalar_operation
from npusim.frontends.tinygrad.pooling import averaged, pooling
from npusim.frontends.tinygrad.reader import Reader
from npusim.frontends.tinygrad.terms import WEAK, Term
from npusim.frontends.tinygrad.verbatim import verbatim
from npusim.frontends.tinygrad.weights import LazyWeights, elements_of
from npusim.frontends.tinygrad.windows import convolution
from npusim.ir.graph import Graph, Output, Source, Value
from npusim.ir.rewrite import Names, drop_dead
from npusim.ir.verify import verify_graph

RECOVERIES: tuple[Recovery, ...] = (
    concatenation,
    padding,
    lookup,
    convolution,  # before products: a convolution is one of windows that overlap
    contraction,
    averaged,  # before pooling: it is pooling and a factor
    pooling,
    batch_norm,  # before formulas, which take its subtraction
    formula,
    scalar_operation,
    verbatim,  # last: everything has a meaning as it stands
)


@dataclass(frozen=True)
class Report:
    """What was recognised.

    Attributes:
        recovered: how many of each operation: "linear", "matmul", "conv2d", "mean" ….
        unrecovered: sums of products, or of parts chosen by a mask, that were not recognised and
            run as they are written, each with its shapes and tinygrad's method it comes from.
    """

    recovered: Mapping[str, int]
    unrecovered: tuple[str, ...]

    def __str__(self) -> str:
        found = ", ".join(f"{n} {name}" for name, n in sorted(self.recovered.items()))
        missed = "".join(f"\n  {each}" for each in self.unrecovered)
        return f"recovered: {found or 'nothing'}; not recovered: {missed or 'nothing'}"


@dataclass(frozen=True)
class Imported:
    """A model that was imported.

    Attributes:
        graph: the model without its weights.
        weights: arrays by key, for `npusim.load`; each is read from its tensor when it is asked
            for, and that of a tensor on the CPU is its memory.
        report: what was recognised.
    """

    graph: Graph
    weights: Mapping[str, Any]
    report: Report


def from_tinygrad(
    model: Callable[..., Any] | Any,
    example_inputs: Any = (),
    *,
    weights: Mapping[str, Any] | None = None,
    name: str | None = None,
) -> Imported:
    """Imports a model written in tinygrad.

    Args:
        model: a function of tensors (a TinyJit counts as what it was made of), or an object with
            `__call__`. Or tensors that were computed and not realised, in nested lists and dicts.
        example_inputs: a tensor, or a tuple of arguments. Of tensors only shape and dtype count;
            other values become part of the graph. They name the graph's inputs after the
            function's parameters. Where `model` is tensors: what they were computed from.
        weights: tensors by key; by default `nn.state.get_state_dict(model)`. Those that the model
            assigns to are states of the graph and must start as zeros.
        name: the graph's name; by default that of the function or class.

    Raises:
        Error: tinygrad is not installed, or in a release that is not read.
        ExportError: the model asks for values while it is imported, has symbolic shapes, or
            computes what has no meaning here.
    """
    release = releases.installed()
    from tinygrad import Tensor

    if release.is_training():
        raise ExportError(
            "tinygrad is in training mode.", hint="Set Tensor.training or TRAINING to false."
        )
    called = callable(model) and not isinstance(model, Tensor)
    named = _weights_of(model) if weights is None and called else dict(weights or {})
    if called:
        captured = capture(model, example_inputs, named)
    else:
        captured = graph_of(model, example_inputs, named)
    return _Import(captured, release, name or _title(model, called)).run()


def _title(model: Any, called: bool) -> str:
    """Returns the name of a function, or of an object's class."""
    plain = getattr(model, "fxn", None) or model
    return str(getattr(plain, "__name__", type(plain).__name__)) if called else "model"


def _weights_of(model: Any) -> dict[str, Any]:
    from tinygrad import nn

    owner = getattr(model, "fxn", model)  # of a TinyJit
    owner = getattr(owner, "__self__", owner)  # of a bound method
    return dict(nn.state.get_state_dict(owner))


class _Import:
    def __init__(self, captured: Captured, release: releases.Release, name: str) -> None:
        for key in captured.updates:
            for leaf, *_ in captured.leaves.values():
                if leaf.kind == "weight" and key in (leaf.name, *leaf.aliases):
                    leaf.kind = "state"
        self.captured, self.release, self.name = captured, release, name
        self.reader = Reader(release, captured.leaves, elements_of)
        self.plans: dict[int, tuple[Term, Plan | None]] = {}
        self.values: dict[int, Value] = {}
        self.graph = Builder()

    def run(self) -> Imported:
        self._check_states()
        outputs = [(name, self._read(uop)) for name, uop in self.captured.outputs]
        updates = self._updates()
        leaves = [self.reader.leaves[uop] for uop in self.captured.leaves]
        roots = [t for _, t in outputs] + [t for _, t in updates.values()]
        self._plan(roots)
        if self.captured.computed:
            self._check_inputs(leaves)
        self._build(leaves)
        names = Names()
        built = Graph(
            self.name,
            tuple(self.graph.inputs),
            tuple(Output(names.fresh(n), self.values[t.index].name) for n, t in outputs),
            tuple(self.graph.weights),
            tuple(self.graph.constants.values()),
            tuple(self.graph.nodes),
            tuple(self.graph.states),
            tuple(
                Output(self.values[state.index].name, self.values[value.index].name)
                for state, value in updates.values()
                if state is not value
            ),
        )
        graph = verify_graph(drop_dead(built))
        keys = {w.key for w in graph.weights}
        tensors = {k: t for k, t in self.captured.weights.items() if k in keys}
        return Imported(graph, LazyWeights(tensors), self._report())

    def _read(self, uop: Any) -> Term:
        """Returns the term of a result, with the dtype it has outside."""
        term = self.reader.read(uop)
        return self.reader.terms.cast(term, WEAK.get(term.dtype, term.dtype))

    def _updates(self) -> dict[str, tuple[Term, Term]]:
        return {
            key: (self.reader.leaves[before], self._read(after))
            for key, (before, after) in self.captured.updates.items()
        }

    def _check_inputs(self, leaves: Sequence[Term]) -> None:
        """Refuses inputs that tensors no longer depend on."""
        unread = [t.arg.name for t in leaves if t.arg.kind == "input" and t.index not in self.plans]
        if unread:
            raise ExportError(
                f"The tensors do not depend on {', '.join(unread)}: they were realised, or "
                "computed from something else.",
                hint="Give a function of the inputs, or tensors that were not realised.",
            )

    def _check_states(self) -> None:
        """Refuses states that do not start as zeros."""
        for key in self.captured.updates:
            start = self.captured.weights[key].uop
            elements = elements_of(start)
            if elements is None:  # not computed yet
                elements = uniform(Reader(self.release, {}, elements_of).read(start))
            if elements is None or np.any(np.asarray(elements) != 0):
                raise ExportError(
                    f"The model assigns to {key}, and it does not start as zeros; states do.",
                    hint="Import with a fresh cache.",
                )

    # ---- planning, from the outputs backwards ----

    def _plan(self, roots: Sequence[Term]) -> None:
        pending = list(roots)
        problems: list[str] = []
        while pending:
            term = pending.pop()
            if term.index in self.plans:
                continue
            if term.op == "leaf" and term.arg.kind == "undefined":
                raise ExportError(
                    f"The model reads an empty tensor of {term.numel} elements that is neither an "
                    "input nor a weight.",
                    hint="Name it, weights={'cache': tensor}, or give it as an example input.",
                )
            if term.op == "leaf" and term.arg.kind != "constant":
                self.plans[term.index] = term, None
                continue
            plan = _known(term) or _first(term)
            if plan is None:
                problems.append(f"{term.op} of {term.dtype}{list(term.shape)}{_of(term)}")
                continue
            self.plans[term.index] = term, plan
            pending.extend(plan.sources)
        if problems:
            listed = "".join(f"\n  {p}" for p in dict.fromkeys(problems))
            raise ExportError(f"{self.name} computes what has no meaning here:{listed}")

    def _build(self, leaves: Sequence[Term]) -> None:
        needed = sorted(self.plans)
        for term in leaves:
            if term.index in self.plans or term.arg.kind in ("input", "state"):
                self.values[term.index] = self.graph.leaf(term)
        for index in needed:
            term, plan = self.plans[index]
            if plan is None:
                continue
            self.graph.source = Source(f"Tensor.{term.trace}") if term.trace else None
            operands = [self.values[s.index] for s in plan.sources]
            try:
                value = plan.build(self.graph, *operands)
            except Error as error:
                raise type(error)(f"{term.op}{_of(term)}: {error}") from None
            value = self.graph.expand(self.graph.cast(value, term.dtype), term.shape)
            self.values[index] = value

    def _report(self) -> Report:
        plans = [(term, plan) for term, plan in self.plans.values() if plan is not None]
        missed = [_missed(term) for term, plan in plans if not plan.recovered]
        counts = Counter(plan.recovered for _, plan in plans if plan.recovered)
        return Report(dict(counts), tuple(filter(None, missed)))


def _missed(term: Term) -> str:
    """Describes a sum that repeats what it sums, and was not recognised; "" for any other term."""
    if term.op != "reduce" or term.arg[0] != "add":
        return ""
    source = term.sources[0]
    product = product_of(term)
    if product is not None:
        reads, what = [product.a, product.b], "{} * {}"
    elif source.op == "where":
        condition, *values = source.sources
        reads = [simplest(loop(v, source.shape)) for v in (condition, *values[:1])]
        what = "{1} where {0}"
    else:
        return ""
    axes = [read.axes for read in reads]
    if axes[0] == axes[1] or not all(axes):
        return ""  # nothing is gained where neither is broadcast
    return f"sum of {what.format(*(list(r.term.shape) for r in reads))}{_of(term)}"


def _first(term: Term) -> Plan | None:
    return next((plan for plan in (r(term) for r in RECOVERIES) if plan is not None), None)


def _known(term: Term) -> Plan | None:
    """Plans what is known as a constant; what is one number as that number, broadcast."""
    if not term.known:
        return None
    number = uniform(term)
    if number is not None:
        return Plan((), lambda graph: graph.constant(np.asarray(number), term.dtype))
    if term.op == "expand" or term.numel * 4 > MAX_CONSTANT_BYTES:
        return None
    data = evaluate(term)
    if data is None:
        return None
    known: Array = data
    return Plan((), lambda graph: graph.constant(known, term.dtype))


def _of(term: Term) -> str:
    return f" (in Tensor.{term.trace})" if term.trace else ""
