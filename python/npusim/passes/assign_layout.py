"""Decides in which order each result is stored, so that few tensors are ever reordered.

Convolution, pooling, resizing and group norm write channels-last, where a target wants that.
Attention writes heads after positions, so that merging the heads is a view. Pointwise nodes, cat,
pad and shuffles can write any order: they take the one all their readers ask for, else that of
their largest operand, which on targets whose kernels come with the runtime may be a piece of a
larger tensor, if no operand is whole: for generated code that was not measured. Reductions read
any order, and write what is left of it. Views keep no order of their own; what they show follows
from what they look at. Everything else is row-major.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Union

from npusim.analysis.compose import scalar_program
from npusim.analysis.shapes import PERMUTATIONS, VIEWS, WINDOWS, permutation, view_of
from npusim.ir.graph import Graph, Node, Value
from npusim.ir.rewriter import reading
from npusim.ir.types import TensorType
from npusim.lowering.view import View
from npusim.ops.reduction import reduced_dims
from npusim.targets.target_config import TargetConfig

Order = Union[tuple[int, ...], None]  # as in TensorType: None is row-major

_CHANNELS_LAST = frozenset(
    (
        *("npu.conv", "npu.int8_conv", "aten.convolution.default"),
        *("aten.group_norm.default", "npu.group_norm"),
        *(f"aten.conv{r}d.default" for r in (1, 2, 3)),
        *("aten.conv_transpose1d.default", "aten.conv_transpose2d.input"),
        "aten.conv_transpose3d.input",
    )
)
_CHANNELS_LAST_PREFIXES = (
    *("aten.max_pool", "aten.avg_pool", "aten.adaptive_", "aten._adaptive_"),
    *("aten.upsample_", "aten._upsample_"),
)
_ATTENTION = frozenset(
    ("aten.scaled_dot_product_attention.default", "npu.cached_attention", "npu.paged_attention")
)
# Kernels that read heads wherever they lie.
_READ_STRIDED = _ATTENTION | {
    *("npu.rope", "npu.rope_append", "npu.cache_append"),
    *("npu.paged_append", "npu.paged_rope_append"),
}
# Their cosines and sines, of which they read whole rows, in every layer.
_ANGLES = {
    "npu.rope": (1, 2),
    "npu.rope_append": (3, 4),
    "npu.paged_rope_append": (3, 4),
}
_REDUCTIONS = frozenset(
    ("aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default", "aten.amin.default")
)
_FEW_CHANNELS = 8  # of bytes: turned around on their own sooner than written one by one
_COPIES = frozenset(
    f"aten.{name}.default"
    for name in (
        *("cat", "constant_pad_nd", "pixel_shuffle", "pixel_unshuffle"),
        *("channel_shuffle", "native_channel_shuffle"),
    )
)


def assign_layout(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with a storage order in the type of every node's output."""
    plan = _Plan(graph, target)
    nodes = []
    for node in graph.nodes:
        with reading(node):
            nodes.append(plan.assigned(node))
    return graph if tuple(nodes) == graph.nodes else replace(graph, nodes=tuple(nodes))


def channels_last(rank: int) -> tuple[int, ...]:
    """Returns the order of a channels-last tensor [batch, channels, spatial…]."""
    return (0, *range(2, rank), 1)


class _Plan:
    """What is known while orders are assigned.

    Attributes:
        wishes: for each value, the order all its readers ask for; absent when they differ or do
            not mind. The caller of the graph reads its outputs row-major.
        views: for each value, how it will lie in memory.
    """

    def __init__(self, graph: Graph, target: TargetConfig) -> None:
        self.graph = graph
        self.target = target
        self.follows = {n.name: self._follows(n) for n in graph.nodes}
        self.wishes = self._all_wishes()
        self.views: dict[str, View] = {}
        for name, type in graph.types.items():
            if name not in graph.producers:
                self.views[name] = _stored(type.with_order(None))

    def assigned(self, node: Node) -> Node:
        """Returns a node with the order of its outputs decided; nodes come in order."""
        if node.op in VIEWS:
            orders: list[Order] = [None] * len(node.outputs)
        else:
            orders = [self._order(node, value) for value in node.outputs]
        outputs = tuple(
            replace(v, type=v.type.with_order(o)) for v, o in zip(node.outputs, orders, strict=True)
        )
        for value in outputs:
            self.views[value.name] = self._shown(node, value)
        return node if outputs == node.outputs else replace(node, outputs=outputs)

    def _order(self, node: Node, value: Value) -> Order:
        rank = value.type.rank
        if self._is_channels_last(node):
            return channels_last(rank) if rank >= 3 else None
        if node.op in _ATTENTION and rank == 4:
            return (0, 2, 1, 3)
        if not self.follows[node.name] and not self._reduces(node):
            return None
        if value.name in self.wishes:
            return self.wishes[value.name]
        if self._reduces(node):
            return self._order_of_rest(node)
        return self._order_of_largest_operand(node)

    def _order_of_largest_operand(self, node: Node) -> Order:
        """Returns the order most of what is read lies in; reading and writing then go together."""
        type = node.outputs[0].type
        operands = [self.views[i] for i in node.inputs if i is not None]
        alike = [v for v in operands if v.rank == type.rank]
        if node.op not in _COPIES:
            alike = [v for v in alike if v.shape == type.shape]
        same = [v for v in alike if v.is_dense]
        if not same and not self.target.code_format:
            same = [_closed_up(v) for v in alike if 0 not in v.strides]
        orders = [_order_of(v) for v in sorted(same, key=lambda v: -v.numel)]
        largest = [o for o, v in zip(orders, same, strict=True) if v.numel == same[0].numel]
        return next((o for o in largest if o is not None), None)

    def _reduces(self, node: Node) -> bool:
        """Tells whether a node reads strides of any order to reduce what lies there."""
        return node.op in _REDUCTIONS

    def _order_of_rest(self, node: Node) -> Order:
        """Returns the order in which a reduction's operand has the dimensions that are left."""
        assert node.inputs[0] is not None
        x, type = self.views[node.inputs[0]], node.outputs[0].type
        order = _order_of(x) if x.is_dense else None
        if order is None or type.rank == x.rank:
            return order
        gone = reduced_dims(node, x.rank)
        left = [d for d in range(x.rank) if d not in gone]
        kept = type.with_order(tuple(left.index(d) for d in order if d in left))
        return _order_of(_stored(kept))

    def _follows(self, node: Node) -> bool:
        """Tells whether a node writes any order as easily as row-major."""
        static = all(i is None or i in self.graph.static_values for i in node.inputs)
        with reading(node):
            pointwise = scalar_program(node, self.graph) is not None
        return not static and (node.op in _COPIES or pointwise)

    def _is_channels_last(self, node: Node) -> bool:
        return self.target.conv_channels_last and (
            node.op in _CHANNELS_LAST or node.op.startswith(_CHANNELS_LAST_PREFIXES)
        )

    # What readers ask for

    def _all_wishes(self) -> dict[str, Order]:
        """Walks the graph backwards and agrees the wishes of all readers of each value."""
        asked: dict[str, list[Order]] = {}
        wishes: dict[str, Order] = {}
        minds: set[str] = set()  # values some reader of which takes any order
        for output in (*self.graph.outputs, *self.graph.updates):
            asked.setdefault(output.value, []).append(None)

        def settle(value: str) -> None:
            orders = asked.get(value, [])
            if orders and value not in minds and all(o == orders[0] for o in orders):
                wishes[value] = orders[0]

        for node in reversed(self.graph.nodes):
            for result in node.outputs:
                settle(result.name)
            for index, operand in enumerate(node.inputs):
                if operand is None:
                    continue
                with reading(node):
                    wish = self._wish(node, index, wishes)
                if wish is _ANY:
                    minds.add(operand)
                else:
                    asked.setdefault(operand, []).append(wish)  # type: ignore[arg-type]
        return wishes

    def _wish(self, node: Node, index: int, wishes: dict[str, Order]) -> object:
        """Returns the order in which a node wants to read an operand, or _ANY."""
        operand = node.inputs[index]
        assert operand is not None
        type = self.graph.types[operand]
        if self._is_channels_last(node):
            activation = index == 0 or index == (7 if node.op == "npu.int8_conv" else 3)
            if node.op == "npu.int8_conv" and type.rank >= 3 and type.shape[1] < _FEW_CHANNELS:
                return _ANY
            return channels_last(type.rank) if activation and type.rank >= 3 else _ANY
        if index in _ANGLES.get(node.op, ()):
            return None
        if node.op in _READ_STRIDED or node.op in WINDOWS or self._reduces(node):
            return _ANY
        value = node.outputs[0]
        if node.op in PERMUTATIONS:
            if value.name not in wishes:
                return _ANY
            back = permutation(node, type.rank)
            order = wishes[value.name] or tuple(range(type.rank))
            return type.with_order(tuple(back[d] for d in order)).order
        if node.op in VIEWS and wishes.get(value.name) is not None and not self.target.code_format:
            return _ANY  # a view of the operand as it lies may serve, as row-major does not
        if self.follows[node.name]:
            same = type.rank == value.type.rank
            return wishes.get(value.name, _ANY) if same else _ANY
        return None

    # What a result looks like

    def _shown(self, node: Node, value: Value) -> View:
        if node.op not in VIEWS or node.inputs[0] is None:
            return _stored(value.type)
        x = self.views[node.inputs[0]]
        view = view_of(node, x, value.type)
        return view if view is not None else _stored(value.type)


_ANY = object()


def _stored(type: TensorType) -> View:
    return View(0, 0, type.dtype, type.shape, type.strides)


def _closed_up(view: View) -> View:
    """Returns what lies like a piece of a larger tensor, but dense."""
    return _stored(TensorType(view.dtype, view.shape).with_order(view.order))


def _order_of(view: View) -> Order:
    """Returns a dense view's order; where extents of 1 leave a choice, a customary one."""
    type = TensorType(view.dtype, view.shape)
    customary: Sequence[Order] = (None,)
    if view.rank >= 3:
        customary = (None, channels_last(view.rank))
    for order in customary:
        if view.has_strides(type.with_order(order).strides):
            return order
    return type.with_order(view.order).order
