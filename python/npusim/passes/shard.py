"""Splits a model among ranks that compute it together: tensor parallelism.

All ranks run one program over values that are whole on every rank, or split (`analysis/splits.py`).
A product whose input is split along k is a sum of the ranks' products: its weight is split by
columns, and an `npu.all_reduce` behind it adds them up. What is between there and the products that
the split values come from, whose weights are split by rows, is a region: attention of whole heads,
gates, activations. Found backwards from each product, a region is split as a whole or not at all. A
product outside of any region whose weight is large beside its result, such as a vocabulary's head,
is split by rows with an `npu.all_gather` behind it.

What is left is whole on every rank, with a reason (`Sharded.whole`). Methods share weights and
states: what one of them cannot have split is whole in all. A rank's part of a weight is cut where
the checkpoint is loaded (`npu.rank_part`), so a weight may be used whole and in parts.

It changes states' types, and looks at all methods at once, so it is no member of `PIPELINE`; it
runs where `SHARD_BEFORE` stands there: products and attentions have one spelling, and no epilogue
has been joined to what is added after an all_reduce.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from npusim.abi.quantization import Quantization
from npusim.analysis.splits import Flow, Split, divides, flow_from, flow_to
from npusim.errors import TargetConstraintError
from npusim.ir.graph import Graph, Node, Value
from npusim.ir.symbolic import lower
from npusim.ir.types import MOST_RANKS
from npusim.passes.rank_graph import Region, rank_graph
from npusim.passes.recognize_int8 import recognize_int8
from npusim.targets.target_config import TargetConfig

SHARD_BEFORE = recognize_int8
_GATHERED = 8  # elements of a weight for each of the result: fewer are not worth a gather


@dataclass(frozen=True)
class Sharded:
    """Graphs of a rank, and what became of the weights of products.

    Attributes:
        methods: the graphs by name.
        split: weight's key: "rows", "columns", or "rows, gathered".
        whole: weight's key: why every rank has all of it.
    """

    methods: dict[str, Graph]
    split: dict[str, str]
    whole: dict[str, str]


def shard(methods: Mapping[str, Graph], target: TargetConfig, ranks: int) -> Sharded:
    """Returns the methods as each of `ranks` ranks runs them.

    Raises:
        TargetConstraintError: ranks cannot be, the target has no way to exchange values, or nothing
            can be split.
    """
    check_ranks(target, ranks)
    banned: dict[str, str] = {}
    while True:
        plans = {name: _plan(graph, target, ranks, banned) for name, graph in methods.items()}
        fresh = _disagreements(plans, methods)
        if not fresh:
            break
        banned.update(fresh)
    if not any(plan.regions or plan.gathered for plan in plans.values()):
        reasons = {reason for plan in plans.values() for reason in plan.whole.values()}
        raise TargetConstraintError(
            f"Nothing in this model can be split among {ranks} ranks"
            + (": " + "; ".join(sorted(reasons)[:4]) if reasons else " as it has no products")
            + ".",
            hint="Take another number of ranks, or compile it for one.",
        )
    split: dict[str, str] = {}
    whole: dict[str, str] = {}
    for plan in plans.values():
        split.update(plan.split)
        whole.update(plan.whole)
    graphs = {
        name: rank_graph(methods[name], plan.regions, plan.gathered, ranks)
        for name, plan in plans.items()
    }
    return Sharded(graphs, split, {k: why for k, why in whole.items() if k not in split})


def check_ranks(target: TargetConfig, ranks: int) -> None:
    """Raises TargetConstraintError where a target has not that many ranks."""
    if not 2 <= ranks <= MOST_RANKS:
        raise TargetConstraintError(
            f"A model cannot be split among {ranks} ranks.",
            hint=f"Take 2 to {MOST_RANKS}, or leave it whole.",
        )
    if target.npu is not None:
        raise TargetConstraintError(
            f"Target {target.name} describes one machine: several ranks of it are not simulated.",
            hint="Compile for cpu, or for one rank.",
        )
    if not target.has("all_gather"):
        raise TargetConstraintError(
            f"Target {target.name} has no way for ranks to exchange values (all_gather).",
            hint="Compile for cpu, or for one rank.",
        )


@dataclass
class _Plan:
    regions: list[Region] = field(default_factory=list)
    gathered: set[str] = field(default_factory=set)
    split: dict[str, str] = field(default_factory=dict)
    whole: dict[str, str] = field(default_factory=dict)
    parts: dict[str, frozenset[tuple[int, int]]] = field(default_factory=dict)  # by key
    states: dict[str, Split] = field(default_factory=dict)


class _Refused(Exception):
    """Why a region cannot be split."""


def _plan(graph: Graph, target: TargetConfig, ranks: int, banned: Mapping[str, str]) -> _Plan:
    plan, taken = _Plan(), set[str]()
    reasons: dict[str, str] = {}
    products = [node for node in graph.nodes if _is_product(node, graph)]
    for node in products:
        if node.name in taken:
            continue
        try:
            region = _Grower(graph, target, ranks, banned, taken).from_sink(node)
        except _Refused as refused:
            reasons[node.name] = str(refused)
            continue
        plan.regions.append(region)
        taken |= {*region.columns, *region.sinks}
    for node in products:
        if node.name not in taken:
            why = _not_gathered(node, graph, ranks, banned)
            if why is None:
                plan.gathered.add(node.name)
            else:
                reasons[node.name] = f"{why}; {reasons[node.name]}"
    _record(plan, graph, products, reasons, ranks)
    return plan


def _record(
    plan: _Plan, graph: Graph, products: list[Node], reasons: Mapping[str, str], ranks: int
) -> None:
    """Notes how the weights of products are split, and the states."""
    columns = {name: parts for region in plan.regions for name, parts in region.columns.items()}
    sinks = {name for region in plan.regions for name in region.sinks}
    found: dict[str, set[tuple[int, int]]] = {}
    for node in products:
        for key in _keys(node, graph):
            if node.name in sinks:
                part, how = (1, ranks), "columns"
            elif node.name in columns:
                part, how = (0, columns[node.name]), "rows"
            elif node.name in plan.gathered:
                part, how = (0, ranks), "rows, gathered"
            else:
                found.setdefault(key, set()).add((0, 1))
                plan.whole[key] = reasons[node.name]
                continue
            found.setdefault(key, set()).add(part)
            plan.split[key] = how
    plan.parts = {key: frozenset(parts) for key, parts in found.items()}
    states = {state.name for state in graph.states}
    for region in plan.regions:
        plan.states.update({n: s for n, s in region.splits.items() if n in states})


def _disagreements(plans: Mapping[str, _Plan], methods: Mapping[str, Graph]) -> dict[str, str]:
    """Returns what is to be whole as methods do not agree on it."""
    found: dict[str, str] = {}
    seen: dict[str, frozenset[tuple[int, int]]] = {}
    for plan in plans.values():
        for key, parts in plan.parts.items():
            if seen.setdefault(key, parts) != parts or len(parts) > 1:
                found[key] = "not all of its products can be split alike"
    for name, graph in methods.items():
        for state in graph.states:
            splits = [p.states.get(state.name) for n, p in plans.items() if _has(methods[n], state)]
            if len(set(splits)) > 1:
                found[state.name] = f"state {state.name} cannot be split in method {name}"
    return found


def _has(graph: Graph, state: Value) -> bool:
    return any(own.name == state.name for own in graph.states)


def _is_product(node: Node, graph: Graph) -> bool:
    return node.op == "npu.linear" and node.inputs[1] in graph.static_values


def _is_plain(node: Node) -> bool:
    return node.inputs[3] is None and node.attrs["act"] == "copy"


def _keys(node: Node, graph: Graph) -> list[str]:
    """Returns the keys of the checkpoint that a product's matrix is made of."""
    keys, pending = [], [node.inputs[1]]
    weights = {w.name: w.key for w in graph.weights}
    while pending:
        value = pending.pop()
        if value in weights:
            keys.append(weights[value])
        elif value is not None and value in graph.producers:
            pending += graph.producers[value].inputs
    return keys


def _can_part(value: str | None, split: Split, graph: Graph, ranks: int) -> str | None:
    """Returns why a static value has no parts that are made of parts of weights; None: it has."""
    assert value is not None
    type = graph.types[value]
    size = type.shape[split.axis]
    if size % split.parts:
        return f"{size} is no multiple of {split.parts}"
    if any(w.name == value for w in graph.weights):
        return None
    node = graph.producers.get(value)
    flow = None if node is None else flow_to(node, 0, split, graph, ranks)
    if node is None or flow is None or len(node.outputs) != 1:
        return f"its weight is made by {node.op if node else 'a constant'}"
    for name, own in zip(node.inputs, flow.inputs, strict=True):
        why = None if own is None else _can_part(name, own, graph, ranks)
        if why is not None:
            return why
    return None


def _not_gathered(node: Node, graph: Graph, ranks: int, banned: Mapping[str, str]) -> str | None:
    """Returns why a product is not worth, or not able, to be split by rows and gathered."""
    refused = next((banned[key] for key in _keys(node, graph) if key in banned), None)
    _, weight, bias, _ = node.inputs
    assert weight is not None
    if refused is not None or not _is_plain(node):
        return refused or "its result is not gathered"
    # What calls choose is judged at its least: there reading the weight is all there is to do.
    if graph.types[weight].numel < _GATHERED * prod(map(lower, node.type.shape)):
        return "gathering its result would take as long as computing it"
    for value in (weight, bias):
        why = None if value is None else _can_part(value, Split(0, ranks), graph, ranks)
        if why is not None:
            return why
    return None


class _Grower:
    """Finds all that is split when one product is split by columns."""

    def __init__(
        self,
        graph: Graph,
        target: TargetConfig,
        ranks: int,
        banned: Mapping[str, str],
        taken: set[str],
    ) -> None:
        self._graph, self._ranks, self._banned, self._taken = graph, ranks, banned, taken
        self._how = Quantization.parse(target.weight_quantization)
        self._region = Region()
        self._pending: list[str] = []
        self._states = {state.name for state in graph.states}
        self._updates = {u.value: u.name for u in graph.updates}
        self._left_in = {u.name: u.value for u in graph.updates}
        self._results = {o.value for o in graph.outputs}

    def from_sink(self, node: Node) -> Region:
        """Returns the region that ends with a product; raises _Refused with the reason."""
        self._sink(node)
        while self._pending:
            value = self._pending.pop()
            self._made(value)
            self._read(value)
        return self._region

    def _split(self, value: str, split: Split) -> None:
        known = self._region.splits.get(value)
        if known == split:
            return
        if known is not None:
            raise _Refused(f"{value} would be split in two ways")
        size = self._graph.types[value].shape[split.axis]
        if not divides(size, split.parts):
            raise _Refused(f"{size} of {value} is no multiple of {split.parts}")
        self._region.splits[value] = split
        self._pending.append(value)

    def _made(self, value: str) -> None:
        """Asks for what a split value is made of."""
        split = self._region.splits[value]
        if value in self._states:
            if value in self._banned:
                raise _Refused(self._banned[value])
            if value in self._left_in:
                self._split(self._left_in[value], split)
            return
        node = self._graph.producers.get(value)
        if node is None:
            raise _Refused(f"{value} is whole on every rank")
        if _is_product(node, self._graph):
            self._column(node, split)
            return
        result = [v.name for v in node.outputs].index(value)
        known = self._region.flows.get(node.name)
        if known is not None:
            if known.outputs[result] != split:
                raise _Refused(f"{value} would be split in two ways")
            return
        flow = flow_to(node, result, split, self._graph, self._ranks)
        if flow is None:
            raise _Refused(_reason(node, split, self._graph, self._ranks))
        self._follow(node, flow)

    def _read(self, value: str) -> None:
        """Asks for what reads a split value to take it."""
        split = self._region.splits[value]
        if value in self._results:
            raise _Refused(f"{value} is a result, which callers get whole")
        if value in self._updates:
            self._split(self._updates[value], split)
        for node in self._graph.users[value]:
            known = self._region.flows.get(node.name)
            if known is not None:
                if known.inputs[node.inputs.index(value)] != split:
                    raise _Refused(f"{node.op} reads all of {value}")
                continue
            if _is_product(node, self._graph):
                last = node.inputs[0] == value and node.inputs.count(value) == 1
                if not last or split != Split(self._graph.types[value].rank - 1, self._ranks):
                    raise _Refused(f"{node.name} reads parts of {value}")
                self._sink(node)
                continue
            flow = flow_from(node, node.inputs.index(value), split, self._graph, self._ranks)
            if flow is None:
                raise _Refused(f"{node.op} reads {value} across its parts")
            self._follow(node, flow)

    def _follow(self, node: Node, flow: Flow) -> None:
        self._region.flows[node.name] = flow
        for name, split in zip(node.inputs, flow.inputs, strict=True):
            if name is None:
                continue
            if split is None:
                if name in self._region.splits:
                    raise _Refused(f"{node.op} reads all of {name}")
            elif name in self._graph.static_values:
                self._static(name, split)
            else:
                self._split(name, split)
        for value, split in zip(node.outputs, flow.outputs, strict=True):
            if split is not None:
                self._split(value.name, split)

    def _static(self, value: str | None, split: Split) -> None:
        why = None if value is None else _can_part(value, split, self._graph, self._ranks)
        if why is not None:
            raise _Refused(why)

    def _column(self, node: Node, split: Split) -> None:
        if split.axis != node.type.rank - 1 or node.name in self._region.sinks:
            raise _Refused(f"{node.name} has whole rows")
        self._check(node)
        self._static(node.inputs[1], Split(0, split.parts))
        self._static(node.inputs[2], Split(0, split.parts))
        self._region.columns[node.name] = split.parts

    def _sink(self, node: Node) -> None:
        if node.name in self._region.sinks:
            return
        self._check(node)
        x, weight = node.inputs[:2]
        assert x is not None and weight is not None
        k = self._graph.types[weight].shape[1]
        if k % self._ranks:
            raise _Refused(f"{k} columns are no multiple of {self._ranks}")
        if self._how is not None and self._how.group and k // self._ranks % self._how.group:
            raise _Refused(
                f"{self._ranks} parts of {k} columns would cut groups of {self._how.group}"
            )
        if node.name in self._region.columns:
            raise _Refused(f"{node.name} has whole rows")
        self._static(weight, Split(1, self._ranks))
        self._region.sinks.add(node.name)
        self._split(x, Split(self._graph.types[x].rank - 1, self._ranks))

    def _check(self, node: Node) -> None:
        keys = _keys(node, self._graph)
        refused = next((self._banned[key] for key in keys if key in self._banned), None)
        if refused is not None or node.name in self._taken or not _is_plain(node):
            raise _Refused(refused or f"{node.name} is split in another way")


def _reason(node: Node, split: Split, graph: Graph, ranks: int) -> str:
    """Returns why a node's result has no such parts."""
    size = node.outputs[0].type.shape[min(split.axis, node.outputs[0].type.rank - 1)]
    if not divides(size, split.parts):
        return f"{size} heads or columns of {node.name} are no multiple of {split.parts}"
    heads = {graph.types[i].shape[1] for i in node.inputs[:3] if i and graph.types[i].rank == 4}
    if "attention" in node.op or node.op == "npu.rope_append":
        listed = ", ".join(map(str, sorted(heads)))
        return f"{ranks} ranks would cut heads of {node.name}, which has {listed}"
    return f"{node.op} needs all of what it reads"
