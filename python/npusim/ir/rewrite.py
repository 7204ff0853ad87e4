"""The toolbox passes are written with: build a Graph, order nodes, rename uses, drop the dead.

Owns graph surgery that is the same for every pass; knows no op. Graphs are immutable: every
function returns a new one. Nothing here verifies; `npusim.ir.verify` does, after each pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from npusim.errors import GraphError
from npusim.ir.graph import Attr, Constant, Graph, Node, Output, Source, Value, Weight
from npusim.ir.types import TensorType


class Names:
    """Hands out names that no value and no node of a graph uses yet."""

    def __init__(self, graph: Graph | None = None) -> None:
        self._taken: set[str] = set()
        self._next: dict[str, int] = {}
        if graph is not None:
            self._taken.update(graph.types, (n.name for n in graph.nodes))

    def __contains__(self, name: str) -> bool:
        return name in self._taken

    def fresh(self, base: str) -> str:
        """Returns `base`, or `base_1`, `base_2` … when it is taken, and reserves it."""
        name, count = base, self._next.get(base, 0)
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._next[base] = count
        self._taken.add(name)
        return name


def rebuild(
    graph: Graph,
    nodes: Iterable[Node],
    outputs: Sequence[Output] | None = None,
    *,
    inputs: Sequence[Value] | None = None,
    weights: Sequence[Weight] | None = None,
    constants: Sequence[Constant] | None = None,
    updates: Sequence[Output] | None = None,
) -> Graph:
    """Returns the graph with other nodes, ordered so that definitions precede uses.

    What is not given stays. The order of `nodes` is kept wherever the dependences allow it.
    """
    return Graph(
        name=graph.name,
        inputs=graph.inputs if inputs is None else tuple(inputs),
        outputs=graph.outputs if outputs is None else tuple(outputs),
        weights=graph.weights if weights is None else tuple(weights),
        constants=graph.constants if constants is None else tuple(constants),
        nodes=topological(tuple(nodes)),
        states=graph.states,
        updates=graph.updates if updates is None else tuple(updates),
    )


def topological(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """Returns the nodes in execution order, moving one forward only when a user precedes it.

    Raises:
        GraphError: the nodes depend on each other in a circle.
    """
    producers = {v.name: i for i, node in enumerate(nodes) for v in node.outputs}
    done: dict[int, Node] = {}
    active: set[int] = set()
    stack = list(reversed(range(len(nodes))))
    while stack:
        index = stack[-1]
        node = nodes[index]
        wanted = (producers[i] for i in node.inputs if i is not None and i in producers)
        missing = [] if index in done else [p for p in wanted if p not in done]
        if not missing:
            done[index] = node
            stack.pop()
            continue
        if index in active:
            raise GraphError(f"Node {node.name} ({node.op}) depends on its own result.")
        active.add(index)
        stack.extend(reversed(missing))
    return tuple(done.values())


def substitute(graph: Graph, mapping: Mapping[str, str]) -> Graph:
    """Returns the graph with every use of a mapped value replaced: in nodes, outputs and updates.

    Chains are followed (a -> b, b -> c makes a -> c). Definitions stay: a node that has lost its
    users is left for `drop_dead`.
    """
    if not mapping:
        return graph
    final = {name: _resolve(name, mapping) for name in mapping}
    nodes = (rename_inputs(node, final) for node in graph.nodes)
    outputs, updates = (
        tuple(Output(o.name, final.get(o.value, o.value)) for o in results)
        for results in (graph.outputs, graph.updates)
    )
    return rebuild(graph, nodes, outputs, updates=updates)


def _resolve(name: str, mapping: Mapping[str, str]) -> str:
    start = name
    while name in mapping and mapping[name] != name:
        name = mapping[name]
        if name == start:
            raise GraphError(f"The substitution of {start} goes in a circle.")
    return name


def rename_inputs(node: Node, mapping: Mapping[str, str]) -> Node:
    """Returns the node reading the mapped values; itself when it reads none of them."""
    inputs = tuple(mapping.get(i, i) if i is not None else None for i in node.inputs)
    return node if inputs == node.inputs else replace(node, inputs=inputs)


def drop_dead(graph: Graph) -> Graph:
    """Returns the graph without nodes, weights, constants no output and no update depends on."""
    live = set(graph.output_values)
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if any(v.name in live for v in node.outputs):
            kept.append(node)
            live.update(i for i in node.inputs if i is not None)
    return replace(
        graph,
        nodes=tuple(reversed(kept)),
        weights=tuple(w for w in graph.weights if w.name in live),
        constants=tuple(c for c in graph.constants if c.name in live),
    )


class GraphBuilder:
    """Builds a Graph value by value; every method returns the name of what it defined."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.names = Names()
        self._inputs: list[Value] = []
        self._outputs: list[Output] = []
        self._weights: list[Weight] = []
        self._constants: list[Constant] = []
        self._nodes: list[Node] = []
        self._node_names = Names()
        self._states: list[Value] = []
        self._updates: list[Output] = []

    def state(self, name: str, type: TensorType) -> str:
        """Adds a state; its name is the value it has before the call."""
        value = Value(self.names.fresh(name), type)
        self._states.append(value)
        return value.name

    def update(self, state: str, value: str) -> None:
        """Makes a value what the call leaves in a state."""
        self._updates.append(Output(state, value))

    def input(self, name: str, type: TensorType) -> str:
        """Adds a graph input."""
        value = Value(self.names.fresh(name), type)
        self._inputs.append(value)
        return value.name

    def weight(
        self,
        name: str,
        type: TensorType,
        *,
        key: str = "",
        aliases: Sequence[str] = (),
        persistent: bool = True,
    ) -> str:
        """Adds a checkpoint tensor; its key is its name unless given."""
        weight = Weight(self.names.fresh(name), key or name, type, tuple(aliases), persistent)
        self._weights.append(weight)
        return weight.name

    def constant(self, name: str, type: TensorType, data: bytes) -> str:
        """Adds a constant; `data` is row-major and little-endian."""
        constant = Constant(self.names.fresh(name), type, bytes(data))
        self._constants.append(constant)
        return constant.name

    def nodes(
        self,
        op: str,
        inputs: Sequence[str | None],
        types: Sequence[TensorType],
        attrs: Mapping[str, Attr] | None = None,
        *,
        name: str = "",
        source: Source | None = None,
    ) -> tuple[str, ...]:
        """Adds a node with one output a type; returns the outputs' names."""
        base = name or op.split(".")[-2 if op.count(".") > 1 else -1]
        node_name = self._node_names.fresh(base)
        bases = [node_name] if len(types) == 1 else [f"{node_name}.{i}" for i in range(len(types))]
        values = tuple(Value(self.names.fresh(b), t) for b, t in zip(bases, types, strict=True))
        self._nodes.append(Node(node_name, op, tuple(inputs), values, attrs or {}, source))
        return tuple(v.name for v in values)

    def node(
        self,
        op: str,
        inputs: Sequence[str | None],
        type: TensorType,
        attrs: Mapping[str, Attr] | None = None,
        *,
        name: str = "",
        source: Source | None = None,
    ) -> str:
        """Adds a node with one output; returns its name."""
        return self.nodes(op, inputs, (type,), attrs, name=name, source=source)[0]

    def output(self, name: str, value: str) -> None:
        """Adds a result of the graph."""
        self._outputs.append(Output(name, value))

    def build(self) -> Graph:
        """Returns the graph, not verified."""
        return Graph(
            self.name,
            tuple(self._inputs),
            tuple(self._outputs),
            tuple(self._weights),
            tuple(self._constants),
            tuple(self._nodes),
            tuple(self._states),
            tuple(self._updates),
        )
