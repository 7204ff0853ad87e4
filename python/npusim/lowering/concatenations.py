"""Which values are computed where a concatenation has them, so that nobody copies them there.

Owns the choice alone; `Lowering.room` gives the memory. A value has a place in one concatenation:
the last that reads it, which in networks of dense blocks has the others for its beginnings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import find
from npusim.ir.symbolic import is_symbolic

CAT = "aten.cat.default"
_PARTS = frozenset(
    f"aten.{name}"
    for name in ("split.Tensor", "split_with_sizes.default", "chunk.default", "unbind.int")
)
# Ops whose kernels read rows that lie apart in any way, besides pointwise ones.
_READERS = frozenset(
    (
        CAT,
        "npu.conv",
        "npu.recurrent_step",
        *(f"aten.max_pool{d}d.default" for d in (1, 2, 3)),
        *(f"aten.avg_pool{d}d.default" for d in (1, 2, 3)),
        *(f"aten.adaptive_avg_pool{d}d.default" for d in (1, 2, 3)),
        *(f"aten.upsample_nearest{d}d.vec" for d in (1, 2, 3)),
        *(f"aten.upsample_nearest{d}d.default" for d in (1, 2, 3)),
        *("aten.upsample_bilinear2d.vec", "aten.upsample_bilinear2d.default"),
    )
)
_LOOKS = frozenset((*_PARTS, "aten.slice.Tensor", "aten.narrow.default"))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value lies in what a node concatenates: from `start` on, along `dim`."""

    node: Node
    dim: int
    start: int


def places(graph: Graph) -> Mapping[str, Place]:
    """Returns the places of values that are better computed there."""
    found: dict[str, Place] = {}
    for node in reversed(graph.nodes):
        if (
            node.op != CAT
            or node.output.name in graph.static_values
            or is_symbolic(node.type.shape)
        ):
            continue
        dim = node.attrs.get("dim", 0)
        assert isinstance(dim, int)
        dim, start = dim % node.type.rank, 0
        for value in _joined(node, graph):
            type = graph.types[value]
            if type.rank != node.type.rank:
                continue  # PyTorch lets an empty 1-D tensor stand in any concatenation
            suits = type.dtype == node.type.dtype and _suits(value, node, dim, graph)
            if suits and value not in found:
                found[value] = Place(node, dim, start)
            start += type.shape[dim]
    return found


def _joined(node: Node, graph: Graph) -> Iterator[str]:
    """Yields what a node concatenates; the parts of a split beside each other as what was split."""
    inputs = [i for i in node.inputs if i is not None]
    index = 0
    while index < len(inputs):
        whole = _split_into(inputs[index:], node, graph)
        if whole is None:
            yield inputs[index]
            index += 1
        else:
            yield whole.inputs[0] or ""
            index += len(whole.outputs)


def _split_into(values: Sequence[str], node: Node, graph: Graph) -> Node | None:
    """Returns the split along the same dimension whose parts the first values are."""
    split = graph.producers.get(values[0])
    if split is None or split.op not in _PARTS or split.op == "aten.unbind.int":
        return None
    parts = [v.name for v in split.outputs]
    dims = (n.attrs.get("dim", 0) for n in (split, node))
    same = len({d % node.type.rank for d in dims if isinstance(d, int)}) == 1
    return split if same and parts == list(values[: len(parts)]) else None


def _suits(value: str, node: Node, dim: int, graph: Graph) -> bool:
    """Tells whether a value is computed, read once by the node, and by others as rows apart.

    One that lies there without gaps, as steps of a sequence do, may be read by anybody.
    """
    if value not in graph.producers or value in graph.static_values:
        return False
    order = node.type.order or tuple(range(node.type.rank))
    outer = order[: order.index(dim)]  # dimensions that are stored around the one of the parts
    lies_dense = all(node.type.shape[d] == 1 for d in outer)
    read = value not in graph.output_values if lies_dense else _reads_rows(value, graph)
    return read and list(_joined(node, graph)).count(value) == 1


def _reads_rows(value: str, graph: Graph) -> bool:
    if value in graph.output_values:
        return False
    for user in graph.users[value]:
        if user.op in _LOOKS:
            if not all(_reads_rows(v.name, graph) for v in user.outputs):
                return False
            continue
        definition = find(user.op)
        pointwise = user.op == "npu.pointwise" or (
            definition is not None and definition.scalar is not None
        )
        if user.op not in _READERS and not pointwise:
            return False
    return True
