"""Merges the linears that project one tensor for one attention: queries, keys and values.

One product over concatenated weights reads the input once; its results are slices of each row.
Only what is read through views by ops that take strided rows is merged: the attention itself, or
the norms, rotations and appends before it. Anything else would have a slice copied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from npusim.analysis.fused_nodes import channels, is_plain
from npusim.analysis.shapes import VIEWS, view_of
from npusim.errors import SymbolicSizeError
from npusim.ir.graph import Attr, Graph, Node, Value
from npusim.ir.rewrite import Names, rebuild
from npusim.ir.rewriter import reading
from npusim.ir.types import TensorType
from npusim.lowering.view import View
from npusim.ops.paged import PAGED_APPEND, PAGED_ATTENTION
from npusim.ops.paged_rope import PAGED_ROPE_APPEND
from npusim.passes.fuse_rope_append import ROPE_APPEND
from npusim.passes.recognize_attention import ATTENTION
from npusim.passes.recognize_cache_append import CACHE_APPEND
from npusim.passes.recognize_cached_attention import CACHED_ATTENTION
from npusim.passes.recognize_rope import ROPE
from npusim.targets.target_config import TargetConfig

# How many operands, from the first, an op takes as rows that lie apart.
_ATTENTIONS = {
    ATTENTION: 3,
    CACHED_ATTENTION: 1,
    ROPE_APPEND: 3,
    PAGED_ATTENTION: 1,
    PAGED_ROPE_APPEND: 3,
}
_NORMS = {"aten.rms_norm.default": 1, "aten.layer_norm.default": 1}
_ON_THE_WAY = {**_NORMS, ROPE: 1, CACHE_APPEND: 1, PAGED_APPEND: 1}


def merge_linears(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with query, key and value projections merged."""
    names = Names(graph)
    replacements: dict[str, list[Node]] = {}
    for group in _groups(graph):
        merged = _Merger(graph, names, group).nodes()
        replacements.update((node.name, []) for node in group)
        replacements[group[0].name] = merged
    if not replacements:
        return graph
    return rebuild(graph, [new for n in graph.nodes for new in replacements.get(n.name, [n])])


def _groups(graph: Graph) -> list[list[Node]]:
    """Returns the lists of linears, two or more, with one input and one attention after them."""
    groups: dict[tuple[object, ...], list[Node]] = {}
    for node in graph.nodes:
        if node.op != "npu.linear":
            continue
        reader = None
        with reading(node), suppress(SymbolicSizeError):
            reader = _attention_after(node, graph) if is_plain(node) else None
        weight = node.inputs[1]
        if reader is not None and weight is not None:
            key = (node.inputs[0], reader, graph.types[weight].dtype)
            groups.setdefault(key, []).append(node)
    return [group for group in groups.values() if len(group) > 1]


def _attention_after(node: Node, graph: Graph) -> str | None:
    """Returns the only attention that reads a result, if whoever reads it takes rows apart."""
    *lead, size = node.type.shape
    apart = replace(node.type, shape=(*lead, 2 * size))  # as if a neighbour lay after each row
    shown = View(0, 0, node.type.dtype, node.type.shape, apart.strides)
    pending: list[tuple[str, View | None]] = [(node.output.name, shown)]  # None: rows of its own
    readers: set[str] = set()
    while pending:
        value, view = pending.pop()
        if view is not None and (value in graph.output_values or not graph.users[value]):
            return None
        for user in graph.users[value]:
            if user.op in _ATTENTIONS and _takes_rows(user, value, view):
                readers.add(user.name)
            elif user.op in _ON_THE_WAY and _takes_rows(user, value, view):
                pending.append((user.output.name, None))
            elif user.op in VIEWS and len(user.outputs) == 1:
                seen = None if view is None else view_of(user, view)
                if seen is None and view is not None:
                    return None
                pending.append((user.output.name, seen))
            elif view is not None:
                return None
    return readers.pop() if len(readers) == 1 else None


def _takes_rows(user: Node, value: str, view: View | None) -> bool:
    """Tells whether an op reads a value as it lies; the last dimension must be contiguous."""
    if view is None:
        return True
    taken = {**_ATTENTIONS, **_ON_THE_WAY}[user.op]
    if value in user.inputs[taken:] or view.strides[-1] != 1:
        return False
    if user.op not in _NORMS:
        return True
    shape = user.attrs["normalized_shape"]
    rows = prod(view.shape[:-1])
    return len(shape) == 1 and view.reshape((rows, view.shape[-1])) is not None  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Merger:
    """Builds the nodes that take the place of a group."""

    graph: Graph
    names: Names
    group: list[Node]

    def nodes(self) -> list[Node]:
        """Returns concatenations, the product, and a slice under each old name."""
        first = self.group[0]
        total = sum(map(channels, self.group))
        weights = [n.inputs[1] for n in self.group]
        k = self.graph.types[weights[0] or ""].shape[1]
        dtype = first.type.dtype
        made: list[Node] = []
        weight = self._concatenated(weights, TensorType(dtype, (total, k)), made)
        bias = None
        if any(n.inputs[2] is not None for n in self.group):
            biases = [n.inputs[2] or self._zeros(channels(n), dtype, made) for n in self.group]
            bias = self._concatenated(biases, TensorType(dtype, (total,)), made)
        product = self._add(
            "npu.linear",
            (first.inputs[0], weight, bias, None),
            TensorType(dtype, (*first.type.shape[:-1], total)),
            first.attrs,
            made,
        )
        return made + self._slices(product)

    def _slices(self, product: str) -> list[Node]:
        start, slices = 0, []
        for node in self.group:
            end = start + channels(node)
            attrs = {"dim": node.type.rank - 1, "start": start, "end": end, "step": 1}
            slices.append(replace(node, op="aten.slice.Tensor", inputs=(product,), attrs=attrs))
            start = end
        return slices

    def _concatenated(
        self, values: Sequence[str | None], type: TensorType, made: list[Node]
    ) -> str:
        attrs: dict[str, Attr] = {"tensors": len(values), "dim": 0}
        return self._add("aten.cat.default", tuple(values), type, attrs, made)

    def _zeros(self, count: int, dtype: str, made: list[Node]) -> str:
        attrs: dict[str, Attr] = {"size": (count,), "fill_value": 0, "dtype": dtype}
        return self._add("aten.full.default", (), TensorType(dtype, (count,)), attrs, made)

    def _add(
        self,
        op: str,
        inputs: tuple[str | None, ...],
        type: TensorType,
        attrs: Mapping[str, Attr],
        made: list[Node],
    ) -> str:
        name = self.names.fresh(op.split(".")[1])
        source = self.group[0].source
        made.append(Node(name, op, inputs, (Value(name, type),), attrs, source))
        return name
