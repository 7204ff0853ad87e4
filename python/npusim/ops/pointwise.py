"""Pointwise operators: one scalar formula an element.

Owns how each ATen pointwise op reads as a ScalarProgram. Chains of them are fused into
`npu.pointwise` by `passes/fuse_pointwise.py`; `pointwise_kernel.py` emits programs of either kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npusim.errors import at
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.types import DTYPES
from npusim.ops.fused import infer_pointwise, reference_pointwise
from npusim.ops.opdef import Case, OpDef, register
from npusim.ops.pointwise_kernel import emit_program
from npusim.ops.scalar import OPCODES, Arg, ScalarBuilder, ScalarProgram, compute_class
from npusim.program.lowering import Lowering

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


def _number(value: Attr) -> tuple[str, float | int]:
    if isinstance(value, bool):
        return ("const", int(value))
    assert isinstance(value, (int, float)), value
    return ("const", value)


Formula = Callable[[ScalarBuilder, list[Arg], Node], None]


def _scalar(formula: Formula) -> Callable[[Node, Graph], ScalarProgram | None]:
    def build(node: Node, graph: Graph) -> ScalarProgram | None:
        builder, args = _operands(node, graph)
        formula(builder, args, node)
        return builder.build(node.type.dtype)

    return build


def _class_of(node: Node) -> str:
    return compute_class(node.type.dtype)


def _unary(opcode: str) -> Formula:
    """The result's dtype is the class to compute in (integers are promoted by the float ops)."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = _class_of(node)
        if cls not in OPCODES[opcode][3]:
            b.op("copy", cls, b.to(args[0], cls))  # floor, round … of integers
        else:
            b.op(opcode, cls, b.to(args[0], cls))

    return formula


def _test(opcode: str) -> Formula:
    """A unary predicate: computed in the operand's own class."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = _promoted(b, args)
        if cls not in OPCODES[opcode][3]:
            b.op("copy", "i", ("const", 0))  # no integer is NaN or infinite
        else:
            b.op(opcode, cls, args[0])

    return formula


def _with_scalar(args: list[Arg], node: Node, name: str = "other") -> list[Arg]:
    return [*args, _number(node.attrs[name])] if name in node.attrs else args


def _binary(opcode: str) -> Formula:
    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        x, y = _with_scalar(args, node)
        cls = _class_of(node)
        b.op(opcode, cls, b.to(x, cls), b.to(y, cls))

    return formula


def _compare(opcode: str) -> Formula:
    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        x, y = _with_scalar(args, node)
        cls = _promoted(b, [x, y])
        b.op(opcode, cls, b.to(x, cls), b.to(y, cls))

    return formula


def _bitwise(opcode: str) -> Formula:
    """Bitwise ops; on bool they are the logical ones, and `not` must stay 0 or 1."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        args = _with_scalar(args, node)
        boolean = node.type.dtype == "bool" and opcode == "bitwise_not"
        b.op("logical_not" if boolean else opcode, "i", *args)

    return formula


def _logical(opcode: str) -> Formula:
    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = _promoted(b, args)
        b.op(opcode, cls, *(b.to(a, cls) for a in args))

    return formula


def _add(sign: str) -> Formula:
    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        x, y = _with_scalar(args, node)
        cls = _class_of(node)
        alpha = node.attrs.get("alpha", 1)
        y = b.to(y, cls)
        if alpha != 1:
            y = b.op("mul", cls, y, b.to(_number(alpha), cls))
        b.op(sign, cls, b.to(x, cls), y)

    return formula


def _rsub(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    x, y = _with_scalar(args, node)
    cls = _class_of(node)
    alpha = node.attrs.get("alpha", 1)
    x = b.to(x, cls)
    if alpha != 1:
        x = b.op("mul", cls, x, b.to(_number(alpha), cls))
    b.op("sub", cls, b.to(y, cls), x)


def _div(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    x, y = _with_scalar(args, node)
    cls = _class_of(node)
    opcode = {None: "div", "trunc": "div_trunc", "floor": "div_floor"}[
        node.attrs.get("rounding_mode")  # type: ignore[index]
    ]
    b.op(opcode, cls, b.to(x, cls), b.to(y, cls))


def _pow(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    cls = _class_of(node)
    if "self" in node.attrs:
        args = [_number(node.attrs["self"]), *args]
    x, y = _with_scalar(args, node, "exponent")
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


def _where(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    cls = _class_of(node)
    cond = b.op("to_bool", "i", args[0])
    rest = args[1:]
    if "self" in node.attrs:
        rest = [_number(node.attrs["self"]), *rest]
    x, y = _with_scalar(rest, node)
    b.op("where", cls, cond, b.to(x, cls), b.to(y, cls))


def _masked_fill(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    cls = _class_of(node)
    value = _number(node.attrs["value"]) if "value" in node.attrs else args[2]
    b.op("where", cls, args[1], b.to(value, cls), b.to(args[0], cls))


def _clamp(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """clamp, hardtanh: bounds are numbers, tensors, or absent."""
    cls = _class_of(node)
    names = ("min_val", "max_val") if "min_val" in node.attrs else ("min", "max")
    tensors = iter(args[1:])
    bounds: list[Arg | None] = []
    for position, name in enumerate(names):
        if name in node.attrs:
            bound = node.attrs[name]
            bounds.append(None if bound is None else _number(bound))
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


def _bound(opcode: str, name: str) -> Formula:
    """clamp_min, clamp_max."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        x, y = _with_scalar(args, node, name)
        cls = _class_of(node)
        b.op(opcode, cls, b.to(x, cls), b.to(y, cls))

    return formula


def _relu6(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    cls = _class_of(node)
    b.op("clamp", cls, b.to(args[0], cls), b.to(("const", 0), cls), b.to(("const", 6), cls))


def _gelu(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    opcode = "gelu_tanh" if node.attrs.get("approximate") == "tanh" else "gelu"
    b.op(opcode, _class_of(node), args[0])


def _leaky_relu(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    cls, x = _class_of(node), args[0]
    scaled = b.op("mul", cls, x, b.to(_number(node.attrs["negative_slope"]), cls))
    b.op("where", cls, b.op("gt", cls, x, b.to(("const", 0), cls)), x, scaled)


def _elu(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    cls, x = _class_of(node), args[0]
    alpha, scale, input_scale = (
        float(node.attrs.get(k, 1.0))  # type: ignore[arg-type]
        for k in ("alpha", "scale", "input_scale")
    )
    inner = b.op("mul", cls, x, ("const", input_scale)) if input_scale != 1 else x
    low = b.op("mul", cls, b.op("expm1", cls, inner), ("const", alpha * scale))
    high = b.op("mul", cls, x, ("const", scale)) if scale != 1 else x
    b.op("where", cls, b.op("gt", cls, x, ("const", 0.0)), high, low)


def _softplus(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    cls, x = _class_of(node), args[0]
    beta = float(node.attrs.get("beta", 1.0))  # type: ignore[arg-type]
    threshold = float(node.attrs.get("threshold", 20.0))  # type: ignore[arg-type]
    scaled = b.op("mul", cls, x, ("const", beta)) if beta != 1 else x
    soft = b.op("log1p", cls, b.op("exp", cls, scaled))
    soft = b.op("mul", cls, soft, ("const", 1 / beta)) if beta != 1 else soft
    b.op("where", cls, b.op("gt", cls, scaled, ("const", threshold)), x, soft)


def _threshold(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    cls, x = _class_of(node), args[0]
    limit, value = (b.to(_number(node.attrs[k]), cls) for k in ("threshold", "value"))
    b.op("where", cls, b.op("le", cls, x, limit), value, x)


def _addcmul(opcode: str) -> Formula:
    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = _class_of(node)
        x, y, z = (b.to(a, cls) for a in args)
        term = b.op(opcode, cls, y, z)
        value = node.attrs.get("value", 1)
        if value != 1:
            term = b.op("mul", cls, term, b.to(_number(value), cls))
        b.op("add", cls, x, term)

    return formula


def _lerp(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    cls = _class_of(node)
    start, end, weight = _with_scalar(args, node, "weight")
    span = b.op("sub", cls, end, start)
    b.op("add", cls, start, b.op("mul", cls, b.to(weight, cls), span))


def _logit(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """log(x / (1 - x)), clamped to [eps, 1 - eps] when eps is given."""
    cls, x = _class_of(node), args[0]
    eps = node.attrs.get("eps")
    if eps is not None:
        assert isinstance(eps, (int, float))
        x = b.op("clamp", cls, b.to(x, cls), ("const", float(eps)), ("const", 1.0 - float(eps)))
    x = b.to(x, cls)
    b.op("log", cls, b.op("div", cls, x, b.op("sub", cls, ("const", 1.0), x)))


def _log_sigmoid(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """min(x, 0) - log1p(exp(-|x|))."""
    cls, x = _class_of(node), args[0]
    tail = b.op("log1p", cls, b.op("exp", cls, b.op("neg", cls, b.op("abs", cls, x))))
    b.op("sub", cls, b.op("minimum", cls, x, ("const", 0.0)), tail)


def _round_decimals(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """Rounds at a decimal place, as PyTorch: scaled by a power of ten, half to even."""
    cls, places = _class_of(node), node.attrs["decimals"]
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


def _signbit(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    _is_negative(b, args[0], _promoted(b, args))


def _copysign(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """The size of the first with the sign of the second."""
    x, y = _with_scalar(args, node)
    cls = _class_of(node)
    size = b.op("abs", cls, b.to(x, cls))
    if isinstance(y, tuple):
        y = b.op("copy", cls, b.to(y, cls))
    negative = _is_negative(b, b.to(y, cls), cls)
    b.op("where", cls, negative, b.op("neg", cls, size), size)


def _hypot(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """sqrt(x² + y²) as large * sqrt(1 + (small / large)²), which squares nothing large."""
    cls = _class_of(node)
    x, y = (b.op("abs", cls, b.to(a, cls)) for a in args)
    large, small = b.op("maximum", cls, x, y), b.op("minimum", cls, x, y)
    ratio = b.op("div", cls, small, large)
    root = b.op("sqrt", cls, b.op("fma", cls, ratio, ratio, ("const", 1.0)))
    plain = b.op("logical_or", "i", b.op("eq", cls, large, ("const", 0.0)), b.op("isinf", cls, x))
    plain = b.op("logical_or", "i", plain, b.op("isinf", cls, y))
    size = b.op("add", cls, large, small)  # 0, or infinite also next to NaN
    size = b.op("where", cls, b.op("isnan", cls, size), ("const", float("inf")), size)
    b.op("where", cls, plain, size, b.op("mul", cls, large, root))


def _number_wins(opcode: str) -> Formula:
    """fmax, fmin: like maximum and minimum, but NaN loses."""

    def formula(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
        cls = _class_of(node)
        x, y = (b.to(a, cls) for a in args)
        best = b.op(opcode, cls, x, y)
        if cls != "i":
            best = b.op("where", cls, b.op("isnan", cls, y), x, best)
            b.op("where", cls, b.op("isnan", cls, x), y, best)

    return formula


def _convert(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """Dtype conversion; through the narrower storage when the store itself does not round."""
    b.op("copy", b.classes[0], args[0])


def _lower_fused(node: Node, low: Lowering) -> None:
    program = ScalarProgram.from_attr(node.attrs["program"])
    inputs = [v for v in low.inputs(node) if v is not None]
    emit_program(low, program, inputs, low.result(node.output))


def lower_scalar(node: Node, low: Lowering) -> None:
    """Lowers a pointwise op that no chain took in."""
    from npusim.ops.opdef import find

    definition = find(node.op)
    assert definition is not None and definition.scalar is not None
    program = definition.scalar(node, low.graph)
    assert program is not None, f"{node.op}{at(node.source)}"
    inputs = [v for v in low.inputs(node) if v is not None]
    emit_program(low, program, inputs, low.result(node.output))


def _rank_fits(node: Node, graph: Graph) -> str | None:
    if any(node_type.dtype not in DTYPES for node_type in (node.type,)):
        return f"dtype {node.type.dtype}"
    return None


_FLOATS = ("float32", "float16", "bfloat16", "float64")
_ALL = (*_FLOATS, "int64", "int32", "bool")
_NUMBERS = (*_FLOATS, "int64", "int32")

_ONE = (Case(((2, 3, 5),)), Case(((),), id="scalar"), Case(((0, 4),), id="empty"))
_POSITIVE = (Case((((2, 3, 5), "positive"),)), Case((((17,), "positive"),)))
_TWO = (
    Case(((2, 3, 5), (2, 3, 5))),
    Case(((4, 1, 5), (3, 1)), id="broadcast"),
    Case(((33,), ()), id="scalar"),
)
_TWO_INTS = (Case((((2, 3, 5), ("int", -9, 9)), ((3, 5), ("int", 1, 9)))),)
_TWO_NONZERO = (Case(((2, 3, 5), ((2, 3, 5), "positive"))), Case(((4, 1), ((3,), "positive"))))


def _op(
    name: str,
    formula: Formula,
    cases: Sequence[Case] = _ONE,
    dtypes: tuple[str, ...] = _FLOATS,
    tolerance: float = 1.0,
) -> None:
    register(
        OpDef(
            f"aten.{name}",
            lower=lower_scalar,
            supports=_rank_fits,
            scalar=_scalar(formula),
            cases=cases,
            dtypes=dtypes,
            tolerance=tolerance,
        )
    )


def _with(cases: Sequence[Case], **attrs: object) -> tuple[Case, ...]:
    return tuple(Case(c.inputs, {**c.attrs, **attrs}, c.id) for c in cases)


for _name in ("neg", "abs", "sign"):
    _op(f"{_name}.default", _unary(_name), dtypes=_NUMBERS)
_op("relu.default", _unary("relu"), dtypes=_NUMBERS)
for _name in (
    *("exp", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "tanh", "sigmoid"),
    *("erf", "silu", "hardswish", "hardsigmoid", "mish", "exp2", "reciprocal"),
):
    _op(f"{_name}.default", _unary(_name))
for _name in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt"):
    _op(f"{_name}.default", _unary(_name), _POSITIVE)
for _name in ("asin", "acos", "atanh"):
    _op(f"{_name}.default", _unary(_name), (Case((((2, 3, 5), "unit"),)),))
_op("acosh.default", _unary("acosh"), (Case((((2, 3, 5), "above_one"),)),))
for _name in ("floor", "ceil", "round", "trunc"):
    _op(f"{_name}.default", _unary(_name), dtypes=_NUMBERS)
for _name in ("isnan", "isinf"):
    _op(f"{_name}.default", _test(_name), dtypes=_NUMBERS)
_op("logical_not.default", _test("logical_not"), dtypes=_ALL)
_op("bitwise_not.default", _bitwise("bitwise_not"), dtypes=("int64", "int32", "bool"))

for _name, _sign in (("add", "add"), ("sub", "sub")):
    _op(f"{_name}.Tensor", _add(_sign), _TWO + _with(_TWO[:1], alpha=2), _NUMBERS)
    _op(f"{_name}.Scalar", _add(_sign), _with(_ONE, other=3), _NUMBERS)
_op("rsub.Scalar", _rsub, _with(_ONE, other=3), _NUMBERS)
_op("rsub.Tensor", _rsub, _TWO, _NUMBERS)
_op("mul.Tensor", _binary("mul"), _TWO, _NUMBERS)
_op("mul.Scalar", _binary("mul"), _with(_ONE, other=3), _NUMBERS)
for _name in ("div.Tensor", "div.Tensor_mode"):
    _mode: dict[str, object] = {"rounding_mode": "floor"} if "mode" in _name else {}
    _op(_name, _div, _with(_TWO_NONZERO, **_mode))
for _name in ("div.Scalar", "div.Scalar_mode"):
    _mode = {"rounding_mode": "trunc"} if "mode" in _name else {}
    _op(_name, _div, _with(_ONE, other=3.0, **_mode))
for _name in ("fmod", "remainder"):
    _op(f"{_name}.Tensor", _binary(_name), _TWO_NONZERO + _TWO_INTS)
    _op(f"{_name}.Scalar", _binary(_name), _with(_ONE, other=3), _NUMBERS)
_op("floor_divide.default", _binary("div_floor"), _TWO_NONZERO)
_op("pow.Tensor_Scalar", _pow, sum((_with(_POSITIVE, exponent=e) for e in (2, 0.5, 1.7)), ()))
_op("pow.Tensor_Tensor", _pow, (Case((((2, 3), "positive"), (2, 3))),))
_op("pow.Scalar", _pow, _with(_ONE, self=2.0))
for _name in ("maximum", "minimum"):
    _op(f"{_name}.default", _binary(_name), _TWO, _NUMBERS)
_op("atan2.default", _binary("atan2"), _TWO)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _op(f"{_name}.Tensor", _compare(_name), _TWO, _ALL)
    _op(f"{_name}.Scalar", _compare(_name), _with(_ONE, other=0), _NUMBERS)
for _name in ("and", "or", "xor"):
    _op(f"logical_{_name}.default", _logical(f"logical_{_name}"), _TWO, _ALL)
    for _kind, _cases in (("Tensor", _TWO), ("Scalar", _with(_ONE, other=1))):
        _op(f"bitwise_{_name}.{_kind}", _bitwise(f"bitwise_{_name}"), _cases, ("int64", "int32"))
for _name in ("left", "right"):
    for _kind, _cases in (("Tensor", _TWO_INTS), ("Tensor_Scalar", _with(_ONE, other=1))):
        _full = f"bitwise_{_name}_shift.{_kind}"
        _op(_full, _bitwise(f"shift_{_name}"), _cases, ("int64", "int32"))
_CONDITION = (Case((((2, 3, 5), "bool"), (2, 3, 5), (3, 1))),)
_op("where.self", _where, _CONDITION, _NUMBERS)
_op("where.ScalarOther", _where, (Case((((2, 3), "bool"), (2, 3)), {"other": 2.0}),))
_op("where.ScalarSelf", _where, (Case((((2, 3), "bool"), (2, 3)), {"self": 2.0}),))
_MASK = (Case(((2, 3, 5), ((3, 5), "bool")), {"value": 2}),)
_op("masked_fill.Scalar", _masked_fill, _MASK, _NUMBERS)
_op("masked_fill.Tensor", _masked_fill, (Case(((2, 3), ((2, 3), "bool"), ())),), _NUMBERS)
_op("clamp.default", _clamp, _with(_ONE, min=-1, max=1) + _with(_ONE, max=0), _NUMBERS)
_op("clamp.Tensor", _clamp, (Case(((2, 3), (3,), (2, 1))),))
_op("clamp_min.default", _bound("maximum", "min"), _with(_ONE, min=0), _NUMBERS)
_op("clamp_max.default", _bound("minimum", "max"), _with(_ONE, max=0), _NUMBERS)
_op("clamp_min.Tensor", _bound("maximum", "min"), _TWO)
_op("clamp_max.Tensor", _bound("minimum", "max"), _TWO)
_op("hardtanh.default", _clamp, _with(_ONE, min_val=-1, max_val=1))
_op("relu6.default", _relu6)
_op("gelu.default", _gelu, _ONE + _with(_ONE, approximate="tanh"))
_op("leaky_relu.default", _leaky_relu, _with(_ONE, negative_slope=0.1))
_op("elu.default", _elu, _ONE + _with(_ONE, alpha=2, scale=1.5))
_op("softplus.default", _softplus, _ONE + _with(_ONE, beta=2))
_op("threshold.default", _threshold, _with(_ONE, threshold=0.1, value=2))
_THREE = (Case(((2, 3), (2, 3), (3,)), {"value": 2}),)
_op("addcmul.default", _addcmul("mul"), _THREE)
_op("addcdiv.default", _addcmul("div"), (Case(((2, 3), (2, 3), ((3,), "positive"))),))
_op("lerp.Scalar", _lerp, _with(_TWO[:1], weight=0.3))
_op("lerp.Tensor", _lerp, (Case(((2, 3), (2, 3), (3,))),))
_op("logit.default", _logit, (Case((((2, 3), "unit_positive"),), {"eps": 1e-3}),))
_op("log_sigmoid.default", _log_sigmoid)
_op("round.decimals", _round_decimals, _with(_ONE, decimals=2) + _with(_ONE[:1], decimals=-1))
_op("signbit.default", _signbit, dtypes=_NUMBERS)
_op("copysign.Tensor", _copysign, _TWO)
_op("copysign.Scalar", _copysign, _with(_ONE, other=-2.0))
_op("hypot.default", _hypot, _TWO)
for _name, _opcode in (("fmax", "maximum"), ("fmin", "minimum")):
    _op(f"{_name}.default", _number_wins(_opcode), _TWO, _NUMBERS)
for _name in ("_to_copy.default", "to.dtype"):
    _op(_name, _convert, tuple(Case(((2, 3, 5),), {"dtype": d}) for d in _ALL))

register(
    OpDef(
        "npu.pointwise",
        lower=_lower_fused,
        reference=reference_pointwise,
        infer=infer_pointwise,
        scalar=lambda node, graph: ScalarProgram.from_attr(node.attrs["program"]),
    )
)
