"""From a graph to a plan: verdicts, placement, the cut, and a program for every native partition.

Owns the loop around compiling. An op that compiles only together with others may lose them to a
cut; what compiling then refuses falls back too, and the graph is cut again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from npusim.compile import Progress, compile
from npusim.errors import Error, GraphError, UnsupportedOpError
from npusim.ir.graph import Graph
from npusim.ir.module import Module, load_ir
from npusim.ir.rewrite import drop_dead
from npusim.ir.specialize import specialize
from npusim.partition.build import build_partitions, find_transfers
from npusim.partition.cost import CostModel
from npusim.partition.placement import (
    Placement,
    Predicate,
    check_pins,
    place,
    refuse_fallback,
    refuse_unsupported,
)
from npusim.partition.plan import Partition, PartitionPlan
from npusim.partition.support import Verdict, assess, kept_off, refusals
from npusim.passes.run import in_products_of_bytes
from npusim.targets import TargetConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wishes:
    """What a caller asks for beside the graph: see `npusim.partition`."""

    predicate: Predicate | None = None
    pin: Mapping[str, str] | None = None
    costs: CostModel | None = None
    sizes: Sequence[Mapping[str, int]] = ()


def draft(
    graph: Graph, target: TargetConfig, wishes: Wishes, verdicts: Mapping[str, Verdict]
) -> tuple[PartitionPlan, Placement]:
    """Returns the plan before anything is compiled; symbolic sizes are weighed as the greatest."""
    costs = wishes.costs or CostModel.of(target)
    greatest = specialize(graph, {s.name: s.high for s in graph.symbols})
    placed = place(greatest, target, verdicts, wishes.predicate, check_pins(wishes.pin), costs)
    partitions = build_partitions(graph, placed.cut)
    transfers = find_transfers(graph, partitions)
    names = (target.name, target.device)
    why = placed.verdicts
    return PartitionPlan(graph, *names, partitions, transfers, why, placed.cut), placed


def make_plan(
    graph: Graph,
    target: TargetConfig,
    wishes: Wishes,
    fallback: str,
    progress: Progress | None,
) -> PartitionPlan:
    """Returns the plan with its programs; the arguments are `npusim.partition`'s."""
    if fallback not in ("cpu", "error"):
        raise Error(f"fallback is {fallback!r}; it is 'cpu' or 'error'.")
    for sizes in wishes.sizes:
        specialize(graph, sizes)  # refuses what calls cannot have
    graph = in_products_of_bytes(graph, target)
    verdicts = assess(graph, target)
    while True:
        plan, _ = draft(graph, target, wishes, verdicts)
        refuse_unsupported(graph, plan.verdicts)
        if fallback == "error" or not target.leaves_nodes:
            refuse_fallback(graph, plan.verdicts, target.name)
        try:
            compiled = tuple(_compiled(p, target, wishes, progress) for p in plan.partitions)
        except UnsupportedOpError as error:
            lost = _lost_by_the_cut(plan, target)
            if not lost:
                raise error
            verdicts = _without(graph, verdicts, lost)
        else:
            logger.info("%s: %s", plan.target, plan.summary())
            for name, verdict in plan.verdicts.items():
                if not verdict.is_native:
                    logger.info("%s runs in PyTorch: %s", name, verdict.reason)
            return replace(plan, partitions=compiled)


def settle(graph: Graph, target: TargetConfig, wishes: Wishes) -> tuple[PartitionPlan, Placement]:
    """Returns the plan that `make_plan` comes to, without its programs."""
    graph = in_products_of_bytes(graph, target)
    verdicts = assess(graph, target)
    while True:
        plan, placed = draft(graph, target, wishes, verdicts)
        lost = {}
        if not all(verdict.is_native for verdict in placed.verdicts.values()):
            lost = _lost_by_the_cut(plan, target)
        if not lost:
            return plan, placed
        verdicts = _without(graph, verdicts, lost)


def graph_of(ir: Graph | Module | str | Path) -> Graph:
    """Returns the one graph to partition, without what no result depends on."""
    found = load_ir(ir) if isinstance(ir, (str, Path)) else ir
    if isinstance(found, Module):
        raise GraphError(
            f"'{found.name}' has several methods; a partition plan has one, because each of its "
            "programs keeps its weights and states for itself.",
            hint=f"Take one of them: ir.methods[{next(iter(found.methods))!r}].",
        )
    if not isinstance(found, Graph):
        raise GraphError(f"Cannot partition a {type(found).__name__}.", hint="Pass an IR.")
    return drop_dead(found)


def _compiled(
    partition: Partition, target: TargetConfig, wishes: Wishes, progress: Progress | None
) -> Partition:
    if not partition.is_native:
        return partition
    graph = partition.graph
    own = {symbol.name for symbol in graph.symbols}
    asked = [{name: n for name, n in sizes.items() if name in own} for sizes in wishes.sizes]
    sizes = [s for i, s in enumerate(asked) if s and s not in asked[:i]]
    program = compile(graph, target, sizes=sizes, progress=progress)
    return replace(partition, program=program)


def _lost_by_the_cut(plan: PartitionPlan, target: TargetConfig) -> dict[str, str]:
    """Returns the nodes that native partitions cannot run, which only the whole graph could."""
    parts = (p.graph for p in plan.partitions if p.is_native)
    return {name: why for part in parts for name, why in refusals(part, target).items()}


def _without(
    graph: Graph, verdicts: Mapping[str, Verdict], refused: Mapping[str, str]
) -> dict[str, Verdict]:
    nodes = (graph.nodes[graph.positions[name]] for name in refused)
    return {**verdicts, **{n.name: kept_off(n, "op", refused[n.name]) for n in nodes}}
