"""Which ops only look at a tensor differently, and how: the vocabulary of the layout passes.

* reshapes keep the elements in row-major order (view, flatten, squeeze, unsqueeze …);
* permutations reorder dimensions (permute, transpose, t).
Both cost nothing in a compiled program wherever strides allow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from npusim.ir.graph import Node
from npusim.ir.types import TensorType
from npusim.lowering.view import View

RESHAPES = frozenset(
    f"aten.{name}"
    for name in (
        *("view.default", "_unsafe_view.default", "reshape.default", "view_copy.default"),
        *("flatten.using_ints", "unflatten.int", "unsqueeze.default"),
        *("squeeze.default", "squeeze.dim", "squeeze.dims"),
    )
)
PERMUTATIONS = frozenset(("aten.permute.default", "aten.transpose.int", "aten.t.default"))
WINDOWS = frozenset(
    f"aten.{name}"
    for name in (
        *("expand.default", "slice.Tensor", "select.int", "split.Tensor", "chunk.default"),
        *("split_with_sizes.default", "unbind.int", "narrow.default", "diagonal.default"),
    )
)
VIEWS = RESHAPES | PERMUTATIONS | WINDOWS


def permutation(node: Node, rank: int) -> tuple[int, ...]:
    """Returns `dims` of a permutation as `torch.permute` takes them, none negative.

    Args:
        rank: of the node's operand.
    """
    if node.op == "aten.permute.default":
        return tuple(d % rank for d in ints(node, "dims"))
    dims = list(range(rank))
    if rank > 1:
        a, b = (integer(node, name, d) % rank for name, d in (("dim0", 0), ("dim1", 1)))
        dims[a], dims[b] = dims[b], dims[a]
    return tuple(dims)


def view_of(node: Node, x: View, type: TensorType | None = None) -> View | None:
    """Returns how a view of x lies in memory; None when it has to be copied.

    Args:
        node: a node of `VIEWS`.
        x: how its operand lies.
        type: of the output in question; by default the node's only one.
    """
    type = type or node.type
    if node.op in RESHAPES:
        return x.reshape(type.shape)
    if node.op in PERMUTATIONS:
        return x.permute(permutation(node, x.rank))
    if node.op == "aten.expand.default":
        return x.expand(type.shape)
    if node.op in ("aten.select.int", "aten.unbind.int"):
        return x.select(integer(node, "dim", 0) % x.rank, 0)
    if type.rank != x.rank:
        return None
    step = integer(node, "step", 1)
    dim = integer(node, "dim", 0) % x.rank
    strides = tuple(s * (step if d == dim else 1) for d, s in enumerate(x.strides))
    return replace(x, shape=type.shape, strides=strides)


def inverse(dims: Sequence[int]) -> tuple[int, ...]:
    """Returns the permutation that undoes `dims`."""
    result = [0] * len(dims)
    for position, dim in enumerate(dims):
        result[dim] = position
    return tuple(result)


def keeps_order(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Tells whether a permutation moves extents of 1 only, so that it is a reshape."""
    moved = [d for d in dims if shape[d] != 1]
    return moved == sorted(moved)


def integer(node: Node, name: str, default: int | None = None) -> int:
    """Returns an integer attribute; TypeError when the graph holds something else."""
    value = node.attrs.get(name, default)
    if not isinstance(value, int):
        raise TypeError(f"{node.name} ({node.op}): {name} is {value!r}, expected an int")
    return value


def ints(node: Node, name: str, length: int = 0) -> tuple[int, ...]:
    """Returns an attribute that is a list of ints; one int stands for `length` of them."""
    value = node.attrs[name]
    if isinstance(value, int):
        return (value,) * max(length, 1)
    if not isinstance(value, tuple) or not all(isinstance(v, int) for v in value):
        raise TypeError(f"{node.name} ({node.op}): {name} is {value!r}, expected ints")
    return value * length if len(value) == 1 < length else value  # type: ignore[return-value]
