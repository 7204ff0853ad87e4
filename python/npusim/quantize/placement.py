"""Which values of a graph become bytes, and who reads them so.

Values between layers stay bytes where the same kernels take them in: activations that rounding
follows, sums of a layer with other bytes, maxima over windows, concatenations and views. Means of
bytes are bytes with parameters of their own: a processor computes them in floats, a machine without
floats does not. What is made in floats becomes bytes for the layers that read it, and stays floats
for everybody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from npusim.analysis.shapes import VIEWS
from npusim.ir.graph import Graph, Node
from npusim.quantize.layers import Layer

_ACTIVATIONS = frozenset(
    ("aten.relu.default", "aten.relu6.default", "aten.hardtanh.default", "aten.clamp.default")
)
_SUMS = frozenset(("aten.add.Tensor",))
_MEANS = frozenset(("aten.adaptive_avg_pool2d.default", "aten.avg_pool2d.default", "aten.mean.dim"))
_POOL, _CAT = "aten.max_pool2d.default", "aten.cat.default"


@dataclass(frozen=True)
class Placement:
    """Where bytes are.

    Attributes:
        layers: that multiply bytes, by the name of their node.
        everywhere: values whose bytes all readers take.
        for_layers: values whose bytes the layers that read them take, and nobody else.
        groups: of both, the value whose parameters each shares; itself mostly.
        operands: the value that a layer multiplies the bytes of, or views of them, by node.
    """

    layers: Mapping[str, Layer]
    everywhere: frozenset[str]
    for_layers: frozenset[str]
    groups: Mapping[str, str]
    operands: Mapping[str, str]

    @property
    def values(self) -> tuple[str, ...]:
        """All values that become bytes."""
        return tuple(self.groups)


def placed(graph: Graph, layers: Iterable[Layer], *, dynamic: bool = False) -> Placement:
    """Returns where bytes are when these layers multiply them.

    Args:
        dynamic: each call finds the ranges, which takes whole values in floats: no bytes between
            layers.
    """
    by_node = {layer.node.name: layer for layer in layers}
    walk = _Walk(graph, by_node)
    for layer in by_node.values():
        if dynamic:
            walk.own.add(layer.x)
        else:
            walk.take(layer)
    order = [v for v in graph.types if v in walk.everywhere or v in walk.own]
    groups = {value: walk.group(value) for value in order}
    operands = {name: walk.source(layer.x) for name, layer in by_node.items()}
    return Placement(by_node, frozenset(walk.everywhere), frozenset(walk.own), groups, operands)


class _Walk:
    """What can be made in bytes, and what of it somebody wants."""

    def __init__(self, graph: Graph, layers: Mapping[str, Layer]) -> None:
        self._graph, self._layers = graph, layers
        self._reads: dict[str, int] = {}
        for value in (i for n in graph.nodes for i in n.inputs if i is not None):
            self._reads[value] = self._reads.get(value, 0) + 1
        for output in (*graph.outputs, *graph.updates):
            self._reads[output.value] = self._reads.get(output.value, 0) + 1
        self.everywhere: set[str] = set()
        self.own: set[str] = set()
        self._joined: dict[str, str] = {}
        self._in_bytes: set[str] = set()
        for node in graph.nodes:
            if len(node.outputs) == 1 and self._makes_bytes(node):
                self._in_bytes.add(node.output.name)

    def take(self, layer: Layer) -> None:
        """Has a layer's operand in bytes."""
        if layer.x in self._in_bytes:
            self._want(layer.x)
        else:
            self.own.add(layer.x)

    def group(self, value: str) -> str:
        """Returns the value that stands for all with the same parameters."""
        while self._joined.get(value, value) != value:
            value = self._joined[value]
        return value

    def source(self, value: str) -> str:
        """Returns the value that becomes bytes where `value` is wanted so: behind its views."""
        return value if value in self.own else self._behind_views(value)

    def _behind_views(self, value: str) -> str:
        while self._is_view(value):
            value = self._graph.producers[value].inputs[0] or ""
        return value

    def _makes_bytes(self, node: Node) -> bool:
        """Tells whether a node's result can be made in bytes, its operands being decided on."""
        if node.name in self._layers:
            return True
        if not node.inputs or node.inputs[0] is None or node.type.dtype != "float32":
            return False
        if node.op in VIEWS or node.op in _MEANS or node.op == _POOL:
            return node.inputs[0] in self._in_bytes
        if node.op == _CAT:
            return all(i in self._in_bytes for i in node.inputs)
        if node.op in _ACTIVATIONS:
            behind = self._graph.producers.get(node.inputs[0])
            return self._alone(behind) and behind is not None and self._is_product_or_sum(behind)
        return node.op in _SUMS and self._summands(node) is not None

    def _is_product_or_sum(self, node: Node) -> bool:
        return node.name in self._layers or (node.op in _SUMS and self._summands(node) is not None)

    def _alone(self, node: Node | None) -> bool:
        """Tells whether a node has one result, which one reader reads."""
        single = node is not None and len(node.outputs) == 1
        return single and node is not None and self._reads[node.output.name] == 1

    def _summands(self, node: Node) -> tuple[str, str] | None:
        """Returns the layer's result and the other bytes that a sum is of; None for other sums."""
        if len(node.inputs) != 2 or node.attrs.get("alpha", 1) != 1 or node.type.rank < 1:
            return None
        types = self._graph.types
        for own, other in (node.inputs, node.inputs[::-1]):
            producer = self._graph.producers.get(own or "")
            if own is None or other is None or own == other or producer is None:
                continue
            same = types[own].shape == types[other].shape == node.type.shape
            layer = producer.name in self._layers and self._alone(producer)
            if same and layer and other in self._in_bytes and not self._is_view(other):
                return own, other
        return None

    def _is_view(self, value: str) -> bool:
        node = self._graph.producers.get(value)
        return node is not None and node.op in VIEWS

    def _want(self, value: str) -> None:
        """Has a value that can be made in bytes made so, with all that this takes."""
        stack = [value]
        while stack:
            value = stack.pop()
            node = self._graph.producers[value]
            if node.op in VIEWS:
                stack.append(node.inputs[0] or "")
                continue
            if value in self.everywhere:
                continue
            self.everywhere.add(value)
            if node.op in (_POOL, _CAT):
                sources = [self._behind_views(i) for i in node.inputs if i is not None]
                for source in sources:
                    self._joined[self.group(source)] = self.group(value)
                stack += sources
                continue
            if node.op in _MEANS:
                stack.append(node.inputs[0] or "")
            if node.op in _ACTIVATIONS:
                node = self._graph.producers[node.inputs[0] or ""]
            if node.op in _SUMS:
                stack += self._summands(node) or ()
