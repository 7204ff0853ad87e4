"""Recognizes the steps of recurrences: a product, its gates, and the state.

As long as there are few rows, these become `npu.recurrent_step`; of what is in between, nobody else
reads anything:

* y = sigmoid(o) * tanh(c'), c' = sigmoid(f) * c + sigmoid(i) * tanh(g), where i, f, g and o are the
  quarters of one linear's result, in any order. c' may have other readers: the next step is one.
* y = (h - n) * sigmoid(s_z + a_z) + n, n = tanh(a_n + sigmoid(s_r + a_r) * s_n), where r, z and n
  are thirds of one linear's result s and of an addend a, in one order.
* y = act(s + a), tanh or relu, of a linear whose weight other products read, too: other steps.

Weights that are to be quantized and products that are to be narrowed stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from npusim.ir.graph import Attr, Graph, Node, Value
from npusim.ir.rewrite import Names, drop_dead, rebuild
from npusim.ir.rewriter import reading
from npusim.ir.types import TensorType
from npusim.ops.recurrence import joins_steps
from npusim.ops.recurrent_step import ACTIVATIONS, GATES, RECURRENT_STEP, is_step
from npusim.targets.target_config import TargetConfig

_DTYPES = ("float32", "float16", "bfloat16")
_SIGMOID, _TANH = "aten.sigmoid.default", "aten.tanh.default"
_ACTIVATES = {"aten.tanh.default": "tanh", "aten.relu.default": "relu"}
_MUL, _ADD, _SUB = "aten.mul.Tensor", "aten.add.Tensor", "aten.sub.Tensor"
_SPLIT, _SLICE, _VIEW = "aten.split_with_sizes.default", "aten.slice.Tensor", "aten.view.default"


def recognize_recurrent_steps(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with steps of few rows as one node each."""
    if target.weight_quantization != "none" or target.precision != "float32":
        return graph
    replacements: dict[str, list[Node]] = {}
    matcher = _Matcher(graph, target, Names(graph))
    for node in graph.nodes:
        with reading(node):
            replacements |= matcher.step(node)
    if not replacements:
        return graph
    nodes = [new for n in graph.nodes for new in replacements.get(n.name, [n])]
    return drop_dead(rebuild(graph, nodes))


@dataclass(frozen=True)
class _Matcher:
    """Finds what a step is made of."""

    graph: Graph
    target: TargetConfig
    names: Names

    def step(self, hidden: Node) -> dict[str, list[Node]]:
        """Returns what takes the place of nodes, for the node of y; nothing if it is none."""
        if hidden.op == _MUL:
            return self._long_short_term(hidden)
        if hidden.op == _ADD:
            return self._gated(hidden)
        if hidden.op in _ACTIVATES:
            return self._first_plain(hidden)
        return self._plain(hidden) if hidden.op == "npu.linear" else {}

    # ---- plain ----

    def _plain(self, hidden: Node) -> dict[str, list[Node]]:
        """A product with an addend and an activation, of a weight that is read again and again."""
        x, weight, bias, addend = hidden.inputs
        attrs = hidden.attrs
        if attrs["act"] not in ACTIVATIONS or attrs["residual"] != 1 or "dtype" in attrs:
            return {}
        if weight is None or len(self.graph.users[weight]) < 2:
            return {}
        if not self._fits(hidden, "plain", hidden.type, joined=self._is_part(addend)):
            return {}
        step: dict[str, Attr] = {"cell": "plain", "gates": (0,), "act": attrs["act"]}
        inputs = (x, weight, bias, addend, None)
        return {hidden.name: [_step(hidden, (hidden.output,), inputs, step)]}

    def _is_part(self, value: str | None) -> bool:
        """Tells whether a value is a part of another one, as of what is added to all steps."""
        node = self.graph.producers.get(value or "")
        while node is not None and node.op == _VIEW:
            node = self.graph.producers.get(node.inputs[0] or "")
        return node is not None and node.op == _SLICE

    def _first_plain(self, hidden: Node) -> dict[str, list[Node]]:
        """The same of the rows before the first step, whose product depends on weights alone."""
        total = self._alone(hidden.inputs[0], _ADD)
        for value, added in _either(total) if total is not None else ():
            first = self.graph.producers.get(value)
            if first is None or not self._is_first(first, hidden, first.inputs[0] or "", "plain"):
                continue
            if self.graph.types[added].numel != hidden.type.numel:
                continue
            nodes, added = self._added(hidden, added, first.type)
            step: dict[str, Attr] = {"cell": "plain", "gates": (0,), "act": _ACTIVATES[hidden.op]}
            inputs = (*_operands_of(first), added, None)
            return {hidden.name: [*nodes, _step(hidden, (hidden.output,), inputs, step)]}
        return {}

    # ---- GRU ----

    def _gated(self, hidden: Node) -> dict[str, list[Node]]:
        for kept, added in _either(hidden):
            mixed, candidate = self._alone(kept, _MUL), self._producer(added, _TANH)
            if mixed is None or candidate is None or len(self.graph.users[added]) != 2:
                continue
            if added in self.graph.output_values or hidden.attrs.get("alpha", 1) != 1:
                continue
            for difference, gate in _either(mixed):
                from_new = self._alone(difference, _SUB)
                update = self._alone(gate, _SIGMOID)
                if from_new is None or update is None or from_new.inputs[1] != added:
                    continue
                state = from_new.inputs[0]
                if state is None or from_new.attrs.get("alpha", 1) != 1:
                    continue
                found = self._gru(hidden, candidate, update, state)
                if found:
                    return found
        return {}

    def _gru(
        self, hidden: Node, candidate: Node, update: Node, state: str
    ) -> dict[str, list[Node]]:
        total = self._alone(candidate.inputs[0], _ADD)
        second = self._alone(update.inputs[0], _ADD)
        if total is None or second is None:
            return {}
        for own, reset_part in _either(total):
            opened = self._alone(reset_part, _MUL)
            for gate, part in _either(opened) if opened is not None else ():
                reset = self._alone(gate, _SIGMOID)
                first = None if reset is None else self._alone(reset.inputs[0], _ADD)
                if first is None:
                    continue
                for r in _either(first):
                    for z in _either(second):
                        found = self._gru_of(hidden, (r, z, (part, own)), state)
                        if found:
                            return found
        return {}

    def _gru_of(
        self, hidden: Node, pairs: tuple[tuple[str, str], ...], state: str
    ) -> dict[str, list[Node]]:
        """Pairs: of each gate its part of the product and of the addend."""
        sums = [self._part(pair[0], GATES["gru"]) for pair in pairs]
        more = [self._part(pair[1], GATES["gru"]) for pair in pairs]
        if {s[1] for s in sums if s is not None} != {0, 1, 2} or None in (*sums, *more):
            return {}
        if [s and s[1] for s in sums] != [a and a[1] for a in more]:
            return {}
        sources = [{p[0] for p in parts if p is not None} for parts in (sums, more)]
        if any(len(source) != 1 for source in sources):
            return {}
        (source,), (addend,) = sources
        product = self.graph.producers.get(source)
        if product is None:
            return {}
        first = self._is_first(product, hidden, state, "gru")
        if not first and not self._is_product(product, hidden, state, "gru"):
            return {}
        given = self.graph.types[addend]
        if (not first and product.inputs[3] is not None) or given.numel != product.type.numel:
            return {}
        if given.dtype != product.type.dtype or given.shape[-1] != product.type.shape[-1]:
            return {}
        nodes, addend = self._added(hidden, addend, product.type)
        gates = tuple(s[1] for s in sums if s is not None)
        step: dict[str, Attr] = {"cell": "gru", "gates": gates, "act": "tanh"}
        inputs = (*_operands_of(product), addend, state)
        return {hidden.name: [*nodes, _step(hidden, (hidden.output,), inputs, step)]}

    # ---- LSTM ----

    def _long_short_term(self, hidden: Node) -> dict[str, list[Node]]:
        outer = self._operands(hidden, _SIGMOID, _TANH)
        cell = None if outer is None else self._producer(outer[1].inputs[0], _ADD)
        if outer is None or cell is None or cell.attrs.get("alpha", 1) != 1:
            return {}
        if any(i is None or self.graph.types[i] != hidden.type for i in cell.inputs):
            return {}
        for kept, entered in _either(cell):
            inner = self._alone(entered, _MUL)
            gated = None if inner is None else self._operands(inner, _SIGMOID, _TANH)
            forgotten = self._alone(kept, _MUL)
            if gated is None or forgotten is None:
                continue
            for gate, before in _either(forgotten):
                forget = self._alone(gate, _SIGMOID)
                if forget is None:
                    continue
                gates = (gated[0], forget, gated[1], outer[0])
                fused = self._lstm(hidden, cell, gates, before)
                if fused:
                    return {cell.name: fused, hidden.name: []}
        return {}

    def _lstm(self, hidden: Node, cell: Node, gates: tuple[Node, ...], before: str) -> list[Node]:
        parts = [self._part(gate.inputs[0], GATES["lstm"]) for gate in gates]
        sources = {part[0] for part in parts if part is not None}
        places = [part[1] for part in parts if part is not None]
        if len(sources) != 1 or sorted(places) != list(range(GATES["lstm"])):
            return []
        product = self.graph.producers.get(sources.pop())
        attrs: dict[str, Attr] = {"cell": "lstm", "gates": tuple(places), "act": "tanh"}
        if product is None:
            return []
        outputs = (hidden.output, cell.output)
        if self._is_product(product, hidden, before, "lstm"):
            return [_step(hidden, outputs, (*product.inputs, before), attrs)]
        for value, added in _either(product) if product.op == _ADD else ():
            first = self.graph.producers.get(value)
            if first is not None and self._is_first(first, hidden, before, "lstm"):
                nodes, added = self._added(hidden, added, product.type)
                inputs = (*_operands_of(first), added, before)
                return [*nodes, _step(hidden, outputs, inputs, attrs)]
        return []

    # ---- what they share ----

    def _added(self, hidden: Node, value: str, wanted: TensorType) -> tuple[list[Node], str]:
        """Returns an addend in the shape of the sums, with the node that makes it so, if any."""
        given = self.graph.types[value]
        if given.shape == wanted.shape:
            return [], value
        name, type = self.names.fresh(f"{hidden.name}_added"), TensorType(given.dtype, wanted.shape)
        size: dict[str, Attr] = {"size": wanted.shape}
        return [Node(name, _VIEW, (value,), (Value(name, type),), size, hidden.source)], name

    def _is_first(self, product: Node, hidden: Node, state: str, cell: str) -> bool:
        """Tells whether a product is of the rows before the first step, which the model made: it
        depends on weights alone, and so is still as the model has it."""
        if product.op != "aten.linear.default" or product.inputs[0] not in self.graph.static_values:
            return False
        if len(self.graph.users[product.inputs[1] or ""]) < 2:
            return False  # of no other step
        rows = self.graph.types[product.inputs[0]]
        same = rows == hidden.type and self.graph.types[state] == hidden.type
        return same and self._fits(product, cell, hidden.type)

    def _is_product(self, product: Node, hidden: Node, state: str, cell: str) -> bool:
        """Tells whether a product adds and does nothing else, of few rows of the right dtype."""
        attrs = product.attrs
        if product.op != "npu.linear" or attrs["act"] != "copy" or "dtype" in attrs:
            return False
        return self.graph.types[state] == hidden.type and self._fits(product, cell, hidden.type)

    def _fits(self, product: Node, cell: str, hidden: TensorType, joined: bool = True) -> bool:
        """Tells whether a step is one command, or may be of one command with others."""
        x = self.graph.types[product.inputs[0] or ""]
        weight = self.graph.types[product.inputs[1] or ""]
        *lead, units = hidden.shape
        return (
            x.dtype == weight.dtype == hidden.dtype == product.type.dtype
            and x.dtype in _DTYPES
            and product.type.shape == (*lead, GATES[cell] * units)
            and (
                is_step(self.target.recurrent, cell, prod(lead), units, x.shape[-1])
                or (joined and x.shape[-1] == units and self._held(cell, hidden))
            )
        )

    def _held(self, cell: str, hidden: TensorType) -> bool:
        return joins_steps(self.target, cell, hidden.dtype, hidden.shape[-1])

    def _part(self, value: str | None, parts: int) -> tuple[str, int] | None:
        """Returns what a value is one of so many parts of, along its last dimension, and which."""
        part = self.graph.producers.get(value or "")
        if part is None or value is None or part.op not in (_SPLIT, _SLICE):
            return None
        source = part.inputs[0]
        if source is None or not self._read_once(value):
            return None
        whole = self.graph.types[source]
        last, size = whole.rank - 1, whole.shape[-1] // parts
        if part.attrs["dim"] not in (last, -1):
            return None
        if part.op == _SPLIT:
            if part.attrs["split_sizes"] != (size,) * parts:
                return None
            alone = len(self.graph.users[source]) == 1
            place = [v.name for v in part.outputs].index(value)
        else:
            start = part.attrs["start"]
            assert isinstance(start, int)
            if part.attrs["step"] != 1 or part.type.shape[-1] != size or start % size:
                return None
            alone = len(self.graph.users[source]) == parts
            place = start // size
        seen = source in self.graph.output_values
        return (source, place) if alone and not seen else None

    def _operands(self, node: Node, first: str, second: str) -> tuple[Node, Node] | None:
        """Returns the producers of a product's operands, one of each op, that it alone reads."""
        for a, b in _either(node):
            one, other = self._alone(a, first), self._alone(b, second)
            if one is not None and other is not None:
                return one, other
        return None

    def _alone(self, value: str | None, op: str) -> Node | None:
        """Returns the producer of a value that has one reader; an addition is a plain one."""
        node = self._producer(value, op)
        if node is None or value is None or not self._read_once(value):
            return None
        return node if op != _ADD or node.attrs.get("alpha", 1) == 1 else None

    def _producer(self, value: str | None, op: str) -> Node | None:
        node = self.graph.producers.get(value or "")
        return node if node is not None and node.op == op else None

    def _read_once(self, value: str) -> bool:
        return len(self.graph.users[value]) == 1 and value not in self.graph.output_values


def _operands_of(product: Node) -> tuple[str | None, ...]:
    """Returns what a product multiplies, and its bias."""
    x, weight, *bias = product.inputs[:3]
    return (x, weight, bias[0] if bias else None)


def _either(node: Node) -> Iterator[tuple[str, str]]:
    """Yields the two operands of a sum or product of tensors in both orders."""
    if len(node.inputs) == 2:
        a, b = node.inputs
        if a is not None and b is not None:
            yield a, b
            yield b, a


def _step(
    hidden: Node,
    outputs: tuple[Value, ...],
    inputs: tuple[str | None, ...],
    attrs: dict[str, Attr],
) -> Node:
    return Node(hidden.name, RECURRENT_STEP, inputs, outputs, attrs, hidden.source)
