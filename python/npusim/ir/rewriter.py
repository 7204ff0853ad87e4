"""Rewriter: streams a graph's nodes through a visitor and builds the rewritten graph.

Owns the bookkeeping every pattern pass needs: use counts, producers and types of the graph being
built, fresh names, and the removal of what a replacement left without users. Each step costs a
constant, so a pass is linear in the nodes. Knows no op.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Union

from npusim.errors import GraphError, SymbolicSizeError, at
from npusim.ir.graph import Attr, Constant, Graph, Node, Output, Value
from npusim.ir.rewrite import Names, rename_inputs
from npusim.ir.types import TensorType

# What reading a node raises that lacks operands or attributes, or has some of the wrong kind.
MALFORMED = (
    *(ArithmeticError, AssertionError, AttributeError, IndexError, KeyError),
    *(TypeError, ValueError),
)

# What a visitor answers: None keeps the node; a Node takes its place (and defines its outputs,
# under the same names); a value's name says that the node's first result is that value.
Answer = Union[None, Node, str]


@contextmanager
def reading(node: Node) -> Iterator[None]:
    """Turns what a malformed node (from a file, say) raises into a GraphError that names it."""
    try:
        yield
    except MALFORMED as error:
        raise GraphError(
            f"Node {node.name} ({node.op}){at(node.source)} does not have the operands and "
            f"attributes of its op: {type(error).__name__}: {error}."
        ) from error


class Rewriter:
    """The graph being built. Visitors see what stands before the node they are asked about.

    Attributes:
        types: the type of every value.
        constants: the constants by name.
        static: values that depend on weights and constants alone.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.types: dict[str, TensorType] = dict(graph.types)
        self.constants: dict[str, Constant] = {c.name: c for c in graph.constants}
        self.static: set[str] = {w.name for w in graph.weights} | set(self.constants)
        self._names = Names(graph)
        self._nodes: dict[str, Node] = {}
        self._producers: dict[str, Node] = {}
        self._renames: dict[str, str] = {}
        self._emitted: list[Node] = []
        self._uses: Counter[str] = Counter(o.value for o in (*graph.outputs, *graph.updates))
        self._uses.update(i for n in graph.nodes for i in n.inputs if i is not None)

    def producer(self, value: str | None) -> Node | None:
        """Returns the node that defines a value; None for inputs, weights and constants."""
        return None if value is None else self._producers.get(value)

    def uses(self, value: str) -> int:
        """Returns how many operands, graph outputs and updates of states read a value."""
        return self._uses[value]

    def only_feeds(self, value: str, node: Node) -> bool:
        """Tells whether nothing but `node` reads a value."""
        return self._uses[value] == node.inputs.count(value)

    def emit(
        self,
        op: str,
        inputs: Sequence[str | None],
        type: TensorType,
        attrs: Mapping[str, Attr] | None = None,
        *,
        like: Node,
        name: str = "",
    ) -> str:
        """Adds a node before the one being visited and returns its value.

        Args:
            like: the node whose source the new one inherits.
            name: what to call it; by default after the op.
        """
        fresh = self._names.fresh(name or op.split(".")[1])
        self._append(
            Node(fresh, op, tuple(inputs), (Value(fresh, type),), attrs or {}, like.source)
        )
        return fresh

    def constant(self, name: str, type: TensorType, data: bytes) -> str:
        """Adds a constant and returns its value."""
        fresh = self._names.fresh(name)
        self.constants[fresh] = Constant(fresh, type, data)
        self.types[fresh] = type
        self.static.add(fresh)
        return fresh

    def run(self, visit: Callable[[Node, Rewriter], Answer]) -> Graph:
        """Asks the visitor about every node in order and returns the resulting graph.

        A node about which the visitor cannot decide, as it depends on the sizes of a call, stays.
        """
        for original in self._graph.nodes:
            node = rename_inputs(original, self._renames)
            self._emitted.clear()
            answer: Answer = None
            with reading(node), suppress(SymbolicSizeError):  # what calls decide stays as it is
                answer = visit(node, self)
            if answer is None:
                self._keep(node)
            else:
                if isinstance(answer, Node):
                    self._append(answer)
                else:
                    self._alias(node.outputs[0].name, answer)
                self._release(node.inputs)
            for emitted in reversed(self._emitted):  # for an attempt that was given up
                self._drop_unused(emitted)
        return self._finish()

    def _keep(self, node: Node) -> None:
        self._nodes[node.name] = node
        self._define(node)

    def _append(self, node: Node) -> None:
        self._keep(node)
        self._uses.update(i for i in node.inputs if i is not None)

    def _define(self, node: Node) -> None:
        for value in node.outputs:
            self._producers[value.name] = node
            self.types[value.name] = value.type
        if all(i is None or i in self.static for i in node.inputs):
            self.static.update(v.name for v in node.outputs)

    def _alias(self, old: str, new: str) -> None:
        self._renames[old] = new
        self._uses[new] += self._uses.pop(old, 0)

    def _release(self, inputs: Sequence[str | None]) -> None:
        """Gives up uses; a node whose results nobody reads any more goes, and gives up its own."""
        stack = [i for i in inputs if i is not None]
        while stack:
            value = stack.pop()
            self._uses[value] -= 1
            node = self._producers.get(value)
            if node is not None and self._remove(node):
                stack += [i for i in node.inputs if i is not None]

    def _drop_unused(self, node: Node) -> None:
        if self._remove(node):
            self._release(node.inputs)

    def _remove(self, node: Node) -> bool:
        """Removes a node that is there and that nobody reads; tells whether it did."""
        if any(self._uses[v.name] for v in node.outputs):
            return False
        return self._nodes.pop(node.name, None) is not None

    def _finish(self) -> Graph:
        nodes = tuple(self._nodes.values())
        added = tuple(c for n, c in self.constants.items() if n not in self._graph.types)
        outputs, updates = (
            tuple(Output(o.name, self._renames.get(o.value, o.value)) for o in results)
            for results in (self._graph.outputs, self._graph.updates)
        )
        changed = replace(
            self._graph,
            nodes=nodes,
            outputs=outputs,
            updates=updates,
            constants=self._graph.constants + added,
        )
        return self._graph if changed == self._graph else changed


def whole(graph: Graph) -> Rewriter:
    """Returns a rewriter that stands after the last node, to look things up in a graph."""
    rewriter = Rewriter(graph)
    rewriter.run(lambda node, rewriter: None)
    return rewriter


def rewrite(graph: Graph, visit: Callable[[Node, Rewriter], Answer]) -> Graph:
    """Returns the graph with every node replaced as the visitor answers; see `Answer`."""
    return Rewriter(graph).run(visit)


def become(
    node: Node,
    op: str,
    inputs: Sequence[str | None],
    attrs: Mapping[str, Attr] | None = None,
) -> Node:
    """Returns a node that computes the results of another one in another way."""
    return replace(node, op=op, inputs=tuple(inputs), attrs=attrs or {})
