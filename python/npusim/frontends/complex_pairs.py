"""Complex numbers as pairs of real ones: [..., 2], the real part first.

Owns the rewrite of a decomposed program in which what happens to complex numbers is said of pairs.
No device computes complex numbers, but rotary embeddings, spectra and filters are written with
them, and that is real arithmetic under another name. The rules stand in `complex_rules.py` and
`fourier.py`; an operator without one stays as it is, between a pair made complex and a complex
number made a pair, and PyTorch runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten = torch.ops.aten


class NoPair(Exception):
    """What a rule cannot say of pairs."""


class Writer:
    """Emits real nodes for complex ones, before the node that is being rewritten."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.pairs: dict[Node, Any] = {}  # of a node with several results: a list
        self.known: dict[object, Node] = {}  # tables by what they hold
        self.emitted: list[Node] = []
        self.origin: Node | None = None

    def call(self, target: Any, *args: Any, **options: Any) -> Node:
        """Emits a call and returns its node."""
        node = self.graph.call_function(target, args, options)
        plain = torch.fx.map_arg((args, options), lambda n: n.meta["val"])
        node.meta["val"] = target(*plain[0], **plain[1])
        for key in ("nn_module_stack", "stack_trace"):
            if self.origin is not None and key in self.origin.meta:
                node.meta[key] = self.origin.meta[key]
        self.emitted.append(node)
        return node

    def pair(self, value: Any) -> Node:
        """Returns the pair of a complex value; refuses what is real."""
        if not isinstance(value, Node) or not isinstance(self.pairs.get(value), Node):
            raise NoPair
        return self.pairs[value]

    def is_complex(self, value: Any) -> bool:
        """Tells whether an argument is a complex tensor or number."""
        return isinstance(value, complex) or (isinstance(value, Node) and value in self.pairs)

    def parts(self, value: Any) -> tuple[Any, Any]:
        """Returns real and imaginary part of an argument; those of a number are numbers."""
        if not isinstance(value, Node):
            number = complex(value)
            return number.real, number.imag
        if value not in self.pairs:
            return value, 0.0
        pair = self.pair(value)
        last = rank(pair) - 1
        real, imaginary = (self.call(aten.select.int, pair, last, i) for i in (0, 1))
        return real, imaginary

    def join(self, real: Node, imaginary: Node) -> Node:
        """Returns the pair of two parts."""
        columns = [self.call(aten.unsqueeze.default, p, rank(p)) for p in (real, imaginary)]
        return self.call(aten.cat.default, columns, rank(real))

    def factor(self, value: Any) -> Any:
        """Returns a real number or tensor as a factor of pairs."""
        return self.call(aten.unsqueeze.default, value, rank(value)) if is_node(value) else value

    def dense(self, x: Node) -> Node:
        """Returns a node as `aten.view` takes it."""
        return self.call(aten.clone.default, x, memory_format=torch.contiguous_format)

    def view(self, x: Node, shape: Sequence[Any], like: Node | None = None) -> Node:
        """Returns a node in another shape, of whose open sizes at most one is computed.

        Args:
            like: has the open sizes that x has not, each as one of its dimensions.
        """
        sizes: list[Any] = [n if isinstance(n, int) else -1 for n in shape]
        if sizes.count(-1) > 1:
            sizes = [n if isinstance(n, int) else self._size(n, (x, like)) for n in shape]
        if sizes.count(-1) > 1:
            raise NoPair
        return self.call(aten.view.default, self.dense(x), sizes)

    def _size(self, size: torch.SymInt, nodes: Sequence[Node | None]) -> Any:
        """Returns an open size as a node that reads it off another one; -1 where none has it."""
        for node in (n for n in nodes if n is not None):
            for dim, own in enumerate(node.meta["val"].shape):
                if isinstance(own, torch.SymInt) and own.node.expr == size.node.expr:
                    return self.call(aten.sym_size.int, node, dim)
        return -1


def rank(node: Node) -> int:
    """Returns how many dimensions a node's tensor has."""
    return int(node.meta["val"].dim())


def is_node(value: Any) -> bool:
    """Tells whether an argument is a tensor of the program."""
    return isinstance(value, Node) and isinstance(value.meta.get("val"), Tensor)


Rule = Callable[[Writer, Node], Any]


def write_as_pairs(graph: Graph, rules: dict[Any, Rule]) -> None:
    """Rewrites a program's complex values as pairs, as far as there are rules.

    Args:
        rules: by operator, what gives the pair of its result (or its real result, or a list of
            these); NoPair where it cannot.
    """
    nodes = [n for n in graph.nodes if any(map(_is_complex, (n, *n.all_input_nodes)))]
    if not nodes:
        return
    writer = _Rewrite(graph, rules)
    with _mode_of(nodes[0]):
        for node in nodes:
            writer.rewrite(node)
    for node in reversed(list(graph.nodes)):
        if node in writer.pairs and not node.users and node.op == "call_function":
            graph.erase_node(node)
    for node in reversed(writer.emitted):
        if not node.users:
            graph.erase_node(node)


def _mode_of(node: Node) -> AbstractContextManager[Any]:
    """Returns what keeps tensors that are made of nothing as free of data as a node's are."""
    tensors = [v for v in (node, *node.all_input_nodes) if is_node(v)]
    mode = getattr(tensors[0].meta["val"], "fake_mode", None) if tensors else None
    return nullcontext() if mode is None else mode


class _Rewrite(Writer):
    def __init__(self, graph: Graph, rules: dict[Any, Rule]) -> None:
        super().__init__(graph)
        self.rules = rules
        self.joined: dict[Node, Node] = {}  # pairs made complex again
        self.body = next(n for n in graph.nodes if n.op != "placeholder")

    def rewrite(self, node: Node) -> None:
        before, known = len(self.emitted), dict(self.known)
        self.origin = node
        with self.graph.inserting_before(self.body if node.op == "placeholder" else node):
            try:
                self.pairs[node] = self._checked(node)
            except NoPair:
                for emitted in reversed(self.emitted[before:]):
                    self.graph.erase_node(emitted)
                del self.emitted[before:]
                self.known = known
                self._leave(node)
                return
        if is_node(node) and not _is_complex(node):
            node.replace_all_uses_with(self.pairs[node])

    def _checked(self, node: Node) -> Any:
        rule = self.rules.get(node.target) if node.op == "call_function" else None
        if rule is None:
            raise NoPair
        pair, value = rule(self, node), node.meta["val"]
        results = zip(pair, value, strict=True) if isinstance(pair, list) else [(pair, value)]
        for got, want in results:
            shape = (*want.shape, 2) if want.is_complex() else tuple(want.shape)
            found = got.meta["val"]
            if (tuple(found.shape), found.dtype) != (shape, want.dtype.to_real()):
                raise NoPair
        return pair

    def _leave(self, node: Node) -> None:
        """Leaves a node to PyTorch: its operands are complex, and so is its result."""
        for value in node.all_input_nodes:
            if value in self.pairs and value.op == "call_function" and self._has_rule(value):
                node.replace_input_with(value, self._complex(value))
        if _is_complex(node):
            behind = self.body if node.op == "placeholder" else node.next
            with self.graph.inserting_before(behind):
                self.pairs[node] = self.call(aten.view_as_real.default, node)
                self.joined[node] = node

    def _has_rule(self, value: Node) -> bool:
        return value not in self.joined or self.joined[value] is not value

    def _complex(self, value: Node) -> Node:
        if value not in self.joined:
            dense = self.dense(self.pair(value))
            self.joined[value] = self.call(aten.view_as_complex.default, dense)
        return self.joined[value]


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    several = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(v, Tensor) and v.is_complex() for v in several)
