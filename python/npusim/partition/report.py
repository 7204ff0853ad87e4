"""`npusim.check`: what becomes of every node on a target, all at once.

Owns the report: verdicts with the place in the model's code, estimated costs, and the bytes that
would cross. The verdicts are those a plan is made by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from npusim.errors import CoverageError, Error, GraphError
from npusim.ir.graph import Graph, Node
from npusim.ir.module import Module, load_ir
from npusim.ir.rewrite import drop_dead
from npusim.partition.cost import CostModel
from npusim.partition.partitioner import Wishes, settle
from npusim.partition.placement import Placement
from npusim.partition.plan import PYTORCH, PartitionPlan
from npusim.targets import TargetConfig


@dataclass(frozen=True, slots=True)
class NodeSupport:
    """What becomes of a node.

    Attributes:
        method: the graph it belongs to, of a Module's; else empty.
        name, op: the node's name and operator.
        status, constraint, reason: see `Verdict`.
        module, file, line: where in the model's code it comes from.
        types: its operands' types, as text.
        flops, bytes: floating-point operations, and bytes read and written.
        seconds: estimated time, where it would run.
        crossing_bytes: bytes that cross between device and host on its account, at each call.
    """

    method: str
    name: str
    op: str
    status: str
    constraint: str
    reason: str
    module: str
    file: str
    line: int
    types: str
    flops: int
    bytes: int
    seconds: float
    crossing_bytes: int

    @property
    def is_native(self) -> bool:
        """Whether the target runs it."""
        return self.status in ("native", "decomposed")

    @property
    def place(self) -> str:
        """Where it comes from, `layer1.0 (net.py:12)`; as much of it as is known."""
        line = f"{Path(self.file).name}:{self.line}" if self.file else ""
        return f"{self.module} ({line})" if self.module and line else self.module or line


@dataclass(frozen=True, slots=True)
class SupportReport:
    """What a target would run of a model.

    Attributes:
        model, target: their names.
        nodes: every node, in order.
        partitions: how many partitions a plan has, over all methods.
        crossing_bytes: bytes that cross at each call, over all methods.
    """

    model: str
    target: str
    nodes: tuple[NodeSupport, ...]
    partitions: int
    crossing_bytes: int

    @property
    def coverage(self) -> float:
        """Share of the nodes that the target runs, 0 to 1; 1 for a model without nodes."""
        native = sum(node.is_native for node in self.nodes)
        return native / len(self.nodes) if self.nodes else 1.0

    @property
    def counts(self) -> Mapping[str, int]:
        """Number of nodes by status."""
        return Counter(node.status for node in self.nodes)

    @property
    def others(self) -> tuple[NodeSupport, ...]:
        """The nodes that the target does not run."""
        return tuple(node for node in self.nodes if not node.is_native)

    def require(self, coverage: float = 1.0) -> SupportReport:
        """Returns the report if the target runs at least this share of the nodes.

        Raises:
            CoverageError: it runs less; lists the nodes that it does not run.
            Error: the share is not between 0 and 1.
        """
        if not 0 <= coverage <= 1:
            raise Error(f"A coverage of {coverage} cannot be required.", hint="Give 0 … 1.")
        if self.coverage < coverage:
            lines = (f"\n  {n.op}({n.types}) {n.place}: {n.reason}" for n in self.others)
            raise CoverageError(
                f"Target '{self.target}' runs {self.coverage:.1%} of '{self.model}' natively, "
                f"{coverage:.1%} are required. It does not run:{''.join(lines)}"
            )
        return self

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON-able data."""
        return {
            "model": self.model,
            "target": self.target,
            "coverage": self.coverage,
            "counts": dict(self.counts),
            "partitions": self.partitions,
            "crossing_bytes": self.crossing_bytes,
            "nodes": [asdict(node) for node in self.nodes],
        }

    def __str__(self) -> str:
        native = sum(node.is_native for node in self.nodes)
        line = (
            f"{self.model} on {self.target}: {native} of {len(self.nodes)} nodes native "
            f"({self.coverage:.1%})"
        )
        if not self.others:
            return line
        listed = (f"\n  {n.status}: {n.op}({n.types}) {n.place}: {n.reason}" for n in self.others)
        return f"{line}; {self.crossing_bytes} bytes cross at each call{''.join(listed)}"


def make_report(
    ir: Graph | Module | str | Path, target: TargetConfig, wishes: Wishes
) -> SupportReport:
    """Returns the report; the arguments are `npusim.check`'s. Symbolic sizes are the greatest."""
    found = load_ir(ir) if isinstance(ir, (str, Path)) else ir
    if isinstance(found, Graph):
        methods: Mapping[str, Graph] = {"": found}
    elif isinstance(found, Module):
        methods = found.methods
    else:
        raise GraphError(f"Cannot check a {type(found).__name__}.", hint="Pass an IR.")
    nodes: list[NodeSupport] = []
    partitions = crossing = 0
    for name, graph in methods.items():
        live = drop_dead(graph)
        plan, placed = settle(live, target, wishes)
        nodes += _rows(name, plan, placed, CostModel.of(target))
        partitions += len(plan.partitions)
        crossing += plan.crossing_bytes
    return SupportReport(found.name, target.name, tuple(nodes), partitions, crossing)


def _rows(
    method: str, plan: PartitionPlan, placed: Placement, costs: CostModel
) -> list[NodeSupport]:
    crossing = _crossing(plan)
    return [_row(method, n, plan, placed, costs, crossing[n.name]) for n in plan.graph.nodes]


def _row(
    method: str,
    node: Node,
    plan: PartitionPlan,
    placed: Placement,
    costs: CostModel,
    crossing: int,
) -> NodeSupport:
    verdict, work = placed.verdicts[node.name], placed.work[node.name]
    source = node.source
    types = ("none" if i is None else str(plan.graph.types[i]) for i in node.inputs)
    return NodeSupport(
        method,
        node.name,
        node.op,
        verdict.status,
        verdict.constraint,
        verdict.reason,
        "" if source is None else source.module,
        "" if source is None else source.file,
        0 if source is None else source.line,
        ", ".join(types),
        work.flops,
        work.bytes,
        costs.native(work) if verdict.is_native else costs.host(work),
        crossing,
    )


def _crossing(plan: PartitionPlan) -> Counter[str]:
    """Returns, by node, the bytes that cross for it: each transfer counts for one node of PyTorch.

    For the one that makes the value, or the first that reads it.
    """
    graph, bytes_of = plan.graph, Counter[str]()
    updates = {u.name: u.value for u in graph.updates}
    for transfer in plan.transfers:
        if transfer.at_load:
            continue
        if transfer.to == PYTORCH:
            node = graph.users[transfer.value][0]
            readers = (u for u in graph.users[transfer.value] if u.name in _inside(plan, transfer))
            node = next(readers, node)
        else:
            value = updates.get(transfer.value, transfer.value)
            found = graph.producers.get(value)
            if found is None:
                continue
            node = found
        bytes_of[node.name] += transfer.nbytes
    return bytes_of


def _inside(plan: PartitionPlan, transfer: Any) -> frozenset[str]:
    return frozenset(plan.partitions[transfer.target].nodes)
