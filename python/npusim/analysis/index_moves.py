"""How operators that move elements change what is known of a value by its indices.

Owns views, joins, look-ups and triangles for `known_values`; arithmetic stands in `affine`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from npusim.analysis.affine import Affine, Choice, Known, Mask, Move, Number, along, moved
from npusim.analysis.shapes import PERMUTATIONS, RESHAPES, integer, permutation
from npusim.ir.graph import Node
from npusim.ir.types import TensorType
from npusim.ops.views import slice_bounds

_TRIANGLES = {"aten.tril.default": -1, "aten.triu.default": 1}  # the sign of column - row
_LOOKUPS = ("aten.index.Tensor", "aten.gather.default")


def broadcast(rank: int, type: TensorType) -> Move:
    """Returns how a value of that rank is seen in an operation with a result of that type."""
    lead = (0,) * (type.rank - rank)
    return lambda a: replace(a, coefficients=lead + a.coefficients)


def of_move(
    node: Node, types: Mapping[str, TensorType], known: Mapping[str, Known]
) -> Known | None:
    """Returns what a node gives that moves elements of known values; None for any other node."""
    operands = [i for i in node.inputs if i is not None]
    first = known[operands[0]]
    if node.op in _TRIANGLES:
        return _triangle(node, first)
    if node.op == "aten.cat.default":
        return _joined(node, [types[i] for i in operands], [known[i] for i in operands])
    if node.op == "aten.cumsum.default":
        return _running_sum(node, first)
    seek = node.op in _LOOKUPS
    move = _lookup(node, types, known) if seek else _view(node, types[operands[0]])
    return None if move is None else moved(first, move)


def _view(node: Node, type: TensorType) -> Move | None:
    """Returns what a view of a value of that type does to an affine value; None for no view."""
    if node.op in RESHAPES:
        return lambda a: _reshaped(a, type.shape, node.type.shape)
    if node.op == "aten.expand.default":
        return broadcast(type.rank, node.type)
    if node.op in PERMUTATIONS:
        dims = permutation(node, type.rank)
        return lambda a: replace(a, coefficients=tuple(a.coefficients[d] for d in dims))
    if node.op in ("aten.slice.Tensor", "aten.select.int"):
        return lambda a: _sliced(a, node, type)
    return None


def _reshaped(a: Affine, old: tuple[int, ...], new: tuple[int, ...]) -> Affine | None:
    """A reshape that only adds or drops extents of 1 moves coefficients; another one mixes them."""
    if all(c == 0 for c in a.coefficients):
        return replace(a, coefficients=(0,) * len(new))
    if [n for n in old if n != 1] != [n for n in new if n != 1]:
        return None
    rest = iter([c for c, n in zip(a.coefficients, old, strict=True) if n != 1])
    return replace(a, coefficients=tuple(next(rest) if n != 1 else 0 for n in new))


def _sliced(a: Affine, node: Node, type: TensorType) -> Affine:
    dim = integer(node, "dim", 0) % type.rank
    coefficient = a.coefficients[dim]
    before, after = a.coefficients[:dim], a.coefficients[dim + 1 :]
    if node.op == "aten.select.int":
        index = integer(node, "index")
        first = index + type.shape[dim] if index < 0 else index
        return replace(a, offset=a.offset + coefficient * first, coefficients=before + after)
    first, step = slice_bounds(node, type.shape[dim])
    rest = coefficient * step * along(node.type.shape[dim])
    return replace(a, offset=a.offset + coefficient * first, coefficients=(*before, rest, *after))


def _joined(node: Node, types: Sequence[TensorType], parts: Sequence[Known]) -> Known | None:
    """Returns one affine value that all parts are, each from where it begins."""
    dim = integer(node, "dim", 0) % node.type.rank
    start, starts = 0, []
    for type in types:
        if type.rank != node.type.rank:  # PyTorch lets an empty one join any
            return None
        starts.append(start)
        start = start + type.shape[dim]
    affine = [part for part in parts if isinstance(part, Affine)]
    if len(affine) < len(parts) or len(parts) < 2:
        return None
    long = [a.coefficients[dim] for a, t in zip(affine, types, strict=True) if t.shape[dim] != 1]
    step = long[0] if long else affine[1].offset - affine[0].offset
    whole = _with_step(affine[0], dim, step)
    for part, type, start in zip(affine, types, starts, strict=True):
        there = replace(whole, offset=whole.offset + step * start)
        if _with_step(part, dim, part.coefficients[dim] if type.shape[dim] != 1 else step) != there:
            return None
    return whole


def _with_step(a: Affine, dim: int, step: int) -> Affine:
    return replace(a, coefficients=(*a.coefficients[:dim], step, *a.coefficients[dim + 1 :]))


def _running_sum(node: Node, x: Known) -> Known | None:
    """Returns the sum along a dimension of what is one number, or of a mask that is one truth."""
    if isinstance(x, Mask) and (not x.conditions or x.is_never()):
        x = Affine(0 if x.conditions else 1, (0,) * node.type.rank)
    if not isinstance(x, Affine) or not x.is_number():
        return None
    dim = integer(node, "dim") % max(node.type.rank, 1)
    step = x.offset * along(node.type.shape[dim])
    return _with_step(x, dim, step)


def _triangle(node: Node, x: Known) -> Known | None:
    """Returns a value with zeros on one side of a diagonal."""
    rows, columns = node.type.shape[-2:]
    sign, diagonal = _TRIANGLES[node.op], integer(node, "diagonal", 0)
    lead = (0,) * (node.type.rank - 2)
    kept = Affine(-diagonal, (*lead, -along(rows), along(columns))).scaled(sign)
    mask = Mask(frozenset((kept,)))
    if isinstance(x, Number):
        return Choice(mask, x.value, 0.0)
    if isinstance(x, Mask):
        return Mask(x.conditions | mask.conditions)
    if isinstance(x, Affine) and x.is_number() and x.offset in (0, 1):
        return mask if x.offset == 1 else x
    return None


def _lookup(node: Node, types: Mapping[str, TensorType], known: Mapping[str, Known]) -> Move | None:
    """Returns how elements are seen that are looked up by known indices, none of them negative.

    Negative ones count from the end; an index that is not proved to be none serves only along
    dimensions that the value does not depend on.
    """
    x, *indices = node.inputs
    rank, shape = node.type.rank, node.type.shape
    if x is None or None in indices or (len(indices) < types[x].rank and node.op == _LOOKUPS[0]):
        return None
    if node.op == _LOOKUPS[1]:
        (index,) = indices
        dim = integer(node, "dim") % max(rank, 1)
        by_dim = [index if d == dim else None for d in range(rank)]
    else:
        by_dim = list(indices)

    def move(a: Affine) -> Affine | None:
        total: Affine | None = replace(a, coefficients=(0,) * rank)
        for dim, coefficient in enumerate(a.coefficients):
            if total is None:
                return None
            if coefficient == 0:
                continue
            index = _index_along(by_dim[dim], dim, shape, types, known)
            if index is None:
                return None
            total = total.plus(index.scaled(coefficient))
        return total

    return move


def _index_along(
    value: str | None,
    dim: int,
    shape: Sequence[int],
    types: Mapping[str, TensorType],
    known: Mapping[str, Known],
) -> Affine | None:
    """Returns the index into a dimension as a value of the result's indices; None means its own."""
    if value is None:
        return Affine(0, tuple(along(n) if d == dim else 0 for d, n in enumerate(shape)))
    found = known[value]
    if not isinstance(found, Affine) or not found.never_below(0, types[value].shape):
        return None
    lead = (0,) * (len(shape) - types[value].rank)
    return replace(found, coefficients=lead + found.coefficients)
