"""What a node costs, natively and in PyTorch, and what it costs to cross between the two.

Owns the estimates by which a model is cut: a time is the larger of arithmetic over its rate and
bytes over theirs (the roofline), and a call's fixed time. They decide only where nodes run that
could run on either side, so being wrong costs time and never a result. A target's rates stand in
its data file.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.analysis.shapes import VIEWS
from npusim.ir.graph import Graph, Node
from npusim.targets import TargetConfig

# PyTorch on a desktop processor: one operator called from its schema and checked (9.5 us measured),
# float32 arithmetic of its matrix library, and copies through memory. A machine may be several
# times off.
HOST_NODE_SECONDS = 9.5e-6
HOST_COMPUTE_RATE = 1e11
HOST_MEMORY_RATE = 1e10

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "convolution")
_TRANSPOSED = ("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
_PRODUCTS = {"linear": 0, "matmul": 0, "mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}


@dataclass(frozen=True, slots=True)
class Work:
    """What a node does: floating-point operations, and bytes it reads and writes."""

    flops: int
    bytes: int


def work_of(node: Node, graph: Graph) -> Work:
    """Returns the work of a node.

    A multiply-add counts as two. Products, convolutions and attention are counted from their
    shapes, everything else as one operation an element of the result; views do nothing.
    """
    if node.op in VIEWS:
        return Work(0, 0)
    operands = [graph.types[i] for i in dict.fromkeys(node.inputs) if i is not None]
    results = [v.type for v in node.outputs]
    traffic = sum(t.nbytes for t in (*operands, *results))
    return Work(_flops(node, graph), traffic)


def _flops(node: Node, graph: Graph) -> int:
    shapes = [None if i is None else graph.types[i].shape for i in node.inputs]
    result = node.outputs[0].type
    name = node.op.split(".")[1]
    if name in _CONVOLUTIONS and len(shapes) > 1 and shapes[1]:
        weight = shapes[1]
        return 2 * result.numel * prod(weight[1:])
    if name in _TRANSPOSED and len(shapes) > 1 and shapes[0] and shapes[1]:
        return 2 * prod(shapes[0]) * prod(shapes[1][1:])
    if name in _PRODUCTS and len(shapes) > _PRODUCTS[name]:
        first = shapes[_PRODUCTS[name]]
        return 2 * result.numel * (first[-1] if first else 1)
    if "attention" in name and len(shapes) > 1 and shapes[0] and shapes[1] and len(shapes[1]) > 1:
        return 4 * prod(shapes[0]) * shapes[1][-2]
    return sum(v.type.numel for v in node.outputs)


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
        return cls(
            target.run_seconds,
            HOST_NODE_SECONDS,
            (target.compute_rate, target.memory_rate),
            (HOST_COMPUTE_RATE, HOST_MEMORY_RATE),
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
