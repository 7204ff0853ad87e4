"""What integers and masks are as functions of their own indices and of one scalar of the device.

`analyse` walks a graph forwards and keeps what is proved: an integer value that is affine in its
indices (`position + arange(t)`), a boolean one that is a conjunction of inequalities between such
values, a float one that is 0 where such a mask is true and hides a score elsewhere. Whatever it
does not know is absent, so that nothing is rewritten that was not proved. Integers are taken to be
small enough not to wrap: positions and the lengths of sequences are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Union

import numpy as np

from npusim.ir.graph import Constant, Graph, Node
from npusim.ir.types import TensorType, is_float
from npusim.ops.scalar import ScalarOp
from npusim.ops.scalar_numpy import decode
from npusim.passes.compose import scalar_program
from npusim.passes.evaluate import fill_value
from npusim.passes.rewriter import reading
from npusim.passes.shapes import PERMUTATIONS, RESHAPES, integer, permutation

HIDDEN = -6e4  # added to a score, this or less leaves a weight of 0 beside any visible position
_INTEGERS = ("int64", "int32")
_COMPARISONS = {"le": (1, 0, 0), "lt": (1, 0, -1), "ge": (0, 1, 0), "gt": (0, 1, -1)}


@dataclass(frozen=True)
class Affine:
    """offset + sum of coefficients[d] * index_d + times * scalar, for every element.

    Attributes:
        coefficients: one a dimension, 0 along an extent of 1.
        scalar: a value of one element that is known when the program runs; empty for none.
    """

    offset: int
    coefficients: tuple[int, ...]
    times: int = 0
    scalar: str = ""

    def scaled(self, factor: int) -> Affine:
        """Returns the value times a number."""
        times = self.times * factor
        coefficients = tuple(c * factor for c in self.coefficients)
        return Affine(self.offset * factor, coefficients, times, self.scalar if times else "")

    def plus(self, other: Affine) -> Affine | None:
        """Returns the sum; None when it depends on two scalars."""
        if self.scalar and other.scalar and self.scalar != other.scalar:
            return None
        pairs = zip(self.coefficients, other.coefficients, strict=True)
        times = self.times + other.times
        scalar = (self.scalar or other.scalar) if times else ""
        return Affine(self.offset + other.offset, tuple(a + b for a, b in pairs), times, scalar)

    def is_number(self) -> bool:
        """Tells whether all elements are one number that is known now."""
        return not self.scalar and not any(self.coefficients)


@dataclass(frozen=True)
class Mask:
    """True exactly where every condition is at least 0."""

    conditions: frozenset[Affine]


@dataclass(frozen=True)
class HidingMask:
    """A float mask to add to scores: 0 where `mask` is true, `HIDDEN` or less elsewhere."""

    mask: Mask


@dataclass(frozen=True)
class Number:
    """A float value that is one number everywhere."""

    value: float


Known = Union[Affine, Mask, HidingMask, Number]


@dataclass(frozen=True)
class Causal:
    """A mask over [query, key]: key <= query + position, and key > query + position - window.

    Attributes:
        position: the scalar value.
        window: 0 for none.
    """

    position: str
    window: int


def analyse(graph: Graph) -> dict[str, Known]:
    """Returns what is known of the graph's values; what is not known is absent."""
    known: dict[str, Known] = {}
    for constant in graph.constants:
        _keep(known, constant.name, constant.type, _constant(constant))
    for leaf in (*graph.inputs, *graph.states):
        _keep(known, leaf.name, leaf.type, _scalar(leaf.name, leaf.type))
    for node in graph.nodes:
        if len(node.outputs) != 1:
            continue
        with reading(node):
            found = _checked(_of_node(node, graph, known), node.type)
        _keep(known, node.output.name, node.type, found or _scalar(node.output.name, node.type))
    return known


def is_position_range(found: Known | None, type: TensorType) -> str | None:
    """Returns p where a value of one dimension is p + arange; None for any other value."""
    if type.rank != 1 or not isinstance(found, Affine):
        return None
    expected = Affine(0, (_along(type.shape[0]),), 1, found.scalar)
    return found.scalar if found.scalar and found == expected else None


def causal_mask(found: Known | None, type: TensorType, lengths: tuple[int, int]) -> Causal | None:
    """Returns what a boolean or hiding mask over [..., query, key] says, if it is causal.

    Args:
        type: of the mask.
        lengths: of queries and keys; the mask must not broadcast along them.
    """
    mask = found.mask if isinstance(found, HidingMask) else found
    if not isinstance(mask, Mask) or type.shape[-2:] != lengths:
        return None
    q, k = map(_along, lengths)
    lead = (0,) * (type.rank - 2)
    position, window = "", 0
    for condition in mask.conditions:
        if condition.times == 1 and condition.coefficients == (*lead, q, -k):
            if condition.offset != 0 or position:
                return None
            position = condition.scalar
        elif condition.times == -1 and condition.coefficients == (*lead, -q, k):
            if condition.offset < 0 or window:
                return None
            window = condition.offset + 1
        else:
            return None
    scalars = {condition.scalar for condition in mask.conditions}
    return Causal(position, window) if position and scalars == {position} else None


def _keep(known: dict[str, Known], name: str, type: TensorType, found: Known | None) -> None:
    if found is not None:
        known[name] = found


def _checked(found: Known | None, type: TensorType) -> Known | None:
    """Returns what was found if a value of this type can hold it unchanged."""
    fits = {
        Affine: type.dtype in _INTEGERS,
        Mask: not is_float(type.dtype),
        HidingMask: is_float(type.dtype),
        Number: is_float(type.dtype),
    }
    return found if found is not None and fits[found.__class__] else None


def _along(extent: int) -> int:
    """Returns the coefficient of an index that counts; along an extent of 1 there is none."""
    return 1 if extent != 1 else 0


def _scalar(name: str, type: TensorType) -> Affine | None:
    if type.numel != 1 or type.dtype not in _INTEGERS:
        return None
    return Affine(0, (0,) * type.rank, 1, name)


def _number(value: float | int | bool, type: TensorType) -> Known | None:
    if is_float(type.dtype):
        return Number(float(value))
    if type.dtype == "bool":
        return Mask(frozenset()) if value else None
    return Affine(int(value), (0,) * type.rank)


def _constant(constant: Constant) -> Known | None:
    type = constant.type
    if not type.numel:
        return None
    array = decode(constant.data, type)
    first = array.reshape(-1)[0]
    if bool(np.all(array == first)):
        return _number(first.item(), type)
    if type.dtype not in _INTEGERS:
        return None
    affine = np.full(type.shape, first, np.int64)
    coefficients = []
    for dim, extent in enumerate(type.shape):
        line = np.moveaxis(array, dim, 0).reshape(extent, -1)[:, 0].astype(np.int64)
        step = int(line[1] - line[0]) if extent > 1 else 0
        coefficients.append(step)
        index = np.arange(extent).reshape([extent if d == dim else 1 for d in range(type.rank)])
        affine = affine + step * index
    return Affine(int(first), tuple(coefficients)) if np.array_equal(affine, array) else None


def _of_node(node: Node, graph: Graph, known: Mapping[str, Known]) -> Known | None:
    if node.op.startswith("aten.arange."):
        return _arange(node)
    number = fill_value(node)
    if isinstance(number, (bool, int, float)):
        return _number(number, node.type)
    operands = [i for i in node.inputs if i is not None]
    if not operands or any(i not in known for i in operands):
        return None
    moved = _view(node, graph.types[operands[0]])
    if moved is not None:
        return _moved(known[operands[0]], moved)
    program = scalar_program(node, graph)
    if program is None:
        return None
    values: list[Known | None] = [
        _moved(known[i], _broadcast(graph.types[i].rank, node.type)) for i in operands
    ]
    for op in program.body:
        values.append(_instruction(op, values, node.type.rank))
    return values[-1]


def _arange(node: Node) -> Affine | None:
    start, step = node.attrs.get("start", 0), node.attrs.get("step", 1)
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    return Affine(start, (step * _along(node.type.shape[0]),))


Move = Callable[[Affine], "Affine | None"]


def _moved(found: Known, move: Move) -> Known | None:
    """Returns a value seen through a view, given what the view does to an affine value."""
    if isinstance(found, Affine):
        return move(found)
    if isinstance(found, HidingMask):
        mask = _moved(found.mask, move)
        return HidingMask(mask) if isinstance(mask, Mask) else None
    if isinstance(found, Mask):
        conditions = [move(c) for c in found.conditions]
        return None if None in conditions else Mask(frozenset(c for c in conditions if c))
    return found


def _broadcast(rank: int, type: TensorType) -> Move:
    """Returns how a value of that rank is seen in an operation with a result of that type."""
    lead = (0,) * (type.rank - rank)
    return lambda a: replace(a, coefficients=lead + a.coefficients)


def _view(node: Node, type: TensorType) -> Move | None:
    """Returns what a view of a value of that type does to an affine value; None for no view."""
    if node.op in RESHAPES:
        return lambda a: _reshaped(a, type.shape, node.type.shape)
    if node.op == "aten.expand.default":
        return _broadcast(type.rank, node.type)
    if node.op in PERMUTATIONS:
        dims = permutation(node, type.rank)
        return lambda a: replace(a, coefficients=tuple(a.coefficients[d] for d in dims))
    if node.op in ("aten.slice.Tensor", "aten.select.int"):
        return lambda a: _sliced(a, node, type)
    return None


def _reshaped(a: Affine, old: tuple[int, ...], new: tuple[int, ...]) -> Affine | None:
    """A reshape that only adds or drops extents of 1 moves coefficients; another one mixes them."""
    if not any(a.coefficients):
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
        first = integer(node, "index") % type.shape[dim]
        return replace(a, offset=a.offset + coefficient * first, coefficients=before + after)
    bounds = slice(node.attrs.get("start"), node.attrs.get("end"), integer(node, "step", 1))
    first, _, step = bounds.indices(type.shape[dim])
    along = coefficient * step * _along(node.type.shape[dim])
    return replace(a, offset=a.offset + coefficient * first, coefficients=(*before, along, *after))


def _instruction(op: ScalarOp, values: list[Known | None], rank: int) -> Known | None:
    """Returns what an instruction of a scalar program computes over known operands."""
    args: list[Known] = []
    for argument in op.args:
        found = values[argument] if isinstance(argument, int) else _literal(argument[1], rank)
        if found is None:
            return None
        args.append(found)
    a = args[0]
    b = args[1] if len(args) > 1 else None
    if op.op in ("copy", "to_i", "to_f", "to_d", "to_bool"):
        return _converted(a, op.op)
    if op.op == "where":
        return _where(*args)
    if isinstance(a, Mask):
        if op.op == "logical_not":
            return _negated(a)
        both = op.op in ("bitwise_and", "logical_and") and isinstance(b, Mask)
        return Mask(a.conditions | b.conditions) if both else None  # type: ignore[union-attr]
    if isinstance(a, Affine):
        return a.scaled(-1) if op.op == "neg" else _arithmetic(op.op, a, b)
    return None


def _literal(value: float | int, rank: int) -> Known:
    return Number(value) if isinstance(value, float) else Affine(value, (0,) * rank)


def _converted(a: Known, op: str) -> Known | None:
    if isinstance(a, Affine):
        return a if op in ("copy", "to_i") else None
    if isinstance(a, Mask):
        return a if op in ("copy", "to_i", "to_bool") else None
    return a if op in ("copy", "to_f", "to_d") else None


def _arithmetic(op: str, a: Affine, b: Known | None) -> Known | None:
    if not isinstance(b, Affine):
        return None
    if op in ("add", "sub"):
        return a.plus(b if op == "add" else b.scaled(-1))
    if op == "mul":
        factor, other = (a, b) if a.is_number() else (b, a)
        return other.scaled(factor.offset) if factor.is_number() else None
    if op not in _COMPARISONS:
        return None
    larger, smaller, offset = _COMPARISONS[op]
    difference = (a, b)[larger].plus((a, b)[smaller].scaled(-1))
    if difference is None:
        return None
    return Mask(frozenset((replace(difference, offset=difference.offset + offset),)))


def _negated(mask: Mask) -> Mask | None:
    """Returns the complement of one inequality; that of several is no conjunction."""
    if len(mask.conditions) != 1:
        return None
    (condition,) = mask.conditions
    opposite = condition.scaled(-1)
    return Mask(frozenset((replace(opposite, offset=opposite.offset - 1),)))


def _where(condition: Known, x: Known, y: Known) -> Known | None:
    if not (isinstance(condition, Mask) and isinstance(x, Number) and isinstance(y, Number)):
        return None
    if x.value == 0 and y.value <= HIDDEN:
        return HidingMask(condition)
    if y.value == 0 and x.value <= HIDDEN:
        visible = _negated(condition)
        return None if visible is None else HidingMask(visible)
    return None
