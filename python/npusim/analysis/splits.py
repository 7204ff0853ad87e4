"""How a value that ranks share is split, and what follows for what computes it and what reads it.

A `Split` says: along an axis in equal parts, each rank has one. A rule takes the split of one of a
node's results and gives those of all its operands and results, or None where a rank could not
compute its part from parts. An op without a rule here is computed whole on every rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, integer, permutation
from npusim.errors import SymbolicSizeError
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import find
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType

Types = Mapping[str, TensorType]


@dataclass(frozen=True)
class Split:
    """A value is in `parts` equal parts along `axis`; of fewer parts than ranks some have the same.

    Rank r has part r * parts // ranks.
    """

    axis: int
    parts: int

    def of(self, type: TensorType) -> TensorType:
        """Returns the type of a part."""
        shape = list(type.shape)
        shape[self.axis] //= self.parts
        return TensorType(type.dtype, tuple(shape))


@dataclass(frozen=True)
class Flow:
    """The splits of a node's operands and results; None: whole on every rank."""

    inputs: tuple[Split | None, ...]
    outputs: tuple[Split | None, ...]


def flow_to(node: Node, result: int, split: Split, graph: Graph, ranks: int) -> Flow | None:
    """Returns what has to be split that a node's result is; None where that cannot be."""
    rule = _RULES.get(node.op)
    if rule is None:
        found = find(node.op)
        rule = _pointwise if found is not None and found.scalar is not None else None
    if rule is None:
        return None
    try:
        return rule(node, result, split, graph.types, ranks)
    except SymbolicSizeError:  # what calls decide is whole
        return None


def flow_from(node: Node, operand: int, split: Split, graph: Graph, ranks: int) -> Flow | None:
    """Returns what follows from the split of one of a node's operands; None: nothing may."""
    for result, value in enumerate(node.outputs):
        for axis, size in enumerate(value.type.shape):
            for parts in dict.fromkeys((split.parts, ranks)):
                if not divides(size, parts):
                    continue
                flow = flow_to(node, result, Split(axis, parts), graph, ranks)
                if flow is not None and flow.inputs[operand] == split:
                    return flow
    return None


def divides(size: int, parts: int) -> bool:
    """Tells whether a size has so many equal parts; one that calls choose is not split."""
    return not is_symbolic(size) and size % parts == 0


def shared_heads(groups: int, ranks: int) -> int | None:
    """Returns in how many parts ranks have heads of keys and values; None where heads were cut."""
    if groups % ranks == 0:
        return ranks
    return groups if groups and ranks % groups == 0 else None


def _pointwise(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
    rank = node.type.rank
    splits: list[Split | None] = []
    for name in node.inputs:
        axis = -1 if name is None else split.axis - rank + types[name].rank
        broadcast = name is None or axis < 0 or types[name].shape[axis] == 1
        splits.append(None if broadcast else Split(axis, split.parts))
    return Flow(tuple(splits), (split,))


def _reshape(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
    (name,) = node.inputs
    assert name is not None
    shape, before = types[name].shape, prod(node.type.shape[: split.axis])
    for axis, size in enumerate(shape):
        leads = size != 1 and isinstance(size, int) and prod(shape[:axis]) == before
        if leads and size % split.parts == 0:
            return Flow((Split(axis, split.parts),), (split,))
    return None


def _permute(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
    dims = permutation(node, node.type.rank)
    return Flow((Split(dims[split.axis], split.parts),), (split,))


def _along(name: str) -> Rule:
    """The rule of an op that works along one dimension, which must be another than the split's."""

    def rule(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
        if integer(node, name, 0) % node.type.rank == split.axis:
            return None
        return Flow((split,) * len(node.inputs), (split,) * len(node.outputs))

    return rule


def _expand(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
    return _pointwise(node, result, split, types, ranks)


def _norm(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
    normalized = node.attrs["normalized_shape"]
    assert isinstance(normalized, tuple)
    if len(node.outputs) != 1 or split.axis >= node.type.rank - len(normalized):
        return None
    return Flow((split, *(None,) * (len(node.inputs) - 1)), (split,))


def _matmul(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
    if split.axis >= node.type.rank - 2:
        return None
    return _pointwise(node, result, split, types, ranks)


def _heads(count: int, results: int, groups: tuple[int, ...] = ()) -> Rule:
    """The rule of an op whose operands before `count` and whose results have heads along axis 1.

    Args:
        groups: the operands whose heads are keys' and values', which several queries' share.
    """

    def rule(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
        if split.axis != 1 or split.parts != ranks:
            return None
        inputs: list[Split | None] = []
        for index, name in enumerate(node.inputs):
            parts: int | None = ranks
            if index in groups and name is not None:
                parts = shared_heads(types[name].shape[1], ranks)
            if parts is None:
                return None
            inputs.append(Split(1, parts) if index < count and name is not None else None)
        return Flow(tuple(inputs), (split,) * results)

    return rule


def _rope_append(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
    queries, keys = (value.type.shape[1] for value in node.outputs[:2])
    parts = shared_heads(keys, ranks)
    wanted = ranks if result == 0 else parts
    if split.axis != 1 or parts is None or split.parts != wanted or queries % ranks:
        return None
    q, k = Split(1, ranks), Split(1, parts)
    where = (None,) * (len(node.inputs) - 7)  # positions, and over pages their tables
    return Flow((q, k, k, None, None, k, k, *where), (q, k, k))


def _append(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
    if split.axis != 1:
        return None
    return Flow((split, split, *(None,) * (len(node.inputs) - 2)), (split,))


def _paged_attention(
    node: Node, result: int, split: Split, types: Types, ranks: int
) -> Flow | None:
    queries, pools = node.type.shape[1], types[node.inputs[1] or ""].shape[1]
    parts = shared_heads(pools, ranks)
    if split != Split(1, ranks) or parts is None or queries % ranks:
        return None
    return Flow((split, *(Split(1, parts),) * 2, None, None, None), (split,))


def _rope(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
    return Flow((split, None, None), (split,)) if split.axis == 1 else None


def _attention(node: Node, result: int, split: Split, types: Types, ranks: int) -> Flow | None:
    rank, axis = node.type.rank, node.type.rank - 3
    if axis < 0 or split != Split(axis, ranks):
        return None
    heads = node.type.shape[axis]
    splits: list[Split | None] = []
    for index, name in enumerate((*node.inputs, None, None)[:4]):
        own = -1 if name is None else axis - rank + types[name].rank
        if name is None or own < 0 or types[name].shape[own] == 1:
            splits.append(None)
            continue
        size = types[name].shape[own]
        parts = ranks if size == heads or index in (0, 3) else shared_heads(size, ranks)
        if parts is None:
            return None
        splits.append(Split(own, parts))
    return Flow(tuple(splits[: len(node.inputs)]), (split,))


Rule = Callable[[Node, int, Split, Types, int], "Flow | None"]

_RULES: dict[str, Rule] = {
    **dict.fromkeys(RESHAPES, _reshape),
    **dict.fromkeys(PERMUTATIONS, _permute),
    "aten.expand.default": _expand,
    **{f"aten.{name}": _along("dim") for name in ("slice.Tensor", "cat.default")},
    **{f"aten.{name}": _along("dim") for name in ("softmax.int", "_softmax.default")},
    **{f"aten.{name}.default": _norm for name in ("rms_norm", "layer_norm")},
    **{f"aten.{name}.default": _matmul for name in ("matmul", "bmm")},
    "aten.scaled_dot_product_attention.default": _attention,
    "npu.cached_attention": _heads(3, 1, (1, 2)),
    "npu.rope": _rope,
    "npu.cache_append": _append,
    "npu.rope_append": _rope_append,
    "npu.paged_append": _append,
    "npu.paged_attention": _paged_attention,
    "npu.paged_rope_append": _rope_append,
}
