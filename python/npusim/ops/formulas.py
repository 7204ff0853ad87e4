"""Formulas of pointwise operators: how a node reads as scalar operations on one element.

Owns arithmetic, comparisons, selection and rounding, and what all formulas share; those of
activation functions are in `ops/activations.py`, the operators they belong to in
`ops/pointwise.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from npusim.abi.scalar import OPCODES, Arg, ScalarBuilder, ScalarProgram, compute_class
from npusim.abi.scalar_numpy import decode, encode
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType, is_float

_CLASS_RANK = {"i": 0, "f": 1, "d": 2}


def _operands(node: Node, graph: Graph) -> tuple[ScalarBuilder, list[Arg]]:
    """Starts a program over the node's tensors."""
    names = [n for n in node.inputs if n is not None]
    builder = ScalarBuilder([compute_class(graph.types[n].dtype) for n in names])
    return builder, list(range(len(names)))


def _promoted(builder: ScalarBuilder, args: Sequence[Arg]) -> str:
    """Returns the class PyTorch computes in: the widest of the operands'."""
    classes = ["i"]
    for arg in args:
        if isinstance(arg, tuple):
            classes.append("f" if isinstance(arg[1], float) else "i")
        else:
            classes.append(builder.classes[arg])
    return max(classes, key=_CLASS_RANK.__getitem__)


def number(value: Attr) -> tuple[str, float | int]:
    """Returns an attribute as a constant of a scalar program."""
    if isinstance(value, bool):
        return ("const", int(value))
    assert isinstance(value, (int, float)), value
    return ("const", value)


Formula = Callable[[ScalarBuilder, list[Arg], Node], None]


def scalar_builder(formula: Formula) -> Callable[[Node, Graph], ScalarProgram | None]:
    """Returns what makes a node's ScalarProgram by a formula (`OpDef.scalar`)."""

    def build(node: Node, graph: Graph) -> ScalarProgram | None:
        builder, args = _operands(node, graph)
        formula(builder, args, _with_stored_numbers(node, graph))
        return builder.build(node.type.dtype)

    return build


# Operators that take a number as a tensor of their operand's dtype would hold it. The others
# (mul, div and most activations) compute with the number as it is, in float32.
_STORES_NUMBERS = frozenset(
    (
        *("add", "sub", "rsub", "eq", "ne", "lt", "le", "gt", "ge", "where", "masked_fill"),
        *("clamp", "clamp_min", "clamp_max", "hardtanh", "threshold", "pow", "fmod", "remainder"),
    )
)
_NUMBERS = ("other", "self", "value", "min", "max", "min_val", "max_val", "threshold", "exponent")


def _with_stored_numbers(node: Node, graph: Graph) -> Node:
    """Returns a node over 16-bit floats with its numbers rounded to them, as PyTorch does."""
    if node.op.split(".")[1] not in _STORES_NUMBERS:
        return node
    operand = next((graph.types[i].dtype for i in node.inputs if i is not None), "")
    dtype = node.type.dtype if is_float(node.type.dtype) else operand
    found = {n: node.attrs[n] for n in _NUMBERS if isinstance(node.attrs.get(n), float)}
    if dtype not in ("float16", "bfloat16") or not found or is_symbolic(tuple(found.values())):
        return node
    stored: dict[str, Attr] = {
        name: float(decode(encode(np.asarray(value), dtype), TensorType(dtype, ())))
        for name, value in found.items()
    }
    return replace(node, attrs={**node.attrs, **stored})


def class_of(node: Node) -> str:
    """Returns the class that the result's dtype is computed in."""
    return compute_class(node.type.dtype)


def unary(opcode: str) -> Formula:
    """The result's dtype is the class to compute in (integers are promoted by the float ops)."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = class_of(node)
        if cls not in OPCODES[opcode][3]:
            b.op("copy", cls, b.to(args[0], cls))  # floor, round … of integers
        else:
            b.op(opcode, cls, b.to(args[0], cls))

    return formula


def predicate(opcode: str) -> Formula:
    """A unary predicate: computed in the operand's own class."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = _promoted(b, args)
        if cls not in OPCODES[opcode][3]:
            b.op("copy", "i", ("const", 0))  # no integer is NaN or infinite
        else:
            b.op(opcode, cls, args[0])

    return formula


def with_scalar(args: list[Arg], node: Node, name: str = "other") -> list[Arg]:
    """Returns the arguments, and behind them the number that an attribute holds, if any."""
    return [*args, number(node.attrs[name])] if name in node.attrs else args


def binary(opcode: str) -> Formula:
    """An operation of two, in the result's class."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        x, y = with_scalar(args, node)
        cls = class_of(node)
        b.op(opcode, cls, b.to(x, cls), b.to(y, cls))

    return formula


def compare(opcode: str) -> Formula:
    """A comparison of two, in the wider of their classes."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        x, y = with_scalar(args, node)
        cls = _promoted(b, [x, y])
        b.op(opcode, cls, b.to(x, cls), b.to(y, cls))

    return formula


def bitwise(opcode: str) -> Formula:
    """Bitwise ops; on bool they are the logical ones, and `not` must stay 0 or 1."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        args = with_scalar(args, node)
        boolean = node.type.dtype == "bool" and opcode == "bitwise_not"
        b.op("logical_not" if boolean else opcode, "i", *args)

    return formula


def logical(opcode: str) -> Formula:
    """A logical operation: whatever is not zero is true."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = _promoted(b, args)
        b.op(opcode, cls, *(b.to(a, cls) for a in args))

    return formula


def add(sign: str) -> Formula:
    """add, sub: x ± alpha * y."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        x, y = with_scalar(args, node)
        cls = class_of(node)
        alpha = node.attrs.get("alpha", 1)
        y = b.to(y, cls)
        if alpha != 1:
            y = b.op("mul", cls, y, b.to(number(alpha), cls))
        b.op(sign, cls, b.to(x, cls), y)

    return formula


def rsub(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """y - alpha * x."""
    x, y = with_scalar(args, node)
    cls = class_of(node)
    alpha = node.attrs.get("alpha", 1)
    x = b.to(x, cls)
    if alpha != 1:
        x = b.op("mul", cls, x, b.to(number(alpha), cls))
    b.op("sub", cls, b.to(y, cls), x)


def div(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """div, with its rounding mode."""
    x, y = with_scalar(args, node)
    cls = class_of(node)
    opcode = {None: "div", "trunc": "div_trunc", "floor": "div_floor"}[
        node.attrs.get("rounding_mode")  # type: ignore[index]
    ]
    b.op(opcode, cls, b.to(x, cls), b.to(y, cls))


def power(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """pow; small whole and half exponents without it."""
    cls = class_of(node)
    if "self" in node.attrs:
        args = [number(node.attrs["self"]), *args]
    x, y = with_scalar(args, node, "exponent")
    x = b.to(x, cls)
    exponent = y[1] if isinstance(y, tuple) else None
    if exponent == 2:
        b.op("mul", cls, x, x)
    elif exponent == 3:
        b.op("mul", cls, b.op("mul", cls, x, x), x)
    elif exponent == 1:
        b.op("copy", cls, x)
    elif exponent == 0.5 and cls != "i":
        b.op("sqrt", cls, x)
    elif exponent == -0.5 and cls != "i":
        b.op("rsqrt", cls, x)
    elif exponent == -1 and cls != "i":
        b.op("reciprocal", cls, x)
    else:
        b.op("pow", cls, x, b.to(y, cls))


def where(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """The second where the first is true, the third elsewhere; either may be a number."""
    cls = class_of(node)
    cond = b.op("to_bool", "i", args[0])
    rest = args[1:]
    if "self" in node.attrs:
        rest = [number(node.attrs["self"]), *rest]
    x, y = with_scalar(rest, node)
    b.op("where", cls, cond, b.to(x, cls), b.to(y, cls))


def masked_fill(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """A value where the mask is true, x elsewhere."""
    cls = class_of(node)
    value = number(node.attrs["value"]) if "value" in node.attrs else args[2]
    b.op("where", cls, args[1], b.to(value, cls), b.to(args[0], cls))


def clamp(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """clamp, hardtanh: bounds are numbers, tensors, or absent."""
    cls = class_of(node)
    names = ("min_val", "max_val") if "min_val" in node.attrs else ("min", "max")
    tensors = iter(args[1:])
    bounds: list[Arg | None] = []
    for position, name in enumerate(names):
        if name in node.attrs:
            bound = node.attrs[name]
            bounds.append(None if bound is None else number(bound))
        else:
            present = len(node.inputs) > 1 + position and node.inputs[1 + position] is not None
            bounds.append(next(tensors) if present else None)
    x = b.to(args[0], cls)
    low, high = (None if v is None else b.to(v, cls) for v in bounds)
    if low is not None and high is not None:
        b.op("clamp", cls, x, low, high)
    elif low is not None:
        b.op("maximum", cls, x, low)
    elif high is not None:
        b.op("minimum", cls, x, high)
    else:
        b.op("copy", cls, x)


def bound(opcode: str, name: str) -> Formula:
    """clamp_min, clamp_max."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        x, y = with_scalar(args, node, name)
        cls = class_of(node)
        b.op(opcode, cls, b.to(x, cls), b.to(y, cls))

    return formula


def addcmul(opcode: str) -> Formula:
    """addcmul, addcdiv: x + value * (y op z)."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = class_of(node)
        x, y, z = (b.to(a, cls) for a in args)
        term = b.op(opcode, cls, y, z)
        value = node.attrs.get("value", 1)
        if value != 1:
            term = b.op("mul", cls, term, b.to(number(value), cls))
        b.op("add", cls, x, term)

    return formula


def lerp(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """start + weight * (end - start)."""
    cls = class_of(node)
    start, end, weight = with_scalar(args, node, "weight")
    span = b.op("sub", cls, end, start)
    b.op("add", cls, start, b.op("mul", cls, b.to(weight, cls), span))


def round_decimals(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """Rounds at a decimal place, as PyTorch: scaled by a power of ten, half to even."""
    cls, places = class_of(node), node.attrs["decimals"]
    assert isinstance(places, int)
    if cls == "i":
        b.op("copy", cls, args[0])
        return
    there, back = ("mul", "div") if places >= 0 else ("div", "mul")
    scale = ("const", 10.0 ** abs(places))
    b.op(back, cls, b.op("round", cls, b.op(there, cls, args[0], scale)), scale)


def _is_negative(b: ScalarBuilder, x: Arg, cls: str) -> int:
    """Tells the sign: -0.0 is told from 0.0 by its reciprocal."""
    below = b.op("lt", cls, x, b.to(("const", 0), cls))
    if cls == "i":
        return below
    inverse = b.op("reciprocal", cls, x)
    return b.op("logical_or", "i", below, b.op("lt", cls, inverse, ("const", 0.0)))


def signbit(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """Whether the sign is negative, also that of zero."""
    _is_negative(b, args[0], _promoted(b, args))


def copysign(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """The size of the first with the sign of the second."""
    x, y = with_scalar(args, node)
    cls = class_of(node)
    size = b.op("abs", cls, b.to(x, cls))
    if isinstance(y, tuple):
        y = b.op("copy", cls, b.to(y, cls))
    negative = _is_negative(b, b.to(y, cls), cls)
    b.op("where", cls, negative, b.op("neg", cls, size), size)


def hypot(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """sqrt(x² + y²) as large * sqrt(1 + (small / large)²), which squares nothing large."""
    cls = class_of(node)
    x, y = (b.op("abs", cls, b.to(a, cls)) for a in args)
    large, small = b.op("maximum", cls, x, y), b.op("minimum", cls, x, y)
    ratio = b.op("div", cls, small, large)
    root = b.op("sqrt", cls, b.op("fma", cls, ratio, ratio, ("const", 1.0)))
    plain = b.op("logical_or", "i", b.op("eq", cls, large, ("const", 0.0)), b.op("isinf", cls, x))
    plain = b.op("logical_or", "i", plain, b.op("isinf", cls, y))
    size = b.op("add", cls, large, small)  # 0, or infinite also next to NaN
    size = b.op("where", cls, b.op("isnan", cls, size), ("const", float("inf")), size)
    b.op("where", cls, plain, size, b.op("mul", cls, large, root))


def number_wins(opcode: str) -> Formula:
    """fmax, fmin: like maximum and minimum, but NaN loses."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = class_of(node)
        x, y = (b.to(a, cls) for a in args)
        best = b.op(opcode, cls, x, y)
        if cls != "i":
            best = b.op("where", cls, b.op("isnan", cls, y), x, best)
            b.op("where", cls, b.op("isnan", cls, x), y, best)

    return formula


def convert(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """Dtype conversion; through the narrower storage when the store itself does not round."""
    b.op("copy", b.classes[0], args[0])
