"""Complex numbers as pairs of real ones: [..., 2], the real part first.

Owns the rewrite of a decomposed program in which all that happens to complex numbers can be said of
pairs. No device computes complex numbers, but rotary embeddings are often written with them
(`view_as_complex(x) * polar(...)`), and that is real arithmetic under another name. A program with
any other complex operator is left as it is: PyTorch then runs those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, Node

aten = torch.ops.aten


class _NoPair(Exception):
    """A complex value that no rule makes a pair of."""


class _Writer:
    """Emits real nodes for complex ones, in front of the node that is being rewritten."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.pairs: dict[Node, Node] = {}
        self.emitted: list[Node] = []
        self.origin: Node | None = None

    def call(self, target: Any, *args: Any, **options: Any) -> Node:
        node = self.graph.call_function(target, args, options)
        node.meta["val"] = target(*torch.fx.map_arg(args, lambda n: n.meta["val"]), **options)
        for key in ("nn_module_stack", "stack_trace"):
            if self.origin is not None and key in self.origin.meta:
                node.meta[key] = self.origin.meta[key]
        self.emitted.append(node)
        return node

    def pair(self, value: Any) -> Node:
        """Returns the pair of a complex value; refuses what is real."""
        if not isinstance(value, Node) or value not in self.pairs:
            raise _NoPair
        return self.pairs[value]

    def parts(self, value: Any) -> tuple[Node, Node]:
        pair = self.pair(value)
        last = pair.meta["val"].dim() - 1
        real, imaginary = (self.call(aten.select.int, pair, last, i) for i in (0, 1))
        return real, imaginary

    def join(self, real: Node, imaginary: Node) -> Node:
        rank = real.meta["val"].dim()
        columns = [self.call(aten.unsqueeze.default, part, rank) for part in (real, imaginary)]
        return self.call(aten.cat.default, columns, rank)

    def factor(self, value: Any) -> Any:
        """Returns a real number or tensor as a factor of pairs."""
        if isinstance(value, Node):
            return self.call(aten.unsqueeze.default, value, value.meta["val"].dim())
        if isinstance(value, complex):
            raise _NoPair
        return value


Rule = Callable[[_Writer, Node], Node]


def write_as_pairs(graph: Graph) -> None:
    """Rewrites all complex values of a program as pairs, or none of them."""
    writer = _Writer(graph)
    nodes = [n for n in graph.nodes if any(map(_is_complex, (n, *n.all_input_nodes)))]
    if not nodes:
        return
    body = next(n for n in graph.nodes if n.op != "placeholder")
    try:
        for node in nodes:
            with graph.inserting_before(body if node.op == "placeholder" else node):
                writer.origin = node
                writer.pairs[node] = _pair_of(writer, node)
    except _NoPair:
        for node in reversed(writer.emitted):
            graph.erase_node(node)
        return
    for node in reversed(nodes):
        if node.target is aten.view_as_real.default:
            node.replace_all_uses_with(writer.pairs[node])
        if node.op == "call_function":
            graph.erase_node(node)


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_complex()


def _pair_of(writer: _Writer, node: Node) -> Node:
    if node.op == "placeholder":
        return writer.call(aten.view_as_real.default, node)
    rule = _RULES.get(node.target) if node.op == "call_function" else None
    if rule is None or (node.kwargs and rule is not _same):
        raise _NoPair
    pair, value = rule(writer, node), node.meta["val"]
    shape = (*value.shape, 2) if value.is_complex() else tuple(value.shape)
    found = pair.meta["val"]
    if (tuple(found.shape), found.dtype) != (shape, value.dtype.to_real()):
        raise _NoPair
    return pair


def _arguments(node: Node) -> tuple[Any, ...]:
    return tuple(node.args)


# ---- arithmetic ----


def _polar(writer: _Writer, node: Node) -> Node:
    size, angle = _arguments(node)
    parts = (writer.call(f, angle) for f in (aten.cos.default, aten.sin.default))
    return writer.join(*(writer.call(aten.mul.Tensor, size, part) for part in parts))


def _product(writer: _Writer, node: Node) -> Node:
    x, y = _arguments(node)
    if y in writer.pairs and x in writer.pairs:
        (a, b), (c, d) = writer.parts(x), writer.parts(y)

        def times(p: Node, q: Node) -> Node:
            return writer.call(aten.mul.Tensor, p, q)

        real = writer.call(aten.sub.Tensor, times(a, c), times(b, d))
        return writer.join(real, writer.call(aten.add.Tensor, times(a, d), times(b, c)))
    scaled, factor = (y, x) if y in writer.pairs else (x, y)
    return writer.call(node.target, writer.pair(scaled), writer.factor(factor))


def _quotient(writer: _Writer, node: Node) -> Node:
    x, y = _arguments(node)
    if y in writer.pairs:
        raise _NoPair
    return writer.call(node.target, writer.pair(x), writer.factor(y))


def _sum(writer: _Writer, node: Node) -> Node:
    return writer.call(node.target, *map(writer.pair, _arguments(node)))


def _conjugate(writer: _Writer, node: Node) -> Node:
    real, imaginary = writer.parts(_arguments(node)[0])
    return writer.join(real, writer.call(aten.neg.default, imaginary))


# ---- shapes: what happens to dimensions in front of the last ----


def _same(writer: _Writer, node: Node) -> Node:
    return writer.pair(_arguments(node)[0])


def _reshaped(writer: _Writer, node: Node) -> Node:
    pair = writer.pair(_arguments(node)[0])
    dense = writer.call(aten.clone.default, pair, memory_format=torch.contiguous_format)
    return writer.call(node.target, dense, [*node.meta["val"].shape, 2])


def _permuted(writer: _Writer, node: Node) -> Node:
    x, order = _arguments(node)
    rank = node.meta["val"].dim()
    return writer.call(node.target, writer.pair(x), [*(d % rank for d in order), rank])


def _along(writer: _Writer, node: Node) -> Node:
    """Operators of (x, dimension, ...)."""
    x, *rest = _arguments(node)
    dimension, *rest = rest or [0]
    rank = x.meta["val"].dim() + (node.target is aten.unsqueeze.default)
    return writer.call(node.target, writer.pair(x), dimension % rank, *rest)


def _joined(writer: _Writer, node: Node) -> Node:
    parts, dimension = (*_arguments(node), 0)[:2]
    rank = node.meta["val"].dim()
    pairs = [writer.pair(part) for part in parts]
    return writer.call(node.target, pairs, dimension % rank)


_RULES: dict[Any, Rule] = {
    aten.view_as_complex.default: lambda _, node: _arguments(node)[0],
    aten.view_as_real.default: _same,
    aten.polar.default: _polar,
    aten.complex.default: lambda writer, node: writer.join(*_arguments(node)),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), _product),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), _quotient),
    **dict.fromkeys((aten.add.Tensor, aten.sub.Tensor, aten.neg.default), _sum),
    **dict.fromkeys((aten._conj.default, aten._conj_physical.default), _conjugate),
    **dict.fromkeys((aten.clone.default, aten.alias.default, aten._to_copy.default), _same),
    **dict.fromkeys((aten.view.default, aten.expand.default, aten.reshape.default), _reshaped),
    aten.permute.default: _permuted,
    **dict.fromkeys((aten.unsqueeze.default, aten.select.int), _along),
    **dict.fromkeys((aten.slice.Tensor, aten.index_select.default), _along),
    aten.cat.default: _joined,
}
