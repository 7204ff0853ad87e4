"""Has attention between layers in bytes multiply bfloat16, and writes that into the graph.

What such attention gives becomes a byte for the layers that read it, so its products may have
operands of 8 significant bits as well; scores, exponentials and sums stay float32. Where the
result, or a view of it, is read as floats by anybody, it stays float32, and so it does in models
that keep keys and values from call to call: these would be converted anew by each.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from npusim.analysis.shapes import VIEWS
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, rewrite

ATTENTION = "aten.scaled_dot_product_attention.default"
_MULTIPLIED = 3  # operands: queries, keys and values; a mask is added
_CAST = "aten._to_copy.default"


def attention_between(graph: Graph, layers: Collection[str]) -> frozenset[str]:
    """Returns the nodes of attention whose result only layers in bytes read.

    Args:
        graph: canonical.
        layers: the names of the nodes that multiply bytes.
    """
    if graph.states:
        return frozenset()
    kept = set(graph.output_values)

    def for_layers(value: str) -> bool:
        users = graph.users.get(value, ())
        return value not in kept and bool(users) and all(is_for_layers(u, value) for u in users)

    def is_for_layers(user: Node, value: str) -> bool:
        if user.op in VIEWS:
            return all(for_layers(v.name) or v.name not in graph.users for v in user.outputs)
        return user.name in layers and user.inputs.count(value) == 1 and user.inputs[0] == value

    found = (n for n in graph.nodes if n.op == ATTENTION and n.type.dtype == "float32")
    return frozenset(n.name for n in found if for_layers(n.output.name))


def with_bfloat16(graph: Graph, attention: Collection[str]) -> Graph:
    """Returns the graph with nodes of attention that multiply bfloat16."""
    return rewrite(graph, _Narrowing(attention).visit) if attention else graph


class _Narrowing:
    """One graph being rewritten: conversions go in front of views, where products store them."""

    def __init__(self, attention: Collection[str]) -> None:
        self._attention = attention
        self._narrow: dict[str, str] = {}  # by what was float32
        self._wide: dict[str, str] = {}  # by what is bfloat16 now

    def visit(self, node: Node, rewriter: Rewriter) -> Answer:
        inputs = list(node.inputs)
        if node.name in self._attention:
            for at, value in enumerate(inputs[:_MULTIPLIED]):
                inputs[at] = self._narrowed(value or "", node, rewriter)
            return self._retyped(node, inputs)
        if not any(i in self._wide for i in inputs):
            return None
        if node.op in VIEWS:
            return self._retyped(node, inputs)
        inputs = [self._widened(i, node, rewriter) if i in self._wide else i for i in inputs]
        return replace(node, inputs=tuple(inputs))

    def _retyped(self, node: Node, inputs: list[str | None]) -> Node:
        self._wide |= dict.fromkeys((v.name for v in node.outputs), "")
        outputs = (replace(v, type=replace(v.type, dtype="bfloat16")) for v in node.outputs)
        return replace(node, inputs=tuple(inputs), outputs=tuple(outputs))

    def _narrowed(self, value: str, node: Node, rewriter: Rewriter) -> str:
        if value in self._wide:
            return value
        if value not in self._narrow:
            op, source = _CAST, value
            attrs: Mapping[str, Attr] = {"dtype": "bfloat16"}
            view = rewriter.producer(value)
            if view is not None and view.op in VIEWS and len(view.inputs + view.outputs) == 2:
                op, attrs = view.op, view.attrs
                source = self._narrowed(view.inputs[0] or "", node, rewriter)
            type = replace(rewriter.types[value], dtype="bfloat16")
            self._narrow[value] = rewriter.emit(op, (source,), type, attrs, like=node)
        return self._narrow[value]

    def _widened(self, value: str | None, node: Node, rewriter: Rewriter) -> str:
        value = value or ""
        if not self._wide[value]:
            type = replace(rewriter.types[value], dtype="float32")
            self._wide[value] = rewriter.emit(
                _CAST, (value,), type, {"dtype": "float32"}, like=node
            )
        return self._wide[value]
