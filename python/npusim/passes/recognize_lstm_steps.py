"""Recognizes the steps of long short-term memories: a product, four gates, and the cell.

y = sigmoid(o) * tanh(c'), c' = sigmoid(f) * c + sigmoid(i) * tanh(g), where i, f, g and o are the
quarters of one linear's result, in any order, which nobody else reads, becomes `npu.lstm_step`, as
long as there are few rows. c' may have other readers: the next step is one.

Weights that are to be quantized and products that are to be narrowed stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from npusim.ir.graph import Graph, Node
from npusim.ir.rewrite import drop_dead, rebuild
from npusim.ir.rewriter import reading
from npusim.ops.lstm_step import GATES, LSTM_STEP, is_step
from npusim.targets.target_config import TargetConfig

_DTYPES = ("float32", "float16", "bfloat16")
_SIGMOID, _TANH = "aten.sigmoid.default", "aten.tanh.default"
_MUL, _ADD = "aten.mul.Tensor", "aten.add.Tensor"
_SPLIT, _SLICE = "aten.split_with_sizes.default", "aten.slice.Tensor"


def recognize_lstm_steps(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with steps of few rows as one node each."""
    if target.weight_quantization != "none" or target.precision != "float32":
        return graph
    replacements: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.op == _MUL:
            with reading(node):
                found = _Matcher(graph).step(node)
            if found is not None:
                cell, fused = found
                replacements |= {cell.name: [fused], node.name: []}
    if not replacements:
        return graph
    nodes = [new for n in graph.nodes for new in replacements.get(n.name, [n])]
    return drop_dead(rebuild(graph, nodes))


@dataclass(frozen=True)
class _Matcher:
    """Finds what a step is made of."""

    graph: Graph

    def step(self, hidden: Node) -> tuple[Node, Node] | None:
        """Returns the node of c' and the step, for the node of y."""
        outer = self._operands(hidden, _SIGMOID, _TANH)
        cell = None if outer is None else self._producer(outer[1].inputs[0], _ADD)
        if outer is None or cell is None or cell.attrs.get("alpha", 1) != 1:
            return None
        if any(i is None or self.graph.types[i] != hidden.type for i in cell.inputs):
            return None
        for kept, entered in (cell.inputs, cell.inputs[::-1]):
            inner = self._alone(entered, _MUL)
            gated = None if inner is None else self._operands(inner, _SIGMOID, _TANH)
            forgotten = self._alone(kept, _MUL)
            if gated is None or forgotten is None:
                continue
            for gate, before in (forgotten.inputs, forgotten.inputs[::-1]):
                forget = self._alone(gate, _SIGMOID)
                if forget is None or before is None:
                    continue
                gates = (gated[0], forget, gated[1], outer[0])
                fused = self._fused(hidden, cell, gates, before)
                if fused is not None:
                    return cell, fused
        return None

    def _fused(self, hidden: Node, cell: Node, gates: tuple[Node, ...], before: str) -> Node | None:
        parts = [self._quarter(gate.inputs[0]) for gate in gates]
        sources = {part[0] for part in parts if part is not None}
        places = [part[1] for part in parts if part is not None]
        if len(sources) != 1 or sorted(places) != list(range(GATES)):
            return None
        product = self.graph.producers.get(sources.pop())
        if product is None or not self._is_plain(product, hidden, before):
            return None
        attrs = {"gates": tuple(places)}
        inputs = (*product.inputs, before)
        outputs = (hidden.output, cell.output)
        return Node(hidden.name, LSTM_STEP, inputs, outputs, attrs, hidden.source)

    def _is_plain(self, product: Node, hidden: Node, before: str) -> bool:
        """Tells whether a product adds and does nothing else, of few rows of the right dtype."""
        attrs, shape = product.attrs, hidden.type.shape
        if product.op != "npu.linear" or attrs["act"] != "copy" or "dtype" in attrs:
            return False
        x = self.graph.types[product.inputs[0] or ""]
        weight = self.graph.types[product.inputs[1] or ""]
        return (
            x.dtype == weight.dtype == hidden.type.dtype
            and x.dtype in _DTYPES
            and product.type.shape == (*shape[:-1], GATES * shape[-1])
            and self.graph.types[before] == hidden.type
            and is_step(prod(shape[:-1]), shape[-1], x.shape[-1])
        )

    def _quarter(self, value: str | None) -> tuple[str, int] | None:
        """Returns what a value is a quarter of along its last dimension, and which."""
        part = self.graph.producers.get(value or "")
        if part is None or value is None or part.inputs[0] is None or not self._read_once(value):
            return None
        whole = self.graph.types[part.inputs[0]]
        last, size = whole.rank - 1, whole.shape[-1] // GATES
        if part.op not in (_SPLIT, _SLICE) or part.attrs["dim"] not in (last, -1):
            return None
        if part.op == _SPLIT:
            if part.attrs["split_sizes"] != (size,) * GATES:
                return None
            alone = len(self.graph.users[part.inputs[0]]) == 1
            place = [v.name for v in part.outputs].index(value)
        else:
            start = part.attrs["start"]
            assert isinstance(start, int)
            if part.attrs["step"] != 1 or part.type.shape[-1] != size or start % size:
                return None
            alone = len(self.graph.users[part.inputs[0]]) == GATES
            place = start // size
        seen = part.inputs[0] in self.graph.output_values
        return (part.inputs[0], place) if alone and not seen else None

    def _operands(self, node: Node, first: str, second: str) -> tuple[Node, Node] | None:
        """Returns the producers of a product's operands, one of each op, that it alone reads."""
        for a, b in (node.inputs, node.inputs[::-1]):
            one, other = self._alone(a, first), self._alone(b, second)
            if one is not None and other is not None:
                return one, other
        return None

    def _alone(self, value: str | None, op: str) -> Node | None:
        node = self._producer(value, op)
        return node if value is not None and self._read_once(value) else None

    def _producer(self, value: str | None, op: str) -> Node | None:
        node = self.graph.producers.get(value or "")
        return node if node is not None and node.op == op else None

    def _read_once(self, value: str) -> bool:
        return len(self.graph.users[value]) == 1 and value not in self.graph.output_values
