"""From a cut to partitions: every group becomes a graph of its own, and what crosses is listed.

Owns what a partition reads and gives. A state that one native partition alone reads and updates
stays in its program; any other is carried: an input of whoever reads it, and an output of whoever
makes its next value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from npusim.errors import GraphError, TargetConstraintError
from npusim.ir.graph import Graph
from npusim.ir.subgraph import live_inputs, size_witnesses, subgraph
from npusim.ir.types import HOST_DTYPES
from npusim.ir.verify import verify_graph
from npusim.partition.grouping import Cut, with_fixed
from npusim.partition.plan import CALLER, NATIVE, PYTORCH, Partition, TransferOp


@dataclass(frozen=True, slots=True)
class _Group:
    """Nodes of a partition to be: its own and copies, and fixed values it gives besides."""

    native: bool
    at_load: bool
    own: frozenset[str]
    nodes: frozenset[str]
    extra: tuple[str, ...] = ()


def build_partitions(graph: Graph, at: Cut) -> tuple[Partition, ...]:
    """Returns the partitions of a cut graph, none of them compiled."""
    groups = _groups(graph, at)
    local = _local_states(graph, groups)
    reads = [live_inputs(graph, group.nodes, local.get(i, ())) for i, group in enumerate(groups)]
    seen = {o.value for o in graph.outputs}
    seen.update(u.value for u in graph.updates if u.name not in _flat(local))
    partitions = []
    for index, group in enumerate(groups):
        wanted = set(seen).union(*(r for i, r in enumerate(reads) if i != index))
        given = (v.name for n in graph.nodes if n.name in group.own for v in n.outputs)
        outputs = dict.fromkeys((*(v for v in given if v in wanted), *group.extra))
        name, states = f"{graph.name}.{index}", local.get(index, ())
        part = subgraph(graph, group.nodes, outputs, states=states, name=name)
        sizes = size_witnesses(part, graph.types)
        part = verify_graph(replace(part, inputs=(*part.inputs, *sizes)))
        executor = NATIVE if group.native else PYTORCH
        witnesses = tuple(value.name for value in sizes)
        partitions.append(Partition(index, executor, group.at_load, part, witnesses=witnesses))
    return tuple(partitions)


def check_order(graph: Graph, partitions: tuple[Partition, ...]) -> None:
    """Checks that everything a partition reads, or the caller receives, has been made before.

    Raises:
        GraphError: names the value that is not.
    """
    ready = {v.name for v in (*graph.inputs, *graph.states)}
    for partition in partitions:
        missing = [name for name in partition.inputs if name not in ready]
        if missing:
            raise GraphError(
                f"partition {partition.index} reads {missing[0]!r}, which none before it makes."
            )
        ready.update(partition.outputs)
    local = {s.name for p in partitions for s in p.graph.states}
    for shown in (*graph.outputs, *(u for u in graph.updates if u.name not in local)):
        if shown.value not in ready:
            raise GraphError(f"no partition makes {shown.value!r}, which is seen outside.")


def find_transfers(graph: Graph, partitions: tuple[Partition, ...]) -> tuple[TransferOp, ...]:
    """Returns what crosses between the executors of partitions, in the order of first use.

    Raises:
        TargetConstraintError: a value would cross to the device, which lacks its dtype.
    """
    made = {value: p for p in partitions for value in p.outputs}
    carried = _sides_of_states(graph, partitions)
    crossed: set[tuple[str, str]] = set()
    transfers = []
    for partition in partitions:
        for value in partition.inputs:
            source = made.get(value)
            side = source.executor if source is not None else carried.get(value)
            if side in (None, partition.executor) or (value, partition.executor) in crossed:
                continue
            crossed.add((value, partition.executor))
            index, at_load = (CALLER, False) if source is None else (source.index, source.at_load)
            kind = graph.types[value]
            if partition.is_native and kind.dtype in HOST_DTYPES:
                raise TargetConstraintError(
                    f"{value!r} cannot cross to partition {partition.index}: no device has dtype "
                    f"{kind.dtype}."
                )
            transfers.append(
                TransferOp(value, kind, index, partition.index, partition.executor, at_load)
            )
    return tuple(transfers)


def _groups(graph: Graph, at: Cut) -> list[_Group]:
    """Returns the groups with copies of what they read that is fixed."""
    rounds = list(at.rounds)
    strange, plain = _fixed_results(graph, at)
    if plain and not any(native for native, _ in rounds):
        rounds.append((True, ()))
    last = max((i for i, (native, _) in enumerate(rounds) if native), default=-1)
    groups = []
    if at.load or strange:
        load = frozenset(at.load)
        groups.append(_Group(False, True, load, load, strange))
    for i, (native, names) in enumerate(rounds):
        extra = plain if i == last else ()
        nodes = with_fixed(graph, names, extra, at) if native else set(names)
        groups.append(_Group(native, False, frozenset(names), frozenset(nodes), extra))
    return groups


def _fixed_results(graph: Graph, at: Cut) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the weights, constants and fixed values seen outside that nothing at load makes.

    First those whose dtype no device has.
    """
    stored = {w.name for w in graph.weights} | {c.name for c in graph.constants}
    strange: list[str] = []
    plain: list[str] = []
    for name in dict.fromkeys(o.value for o in (*graph.outputs, *graph.updates)):
        node = graph.producers.get(name)
        made = node is not None and node.name in at.load  # and given by what runs there
        fixed = node is not None and node.name in at.fixed and not made
        if fixed or name in stored:
            chosen = strange if graph.types[name].dtype in HOST_DTYPES else plain
            chosen.append(name)
    return tuple(strange), tuple(plain)


def _local_states(graph: Graph, groups: list[_Group]) -> dict[int, tuple[str, ...]]:
    """Returns, by group, the states that a native group alone reads and updates."""
    updates = {u.name: u.value for u in graph.updates}
    local: dict[int, tuple[str, ...]] = {}
    for state in graph.states:
        if state.name in graph.output_values:
            continue
        users = {node.name for node in graph.users[state.name]}
        if state.name in updates:
            producer = graph.producers.get(updates[state.name])
            users.add("" if producer is None else producer.name)
        homes = [i for i, group in enumerate(groups) if users & group.nodes]
        if len(homes) == 1 and groups[homes[0]].native and users <= groups[homes[0]].nodes:
            local[homes[0]] = (*local.get(homes[0], ()), state.name)
    return local


def _flat(local: Mapping[int, tuple[str, ...]]) -> set[str]:
    return {name for names in local.values() for name in names}


def _sides_of_states(graph: Graph, partitions: tuple[Partition, ...]) -> dict[str, str]:
    """Returns, by carried state, the executor that holds it between calls.

    The one that makes its next value; where no partition does, the first that reads it.
    """
    made = {value: p.executor for p in partitions for value in p.outputs}
    updates = {u.name: u.value for u in graph.updates}
    sides = {}
    for state in graph.states:
        readers = (p.executor for p in partitions if state.name in p.inputs)
        side = made.get(updates.get(state.name, ""), next(readers, None))
        if side is not None:
            sides[state.name] = side
    return sides
