"""What a node costs, natively and in PyTorch, and what it costs to cross between the two.

Owns the estimates by which a model is cut: a time is the larger of arithmetic over its rate and
bytes over theirs (the roofline), and a call's fixed time. They decide only where nodes run that
could run on either side, so being wrong costs time and never a result. A target's rates stand in
its data file, PyTorch's among what was measured of an architecture; a machine may be several times
off.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from npusim.abi.kernel_cost import kernel_cost
from npusim.abi.kernels import KERNELS
from npusim.analysis.shapes import VIEWS
from npusim.ir.graph import Graph, Node
from npusim.lowering.context import Lowering
from npusim.lowering.supported import foreign_values
from npusim.partition.single import signature, single
from npusim.program.program import Command
from npusim.targets import TargetConfig
from npusim.targets.architecture import pytorch_costs


@dataclass(frozen=True, slots=True)
class Work:
    """What a node does: floating-point operations, and bytes it reads and writes."""

    flops: int
    bytes: int


def works(graph: Graph, target: TargetConfig) -> dict[str, Work]:
    """Returns the work of every node of a graph of fixed sizes, by its name.

    Operations are those of the commands that a node is lowered to by itself (`abi/kernel_cost.py`,
    a multiply-add counts as two), whatever of them the target lacks; what no kernel computes
    counts one an element of the results. Bytes are those of operands and results. Views do nothing.
    """
    whole = replace(target, kernels=tuple(KERNELS), limits={})
    known: dict[object, int] = {}
    found = {}
    for node in graph.nodes:
        if node.op in VIEWS:
            found[node.name] = Work(0, 0)
            continue
        key = signature(node, graph)
        if key not in known:
            known[key] = _operations(node, graph, whole)
        operands = (graph.types[i] for i in dict.fromkeys(node.inputs) if i is not None)
        traffic = sum(t.nbytes for t in (*operands, *(v.type for v in node.outputs)))
        found[node.name] = Work(known[key], traffic)
    return found


def _operations(node: Node, graph: Graph, target: TargetConfig) -> int:
    alone = single(node, graph)
    if not foreign_values(alone):
        low = Lowering(target, trial=True)
        low.method(node.name, alone)
        if not low.refused:
            return sum(_cost(low, command) for command in low.run.commands)
    return sum(v.type.numel for v in node.outputs)


def _cost(low: Lowering, command: Command) -> int:
    stem = tuple(low.kernels)[command.kernel]
    return kernel_cost(stem, KERNELS[stem].unpack(command.params)).operations


@dataclass(frozen=True, slots=True)
class CostModel:
    """Estimated times of one target, in seconds.

    Attributes:
        run_seconds: fixed time of running a native partition.
        node_seconds: fixed time of a node in PyTorch.
        device_rates, host_rates: floating-point operations and bytes a second.
        transfer_seconds: fixed time of a transfer.
        transfer_rate: its bytes a second; 0 where nothing has to be copied.
    """

    run_seconds: float
    node_seconds: float
    device_rates: tuple[float, float]
    host_rates: tuple[float, float]
    transfer_seconds: float
    transfer_rate: float

    @classmethod
    def of(cls, target: TargetConfig) -> CostModel:
        """Returns the costs a target's file states, next to PyTorch's."""
        host = pytorch_costs(target.measurements)
        return cls(
            target.run_seconds,
            host.node_seconds,
            (target.compute_rate, target.memory_rate),
            (host.flops_per_second, host.bytes_per_second),
            target.transfer_seconds,
            target.transfer_rate,
        )

    def native(self, work: Work) -> float:
        """Returns the time of a node within a native partition."""
        return _roofline(work, self.device_rates)

    def host(self, work: Work) -> float:
        """Returns the time of a node in PyTorch; a view, too, is a call."""
        return self.node_seconds + _roofline(work, self.host_rates)

    def transfer(self, nbytes: int) -> float:
        """Returns the time of a transfer of that many bytes."""
        copied = nbytes / self.transfer_rate if self.transfer_rate else 0.0
        return self.transfer_seconds + copied


def _roofline(work: Work, rates: tuple[float, float]) -> float:
    compute, memory = rates
    return max(work.flops / compute, work.bytes / memory)
