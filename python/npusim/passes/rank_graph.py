"""Writes the graph that each rank runs, once `passes/shard.py` has chosen what is split.

Products by columns of their weights become a rank's part of the sum and an `npu.all_reduce`;
products by rows keep a rank's columns, gathered where the whole is read; what lies between has the
shapes of parts, and static values are cut by `npu.rank_part`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from npusim.analysis.shapes import RESHAPES
from npusim.analysis.splits import Flow, Split, flow_to
from npusim.ir.graph import Attr, Graph, Node, Value
from npusim.ir.rewrite import Names, drop_dead, rebuild
from npusim.ops.ranks import ALL_GATHER, ALL_REDUCE, RANK_PART


@dataclass
class Region:
    """Split values, what computes them, and the products that end them."""

    splits: dict[str, Split] = field(default_factory=dict)
    flows: dict[str, Flow] = field(default_factory=dict)  # by node
    columns: dict[str, int] = field(default_factory=dict)  # products by rows of W: their parts
    sinks: set[str] = field(default_factory=set)  # products by columns of W


def rank_graph(
    graph: Graph, regions: Sequence[Region], gathered: Collection[str], ranks: int
) -> Graph:
    """Returns the graph as each of `ranks` ranks runs it.

    Args:
        graph: the whole one.
        regions: what is split in it; no value is in two of them.
        gathered: names of products outside of regions that are split by rows of their weights.
    """
    return _RankGraph(graph, regions, gathered, ranks).graph()


class _RankGraph:
    def __init__(
        self, graph: Graph, regions: Sequence[Region], gathered: Collection[str], ranks: int
    ) -> None:
        self._graph, self._gathered_products, self._ranks = graph, gathered, ranks
        self._names = Names(graph)
        self._nodes: list[Node] = []
        self._made: dict[tuple[str, Split], str] = {}
        self._splits = {n: s for region in regions for n, s in region.splits.items()}
        self._flows = {n: f for region in regions for n, f in region.flows.items()}
        self._columns = {n: p for region in regions for n, p in region.columns.items()}
        self._sinks = {n for region in regions for n in region.sinks}

    def graph(self) -> Graph:
        for node in self._graph.nodes:
            if node.name in self._sinks:
                self._row_product(node)
            elif node.name in self._columns:
                parts = self._columns[node.name]
                self._nodes.append(self._column_product(node, parts, node.output))
            elif node.name in self._gathered_products:
                self._gathered(node)
            elif node.name in self._flows:
                self._nodes.append(self._local(node, self._flows[node.name]))
            else:
                self._nodes.append(node)
        graph = rebuild(self._graph, self._nodes)
        states = tuple(self._typed(state) for state in graph.states)
        return drop_dead(replace(graph, states=states))

    def _typed(self, value: Value) -> Value:
        split = self._splits.get(value.name)
        return value if split is None else Value(value.name, split.of(value.type))

    def _add(
        self, like: Node, op: str, inputs: tuple[str | None, ...], value: Value, **attrs: Attr
    ) -> None:
        name = value.name if value.name != like.output.name else like.name
        self._nodes.append(Node(name, op, inputs, (value,), attrs, like.source))

    def _fresh(self, base: str, value: Value, split: Split | None = None) -> Value:
        type = value.type if split is None else split.of(value.type)
        return Value(self._names.fresh(base), type)

    def _local(self, node: Node, flow: Flow) -> Node:
        inputs = tuple(
            self._part(name, split) if split and name in self._graph.static_values else name
            for name, split in zip(node.inputs, flow.inputs, strict=True)
        )
        outputs = tuple(
            Value(v.name, v.type if split is None else split.of(v.type))
            for v, split in zip(node.outputs, flow.outputs, strict=True)
        )
        return _resized(replace(node, inputs=inputs, outputs=outputs))

    def _part(self, value: str | None, split: Split) -> str:
        """Returns a rank's part of a static value."""
        assert value is not None
        if (value, split) in self._made:
            return self._made[value, split]
        node = self._graph.producers.get(value)
        part = Value(self._names.fresh(f"{value}_part"), split.of(self._graph.types[value]))
        if node is None:
            attrs: dict[str, Attr] = {
                "axis": split.axis, "parts": split.parts, "ranks": self._ranks
            }  # fmt: skip
            self._nodes.append(Node(part.name, RANK_PART, (value,), (part,), attrs))
        else:
            flow = flow_to(node, 0, split, self._graph, self._ranks)
            assert flow is not None
            inputs = tuple(
                name if own is None else self._part(name, own)
                for name, own in zip(node.inputs, flow.inputs, strict=True)
            )
            local = replace(node, name=part.name, inputs=inputs, outputs=(part,))
            self._nodes.append(_resized(local))
        self._made[value, split] = part.name
        return part.name

    def _column_product(self, node: Node, parts: int, value: Value) -> Node:
        x, weight, bias, _ = node.inputs
        rows, last = Split(0, parts), Split(node.type.rank - 1, parts)
        bias = None if bias is None else self._part(bias, rows)
        name = value.name if value is not node.output else node.name
        own = Value(value.name, last.of(node.type))
        inputs = (x, self._part(weight, rows), bias, None)
        return replace(node, name=name, inputs=inputs, outputs=(own,))

    def _row_product(self, node: Node) -> None:
        x, weight, bias, _ = node.inputs
        own = self._fresh(f"{node.output.name}_of_rank", node.output)
        inputs = (x, self._part(weight, Split(1, self._ranks)), None, None)
        self._nodes.append(replace(node, name=own.name, inputs=inputs, outputs=(own,)))
        total = node.output if bias is None else self._fresh(f"{node.output.name}_sum", own)
        self._add(node, ALL_REDUCE, (own.name,), total, ranks=self._ranks)
        if bias is not None:
            self._add(node, "aten.add.Tensor", (total.name, bias), node.output, alpha=1)

    def _gathered(self, node: Node) -> None:
        last = node.type.rank - 1
        own = self._fresh(f"{node.output.name}_of_rank", node.output)
        local = self._column_product(node, self._ranks, own)
        self._nodes.append(local)
        self._add(node, ALL_GATHER, (own.name,), node.output, ranks=self._ranks, axis=last)


def _resized(node: Node) -> Node:
    """Returns a node whose attributes say the shape that its result has."""
    if node.op in RESHAPES:
        return replace(node, op="aten.view.default", attrs={"size": node.type.shape})
    if node.op == "aten.expand.default":
        return replace(node, attrs={**node.attrs, "size": node.type.shape})
    return node
