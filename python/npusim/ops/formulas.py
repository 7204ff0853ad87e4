"""Formulas of pointwise operators: how a node reads as scalar operations on one element.

Owns arithmetic, comparisons, selection and rounding, and what all formulas share; those of
activation functions are in `ops/activations.py`, the operators they belong to in
`ops/pointwise.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npusim.abi.literals import checked_literal
from npusim.abi.scalar import OPCODES, Arg, ScalarBuilder, ScalarProgram, compute_class
from npusim.errors import at
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType
from npusim.ops.inference.promotion import result_dtype

_CLASS_RANK = {"i": 0, "f": 1, "d": 2}


def _operands(node: Node, graph: Graph) -> tuple[ScalarBuilder, list[Arg]]:
    """Starts a program over the node's tensors."""
    dtypes = [graph.types[n].dtype for n in node.inputs if n is not None]
    return ScalarBuilder(list(map(compute_class, dtypes)), dtypes), list(range(len(dtypes)))


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


def common_dtype(b: ScalarBuilder, args: Sequence[Arg]) -> str:
    """Returns the dtype PyTorch compares operands in: what tensors with dimensions promote to.

    A Python number counts where its kind is above those of all tensors. 0-d tensors that promote
    less than others have been converted before (`passes/promote_operands.py`).
    """
    tensors = [TensorType(b.dtypes[arg], (1,)) for arg in args if isinstance(arg, int)]
    return result_dtype(*tensors, *(arg[1] for arg in args if isinstance(arg, tuple)))


def checked(b: ScalarBuilder, arg: Arg, node: Node) -> Arg:
    """Returns an operand in the result's dtype, which a number has to fit.

    Raises:
        GraphError: a number that it does not hold, which PyTorch refuses in this operator.
    """
    dtype = node.type.dtype
    if isinstance(arg, int) or is_symbolic(arg[1]):
        return b.stored(arg, dtype)
    return ("const", checked_literal(arg[1], dtype, f"{node.op}{at(node.source)}"))


# What integers wrap at the end of these would have wrapped before, just as well.
_WRAPS_LAST = frozenset(
    ("add", "sub", "mul", "neg", "bitwise_and", "bitwise_or", "bitwise_xor", "copy")
)
# PyTorch computes these on 16-bit floats with their scalar as it is, unrounded.
_WIDE_SCALAR = frozenset(("mul", "div", "div_trunc", "div_floor"))


def operand(b: ScalarBuilder, opcode: str, arg: Arg, node: Node, right: bool = False) -> Arg:
    """Returns an operand in the dtype that PyTorch computes in, the result's: wrapped or rounded.

    PyTorch converts all operands to one dtype before it computes; a wider one, a 0-d tensor or a
    number, loses there what does not fit.
    """
    dtype, cls = node.type.dtype, class_of(node)
    if cls == "i" and dtype != "bool" and opcode in _WRAPS_LAST:
        return b.to(arg, cls) if isinstance(arg, int) else b.stored(arg, dtype)
    if cls == "f" and opcode in _WIDE_SCALAR:
        # A right operand of more digits than the result is a single number, and is not rounded.
        wide = right and isinstance(arg, int) and b.dtypes[arg] in ("float32", "float64")
        if wide or isinstance(arg, tuple):
            return b.to(arg, cls)
    return b.stored(arg, dtype)


Formula = Callable[[ScalarBuilder, list[Arg], Node], None]


def scalar_builder(formula: Formula) -> Callable[[Node, Graph], ScalarProgram | None]:
    """Returns what makes a node's ScalarProgram by a formula (`OpDef.scalar`)."""

    def build(node: Node, graph: Graph) -> ScalarProgram | None:
        builder, args = _operands(node, graph)
        formula(builder, args, node)
        return builder.build(node.type.dtype)

    return build


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
    """Returns the arguments with the number that an attribute holds, if any.

    It stands after them, that of `self` before them.
    """
    if "self" in node.attrs:
        return [number(node.attrs["self"]), *args]
    return [*args, number(node.attrs[name])] if name in node.attrs else args


def binary(opcode: str) -> Formula:
    """An operation of two, in the result's dtype."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        left, right = with_scalar(args, node)
        x, y = operand(b, opcode, left, node), operand(b, opcode, right, node, right=True)
        b.op(opcode, class_of(node), x, y)

    return formula


def compare(opcode: str) -> Formula:
    """A comparison of two, in the dtype that both promote to."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        args = with_scalar(args, node)
        common = common_dtype(b, args)
        x, y = (b.stored(a, common) for a in args)
        b.op(opcode, compute_class(common), x, y)

    return formula


def bitwise(opcode: str) -> Formula:
    """Bitwise ops; on bool they are the logical ones, and `not` must stay 0 or 1."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        boolean = node.type.dtype == "bool" and opcode == "bitwise_not"
        operands = [operand(b, opcode, a, node) for a in with_scalar(args, node)]
        b.op("logical_not" if boolean else opcode, "i", *operands)

    return formula


def logical(opcode: str) -> Formula:
    """A logical operation: whatever is not zero is true."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        common = common_dtype(b, args)
        b.op(opcode, compute_class(common), *(b.stored(a, common) for a in args))

    return formula


def add(sign: str) -> Formula:
    """add, sub: x ± alpha * y. PyTorch subtracts by adding -alpha times, which has to fit."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        x, y = (operand(b, sign, a, node) for a in with_scalar(args, node))
        _add_times(b, x, y, sign, node)

    return formula


def rsub(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """y - alpha * x."""
    x, y = (operand(b, "sub", a, node) for a in with_scalar(args, node))
    _add_times(b, y, x, "sub", node)


def _add_times(b: ScalarBuilder, x: Arg, y: Arg, sign: str, node: Node) -> None:
    cls, alpha = class_of(node), node.attrs.get("alpha", 1)
    if alpha == 1:
        b.op(sign, cls, x, y)
        return
    assert isinstance(alpha, (int, float)), alpha
    times = checked(b, number(-alpha if sign == "sub" else alpha), node)
    b.op("add", cls, x, b.op("mul", cls, y, times))


def div(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """div, with its rounding mode."""
    opcode = {None: "div", "trunc": "div_trunc", "floor": "div_floor"}[
        node.attrs.get("rounding_mode")  # type: ignore[index]
    ]
    binary(opcode)(b, args, node)


def power(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """pow; small whole and half exponents without it."""
    cls = class_of(node)
    x, y = with_scalar(args, node, "exponent")
    x = operand(b, "pow", x, node)
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
        b.op("pow", cls, x, operand(b, "pow", y, node))


def where(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """The second where the first is true, the third elsewhere; either may be a number."""
    cls = class_of(node)
    cond = b.op("to_bool", "i", args[0])
    x, y = (b.stored(a, node.type.dtype) for a in with_scalar(args[1:], node))
    b.op("where", cls, cond, x, y)


def masked_fill(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """A value where the mask is true, x elsewhere."""
    cls = class_of(node)
    value = number(node.attrs["value"]) if "value" in node.attrs else args[2]
    b.op("where", cls, args[1], checked(b, value, node), b.to(args[0], cls))


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
    x = b.stored(args[0], node.type.dtype)
    low, high = (None if v is None else checked(b, v, node) for v in bounds)
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
        x, y = (checked(b, a, node) for a in with_scalar(args, node, name))
        b.op(opcode, class_of(node), x, y)

    return formula


def addcmul(opcode: str) -> Formula:
    """addcmul, addcdiv: x + value * (y op z)."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = class_of(node)
        x, y, z = (b.stored(a, node.type.dtype) for a in args)
        term = b.op(opcode, cls, y, z)
        value = node.attrs.get("value", 1)
        if value != 1:
            term = b.op("mul", cls, term, checked(b, number(value), node))
        b.op("add", cls, x, term)

    return formula


def lerp(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """start + weight * (end - start), written from the end for weights of 0.5 and more.

    As PyTorch has it (Lerp.h): `end` is what a weight of 1 gives, also where the span overflows.
    """
    cls = class_of(node)
    start, end, weight = with_scalar(args, node, "weight")
    span = b.op("sub", cls, end, start)
    weight = b.to(weight, cls)
    rest = b.op("sub", cls, weight, ("const", 1.0))
    near = b.op("lt", cls, b.op("abs", cls, weight), ("const", 0.5))
    base = b.op("where", cls, near, start, end)
    b.op("add", cls, base, b.op("mul", cls, b.op("where", cls, near, weight, rest), span))


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
    size = b.op("abs", cls, b.stored(x, node.type.dtype))
    y = b.stored(y, node.type.dtype)
    if isinstance(y, tuple):
        y = b.op("copy", cls, y)
    negative = _is_negative(b, y, cls)
    b.op("where", cls, negative, b.op("neg", cls, size), size)


def hypot(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """sqrt(x² + y²) as large * sqrt(1 + (small / large)²), which squares nothing large."""
    cls = class_of(node)
    x, y = (b.op("abs", cls, b.stored(a, node.type.dtype)) for a in args)
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
        x, y = (b.stored(a, node.type.dtype) for a in args)
        best = b.op(opcode, cls, x, y)
        if cls != "i":
            best = b.op("where", cls, b.op("isnan", cls, y), x, best)
            b.op("where", cls, b.op("isnan", cls, x), y, best)

    return formula


def convert(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """Dtype conversion; through the narrower storage when the store itself does not round."""
    b.op("copy", b.classes[0], args[0])
