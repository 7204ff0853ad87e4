"""Nodes that run on either side become as few partitions as the dependences allow.

Owns the cut. A partition is not a stretch of the node list: nodes of one side that do not wait for
each other through the other side share a partition, wherever they stand. Every node gets the
earliest round in which all it reads is ready; rounds alternate between the sides, so that there are
as few as the longest alternation in the graph asks for, and every edge leads to the same or a later
round: partitions cannot wait for each other in a circle.
A node that makes much of little, such as an expanded mask, then moves to the round that reads it.

What depends on weights and constants alone belongs to no round. Native partitions hold copies of
the static nodes they read, which their init methods run once; what PyTorch reads or has to compute
is computed once by PyTorch, when the weights are loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from npusim.analysis.shapes import VIEWS
from npusim.errors import GraphError
from npusim.ir.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph cut into groups of nodes, by name, each in the graph's order.

    Attributes:
        fixed: the nodes that give the same at every call: they depend on weights and constants.
        load: what PyTorch computes once, when the weights are loaded.
        shared: those of `load` that programs compute for themselves as well.
        rounds: what runs at each call, in order: whether natively, and the nodes.
    """

    fixed: frozenset[str]
    load: tuple[str, ...]
    shared: frozenset[str]
    rounds: tuple[tuple[bool, tuple[str, ...]], ...]


def cut(graph: Graph, native: Mapping[str, bool], random: Collection[str] = ()) -> Cut:
    """Returns the groups of a graph's nodes.

    Args:
        native: by node, whether the target runs it.
        random: nodes that give something else on each call, whatever they read.
    """
    fixed = _fixed(graph, random)
    rounds = min((_rounds(graph, native, fixed, first) for first in (True, False)), key=len)
    forced = _forced(graph, native, fixed)
    load = _load(graph, native, fixed, forced)
    return Cut(fixed, load, frozenset(load) - forced, rounds)


def check_cut(graph: Graph, at: Cut) -> None:
    """Checks that a cut is one of this graph: every node in one group, none before what it reads.

    Raises:
        GraphError: says what is wrong with it.
    """
    running = [name for _, names in at.rounds for name in names]
    load = set(at.load)
    if sorted((*at.fixed, *running)) != sorted(graph.positions):
        raise GraphError("the groups do not hold every node once.")
    if not at.shared <= load <= at.fixed or len(load) != len(at.load):
        raise GraphError("what is computed at load depends on more than weights.")
    stored = {w.name for w in graph.weights} | {c.name for c in graph.constants}
    number = {name: i for i, (_, names) in enumerate(at.rounds) for name in names}
    for node in graph.nodes:
        producers = [graph.producers.get(i) for i in node.inputs if i is not None]
        if node.name in at.fixed:
            read = {i for i in node.inputs if i is not None} - stored
            if read - {v.name for p in producers if p and p.name in at.fixed for v in p.outputs}:
                raise GraphError(f"node {node.name!r} depends on more than weights.")
            continue
        for producer in producers:
            if producer is not None and number.get(producer.name, -1) > number[node.name]:
                raise GraphError(f"node {node.name!r} runs before what it reads.")


def with_fixed(graph: Graph, names: Collection[str], values: Collection[str], at: Cut) -> set[str]:
    """Returns a native group and copies of the fixed nodes that it reads.

    Args:
        names: the group.
        values: fixed values that it gives besides.
        at: the cut; what only PyTorch computes at load is read from there instead.
    """
    wanted = set(names)
    position = graph.positions
    pending = [i for name in names for i in graph.nodes[position[name]].inputs if i is not None]
    pending += values
    while pending:
        node = graph.producers.get(pending.pop())
        if node is None or node.name in wanted:
            continue
        if node.name in at.load and node.name not in at.shared:
            continue
        if node.name in at.fixed:
            wanted.add(node.name)
            pending += [i for i in node.inputs if i is not None]
    return wanted


def _fixed(graph: Graph, random: Collection[str]) -> frozenset[str]:
    known = {w.name for w in graph.weights} | {c.name for c in graph.constants}
    fixed = set()
    for node in graph.nodes:
        if node.name not in random and all(i is None or i in known for i in node.inputs):
            known.update(v.name for v in node.outputs)
            fixed.add(node.name)
    return frozenset(fixed)


def _forced(graph: Graph, native: Mapping[str, bool], fixed: frozenset[str]) -> set[str]:
    """Returns the fixed nodes that PyTorch has to compute: no program can, or what they read."""
    forced: set[str] = set()
    for node in graph.nodes:
        if node.name in fixed and (not native[node.name] or _reads(node, forced, graph)):
            forced.add(node.name)
    return forced


def _load(
    graph: Graph, native: Mapping[str, bool], fixed: frozenset[str], forced: set[str]
) -> tuple[str, ...]:
    """Returns the fixed nodes that PyTorch has to compute, or whose results PyTorch reads."""
    readers = [n for n in graph.nodes if not native[n.name] or n.name in forced]
    load = set(forced)
    while readers:
        node = readers.pop()
        for value in node.inputs:
            producer = graph.producers.get(value) if value is not None else None
            if producer is not None and producer.name in fixed and producer.name not in load:
                load.add(producer.name)
                readers.append(producer)
    return tuple(n.name for n in graph.nodes if n.name in load)


def _reads(node: Node, names: set[str], graph: Graph) -> bool:
    producers = (graph.producers.get(i) for i in node.inputs if i is not None)
    return any(p is not None and p.name in names for p in producers)


def _rounds(
    graph: Graph, native: Mapping[str, bool], fixed: frozenset[str], first: bool
) -> tuple[tuple[bool, tuple[str, ...]], ...]:
    """Returns the groups when the rounds 0, 2, 4 … run on the side `first`."""
    nodes = [node for node in graph.nodes if node.name not in fixed]
    number: dict[str, int] = {}
    for node in nodes:
        found = (graph.producers.get(i) for i in node.inputs if i is not None)
        reads = (p.name for p in found if p is not None and p.name in number)
        earliest = max((number[name] for name in reads), default=0)
        mine = 0 if native[node.name] == first else 1
        number[node.name] = earliest + (earliest % 2 != mine)
    _postpone(graph, nodes, number)
    groups: dict[int, list[str]] = {}
    for node in nodes:
        groups.setdefault(number[node.name], []).append(node.name)
    return tuple(((i % 2 == 0) == first, tuple(groups[i])) for i in sorted(groups))


def _postpone(graph: Graph, nodes: list[Node], number: dict[str, int]) -> None:
    """Moves nodes that make much of little to the first round that reads them, if on their side.

    What they read is then kept from round to round, not what they make: a mask, and not the mask
    expanded. Views move as well, which cost nothing but where a partition has to give them.
    """
    stored = {w.name for w in graph.weights} | {c.name for c in graph.constants}
    for node in reversed(nodes):
        made = [v.name for v in node.outputs]
        readers = [number[u.name] for v in made for u in graph.users[v] if u.name in number]
        if not readers or any(v in graph.output_values for v in made):
            continue
        delay = min(readers) - number[node.name]
        read = sum(graph.types[i].nbytes for i in set(node.inputs) - stored if i is not None)
        growth = sum(graph.types[v].nbytes for v in made) - read
        if delay and delay % 2 == 0 and (growth > 0 or node.op in VIEWS):
            number[node.name] += delay


def demote(
    graph: Graph,
    native: dict[str, bool],
    worth: Callable[[tuple[str, ...]], bool],
    movable: Callable[[str], bool],
    random: Collection[str] = (),
) -> tuple[str, ...]:
    """Gives native groups that are not worth it to PyTorch, until all are; returns their nodes.

    Args:
        native: changed to say where the nodes run.
        worth: whether a native group saves more than it costs.
        movable: whether PyTorch can run a node, and its place is not pinned.
    """
    moved: list[str] = []
    while True:
        found = [
            names
            for is_native, names in cut(graph, native, random).rounds
            if is_native and all(map(movable, names)) and not worth(names)
        ]
        if not found:
            return tuple(moved)
        for names in found:
            native.update(dict.fromkeys(names, False))
            moved += names
