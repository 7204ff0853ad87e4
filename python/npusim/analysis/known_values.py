"""What integers, masks and floats of a graph are, as far as it can be proved.

`analyse` walks a graph forwards and keeps what `affine` can say: positions, ranges, masks made by
comparing them, floats that hide a score where such a mask is false. Whatever it does not know is
absent, so that nothing is rewritten that was not proved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

import numpy as np

from npusim.abi import scalar_numpy
from npusim.abi.scalar import ScalarOp, ScalarProgram, result_class
from npusim.abi.scalar_numpy import decode, encode
from npusim.analysis.affine import (
    ALWAYS,
    Affine,
    Choice,
    Known,
    Mask,
    Number,
    along,
    moved,
)
from npusim.analysis.compose import scalar_program
from npusim.analysis.evaluate import fill_value
from npusim.analysis.index_moves import broadcast, of_move
from npusim.errors import SymbolicSizeError
from npusim.ir.graph import Constant, Graph, Node
from npusim.ir.rewriter import reading
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType, is_float

_INTEGERS = ("int64", "int32")
_COMPARISONS = {"le": (1, 0, 0), "lt": (1, 0, -1), "ge": (0, 1, 0), "gt": (0, 1, -1)}
_EQUALITIES = ("eq", "ne")


def analyse(graph: Graph) -> dict[str, Known]:
    """Returns what is known of the graph's values; what is not known is absent."""
    known: dict[str, Known] = {}

    def keep(name: str, found: Known | None) -> None:
        if found is not None:
            known[name] = found

    for constant in graph.constants:
        keep(constant.name, _constant(constant))
    for leaf in (*graph.inputs, *graph.states):
        keep(leaf.name, _scalar(leaf.name, leaf.type))
    for node in graph.nodes:
        if len(node.outputs) != 1:
            continue
        found: Known | None = None
        with reading(node), suppress(SymbolicSizeError):
            found = _stored(_of_node(node, graph, known), node.type)
        keep(node.output.name, found or _scalar(node.output.name, node.type))
    return known


def _stored(found: Known | None, type: TensorType) -> Known | None:
    """Returns what was found, as plainly as can be, if a value of this type holds it unchanged."""
    if isinstance(found, Mask):
        found = found.simplified(type.shape)
    if isinstance(found, Choice):
        mask = found.mask.simplified(type.shape)
        found = Choice(mask, found.inside, found.outside)
        if not mask.conditions or mask.is_never():
            found = Number(found.outside if mask.conditions else found.inside)
    if isinstance(found, Affine) and type.dtype == "bool":
        found = _truth(found, type.rank)
    if isinstance(found, Number) and is_float(type.dtype):
        found = Number(_rounded(found.value, type.dtype))
    if isinstance(found, Choice) and is_float(type.dtype):
        inside, outside = (_rounded(n, type.dtype) for n in (found.inside, found.outside))
        found = Choice(found.mask, inside, outside)
    if isinstance(found, Affine) and not _is_small(found, type.dtype):
        return None
    fits = {
        Affine: type.dtype in _INTEGERS,
        Mask: not is_float(type.dtype),
        Choice: is_float(type.dtype),
        Number: is_float(type.dtype),
    }
    return found if found is not None and fits[found.__class__] else None


def _rounded(value: float, dtype: str) -> float:
    """Returns a number as a dtype stores it."""
    return float(decode(encode(np.asarray(value, np.float64), dtype), TensorType(dtype, ())))


def _is_small(found: Affine, dtype: str) -> bool:
    """Tells whether the numbers are such that positions and lengths cannot make them wrap."""
    bits = 30 if dtype == "int32" else 62
    fixed = [n for n in (found.offset, *found.coefficients) if not is_symbolic(n)]
    return all(abs(n) < 2**bits for n in fixed) and abs(found.times) < 2 ** max(bits - 30, 1)


def _truth(a: Affine, rank: int) -> Known | None:
    if not a.is_number() or a.offset not in (0, 1):
        return None
    return ALWAYS if a.offset == 1 else ALWAYS.negated(rank)


def _scalar(name: str, type: TensorType) -> Affine | None:
    if type.numel != 1 or type.dtype not in _INTEGERS:
        return None
    return Affine(0, (0,) * type.rank, 1, name)


def _uniform(value: float | int | bool, type: TensorType) -> Known | None:
    if is_float(type.dtype):
        return _stored(Number(float(value)), type)
    if type.dtype == "bool":
        value = value != 0
    whole: int = value if is_symbolic(value) else int(value)  # type: ignore[assignment]
    return _stored(Affine(whole, (0,) * type.rank), type)


def _constant(constant: Constant) -> Known | None:
    type = constant.type
    if not type.numel:
        return None
    array = decode(constant.data, type)
    first = array.reshape(-1)[0]
    if bool(np.all(array == first)):
        return _uniform(first.item(), type)
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
    value = fill_value(node)
    if isinstance(value, (bool, int, float)):
        return _uniform(value, node.type)
    operands = [i for i in node.inputs if i is not None]
    if not operands or any(i not in known for i in operands):
        return None
    program = scalar_program(node, graph)
    if program is None:
        return of_move(node, graph.types, known)
    values = [moved(known[i], broadcast(graph.types[i].rank, node.type)) for i in operands]
    for op in program.body:
        values.append(_instruction(op, values, node.type.shape))
    return values[-1]


def _arange(node: Node) -> Affine | None:
    start, step = node.attrs.get("start", 0), node.attrs.get("step", 1)
    if not isinstance(start, int) or not isinstance(step, int):
        return None
    return Affine(start, (step * along(node.type.shape[0]),))


# ---- the instructions of scalar programs ----


def _instruction(op: ScalarOp, values: list[Known | None], shape: Sequence[int]) -> Known | None:
    """Returns what an instruction of a scalar program computes over known operands."""
    args: list[Known] = []
    for argument in op.args:
        found = values[argument] if isinstance(argument, int) else _literal(argument[1], shape)
        if found is None:
            return None
        args.append(found)
    chosen = _of_choices(op, args, shape)
    if chosen is not None:
        return chosen
    a = args[0]
    b = args[1] if len(args) > 1 else None
    if isinstance(a, Mask):
        return _of_masks(op.op, a, b, shape)
    if isinstance(a, Affine):
        if op.op in ("copy", "to_i", "to_i32"):
            return a
        return a.scaled(-1) if op.op == "neg" else _arithmetic(op.op, a, b, shape)
    return None


def _literal(value: float | int, shape: Sequence[int]) -> Known:
    return Number(value) if isinstance(value, float) else Affine(value, (0,) * len(shape))


def _of_choices(op: ScalarOp, args: Sequence[Known], shape: Sequence[int]) -> Known | None:
    """Computes what is one number where one mask is true, and another one elsewhere."""
    pieces = [piece for piece in map(_pieces, args) if piece is not None]
    masks = {mask for mask, _, _ in pieces if mask is not None}
    if len(pieces) < len(args) or len(masks) > 1:
        return None
    inside = _computed(op, [inside for _, inside, _ in pieces])
    outside = _computed(op, [outside for _, _, outside in pieces])
    rank = len(shape)
    if not masks:
        whole = isinstance(inside, int)
        return Affine(inside, (0,) * rank) if whole else Number(inside)  # type: ignore[arg-type]
    (mask,) = masks
    if result_class(op) != "i":
        return Choice(mask, inside, outside)
    if inside == outside:
        return Affine(int(inside), (0,) * rank)
    if (inside, outside) == (1, 0):
        return mask
    return mask.negated(rank) if (inside, outside) == (0, 1) else None


def _pieces(found: Known) -> tuple[Mask | None, float, float] | None:
    """Returns (mask, value where it is true, value elsewhere); no mask for one number."""
    if isinstance(found, Choice):
        return found.mask, found.inside, found.outside
    if isinstance(found, Number):
        return None, found.value, found.value
    if isinstance(found, Mask):
        return found, 1, 0
    if found.is_number() and not is_symbolic(found.offset):
        return None, found.offset, found.offset
    return None


def _computed(op: ScalarOp, operands: Sequence[float]) -> float:
    literals = tuple(("const", value) for value in operands)
    alone = ScalarProgram(("i",), (ScalarOp(op.op, literals, op.cls),))
    result = scalar_numpy.run(alone, [np.zeros(())]).item()
    return int(result) if result_class(op) == "i" else float(result)


def _of_masks(op: str, a: Mask, b: Known | None, shape: Sequence[int]) -> Mask | None:
    if not isinstance(b, Mask):
        return None
    if op in ("bitwise_and", "logical_and"):
        return Mask(a.conditions | b.conditions)
    if op in ("bitwise_or", "logical_or"):
        for one, other in ((a, b), (b, a)):
            one = one.simplified(shape)
            if not one.conditions or one.is_never():
                return other if one.conditions else ALWAYS
    return None


def _arithmetic(op: str, a: Affine, b: Known | None, shape: Sequence[int]) -> Known | None:
    if not isinstance(b, Affine):
        return None
    if op in ("add", "sub"):
        return a.plus(b if op == "add" else b.scaled(-1))
    if op == "mul":
        factor, other = (a, b) if a.is_number() else (b, a)
        return other.scaled(factor.offset) if factor.is_number() else None
    if op in _EQUALITIES:
        return _equality(a.plus(b.scaled(-1)), op == "eq", shape)
    if op not in _COMPARISONS:
        return None
    larger, smaller, offset = _COMPARISONS[op]
    return _at_least((a, b)[larger].plus((a, b)[smaller].scaled(-1)), -offset)


def _at_least(value: Affine | None, number: int) -> Mask | None:
    if value is None:
        return None
    shifted = Affine(value.offset - number, value.coefficients, value.times, value.scalar)
    return Mask(frozenset((shifted,)))


def _equality(difference: Affine | None, equal: bool, shape: Sequence[int]) -> Mask | None:
    """Returns whether two values are equal where that is the same for all elements."""
    if difference is None:
        return None
    same = difference.is_number() and difference.offset == 0
    if not same and not any(d.never_below(1, shape) for d in (difference, difference.scaled(-1))):
        return None
    return ALWAYS if same == equal else ALWAYS.negated(len(shape))
