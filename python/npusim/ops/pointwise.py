"""Pointwise operators: one scalar formula an element.

Owns the table of ATen's pointwise ops: the formula of each, its dtypes and conformance cases.
Chains of them are fused into `npu.pointwise` by `passes/fuse_pointwise.py`;
`lowering/pointwise_kernel.py` emits programs of either kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npusim.abi.scalar import ScalarProgram
from npusim.errors import at
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import Case, OpDef, register
from npusim.ir.types import DTYPES, is_float
from npusim.lowering.context import Lowering
from npusim.lowering.pointwise_kernel import emit_program
from npusim.ops import activations, formulas
from npusim.ops.fused import infer_pointwise, reference_pointwise


def _lower_fused(node: Node, low: Lowering) -> None:
    program = ScalarProgram.from_attr(node.attrs["program"])
    inputs = [v for v in low.inputs(node) if v is not None]
    emit_program(low, program, inputs, low.room(node.output, node.type))


def lower_scalar(node: Node, low: Lowering) -> None:
    """Lowers a pointwise op that no chain took in."""
    from npusim.ir.opdef import find

    definition = find(node.op)
    assert definition is not None and definition.scalar is not None
    program = definition.scalar(node, low.graph)
    assert program is not None, f"{node.op}{at(node.source)}"
    inputs = [v for v in low.inputs(node) if v is not None]
    emit_program(low, program, inputs, low.room(node.output, node.type))


def _rank_fits(node: Node, graph: Graph) -> str | None:
    if any(node_type.dtype not in DTYPES for node_type in (node.type,)):
        return f"dtype {node.type.dtype}"
    return None


def _float_result(node: Node, graph: Graph) -> str | None:
    return None if is_float(node.type.dtype) else f"dtype {node.type.dtype}"


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
    formula: formulas.Formula,
    cases: Sequence[Case] = _ONE,
    dtypes: tuple[str, ...] = _FLOATS,
    tolerance: float = 1.0,
    supports: Callable[[Node, Graph], str | None] = _rank_fits,
) -> None:
    register(
        OpDef(
            f"aten.{name}",
            lower=lower_scalar,
            supports=supports,
            scalar=formulas.scalar_builder(formula),
            cases=cases,
            dtypes=dtypes,
            tolerance=tolerance,
        )
    )


def _with(cases: Sequence[Case], **attrs: object) -> tuple[Case, ...]:
    return tuple(Case(c.inputs, {**c.attrs, **attrs}, c.id) for c in cases)


for _name in ("neg", "abs", "sign"):
    _op(f"{_name}.default", formulas.unary(_name), dtypes=_NUMBERS)
_op("relu.default", formulas.unary("relu"), dtypes=_NUMBERS)
for _name in (
    *("exp", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "asinh", "tanh", "sigmoid"),
    *("erf", "silu", "hardswish", "hardsigmoid", "mish", "exp2", "reciprocal"),
):
    _op(f"{_name}.default", formulas.unary(_name))
for _name in ("log", "log1p", "log2", "log10", "sqrt", "rsqrt"):
    _op(f"{_name}.default", formulas.unary(_name), _POSITIVE)
for _name in ("asin", "acos", "atanh"):
    _op(f"{_name}.default", formulas.unary(_name), (Case((((2, 3, 5), "unit"),)),))
_op("acosh.default", formulas.unary("acosh"), (Case((((2, 3, 5), "above_one"),)),))
for _name in ("floor", "ceil", "round", "trunc"):
    _op(f"{_name}.default", formulas.unary(_name), dtypes=_NUMBERS)
for _name in ("isnan", "isinf"):
    _op(f"{_name}.default", formulas.predicate(_name), dtypes=_NUMBERS)
_op("logical_not.default", formulas.predicate("logical_not"), dtypes=_ALL)
_op("bitwise_not.default", formulas.bitwise("bitwise_not"), dtypes=("int64", "int32", "bool"))

for _name, _sign in (("add", "add"), ("sub", "sub")):
    _op(f"{_name}.Tensor", formulas.add(_sign), _TWO + _with(_TWO[:1], alpha=2), _NUMBERS)
    _op(f"{_name}.Scalar", formulas.add(_sign), _with(_ONE, other=3), _NUMBERS)
_op("rsub.Scalar", formulas.rsub, _with(_ONE, other=3), _NUMBERS)
_op("rsub.Tensor", formulas.rsub, _TWO, _NUMBERS)
_op("mul.Tensor", formulas.binary("mul"), _TWO, _NUMBERS)
_op("mul.Scalar", formulas.binary("mul"), _with(_ONE, other=3), _NUMBERS)
for _name in ("div.Tensor", "div.Tensor_mode"):
    _mode: dict[str, object] = {"rounding_mode": "floor"} if "mode" in _name else {}
    _op(_name, formulas.div, _with(_TWO_NONZERO, **_mode))
for _name in ("div.Scalar", "div.Scalar_mode"):
    _mode = {"rounding_mode": "trunc"} if "mode" in _name else {}
    _op(_name, formulas.div, _with(_ONE, other=3.0, **_mode))
for _name in ("fmod", "remainder"):
    _op(f"{_name}.Tensor", formulas.binary(_name), _TWO_NONZERO + _TWO_INTS)
    _op(f"{_name}.Scalar", formulas.binary(_name), _with(_ONE, other=3), _NUMBERS)
_POSITIVE_INTS = (Case((((2, 3, 5), ("int", 1, 9)),)),)
_op(
    "remainder.Scalar_Tensor",
    formulas.binary("remainder"),
    _with(_POSITIVE, self=-7.5),
)
_op("floor_divide.default", formulas.binary("div_floor"), _TWO_NONZERO)
_op(
    "pow.Tensor_Scalar",
    formulas.power,
    sum((_with(_POSITIVE, exponent=e) for e in (2, 0.5, 1.7)), ()),
)
_op("pow.Tensor_Tensor", formulas.power, (Case((((2, 3), "positive"), (2, 3))),))
_op("pow.Scalar", formulas.power, _with(_ONE, self=2.0))
for _name in ("maximum", "minimum"):
    _op(f"{_name}.default", formulas.binary(_name), _TWO, _NUMBERS)
_op("atan2.default", formulas.binary("atan2"), _TWO)
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _op(f"{_name}.Tensor", formulas.compare(_name), _TWO, _ALL)
    _op(f"{_name}.Scalar", formulas.compare(_name), _with(_ONE, other=0), _NUMBERS)
for _name in ("and", "or", "xor"):
    _op(f"logical_{_name}.default", formulas.logical(f"logical_{_name}"), _TWO, _ALL)
    for _kind, _cases in (
        ("Tensor", _TWO),
        ("Scalar", _with(_ONE, other=1)),
        ("Scalar_Tensor", _with(_ONE, self=6)),
    ):
        _op(
            f"bitwise_{_name}.{_kind}",
            formulas.bitwise(f"bitwise_{_name}"),
            _cases,
            ("int64", "int32"),
        )
for _name in ("left", "right"):
    for _kind, _cases in (
        ("Tensor", _TWO_INTS),
        ("Tensor_Scalar", _with(_ONE, other=1)),
        ("Scalar_Tensor", _with(_POSITIVE_INTS, self=-5)),
    ):
        _full = f"bitwise_{_name}_shift.{_kind}"
        _op(_full, formulas.bitwise(f"shift_{_name}"), _cases, ("int64", "int32"))
_CONDITION = (Case((((2, 3, 5), "bool"), (2, 3, 5), (3, 1))),)
_op("where.self", formulas.where, _CONDITION, _NUMBERS)
_op("where.ScalarOther", formulas.where, (Case((((2, 3), "bool"), (2, 3)), {"other": 2.0}),))
_op("where.ScalarSelf", formulas.where, (Case((((2, 3), "bool"), (2, 3)), {"self": 2.0}),))
_MASK = (Case(((2, 3, 5), ((3, 5), "bool")), {"value": 2}),)
_op("masked_fill.Scalar", formulas.masked_fill, _MASK, _NUMBERS)
_op("masked_fill.Tensor", formulas.masked_fill, (Case(((2, 3), ((2, 3), "bool"), ())),), _NUMBERS)
_op("clamp.default", formulas.clamp, _with(_ONE, min=-1, max=1) + _with(_ONE, max=0), _NUMBERS)
_op("clamp.Tensor", formulas.clamp, (Case(((2, 3), (3,), (2, 1))),))
_op("clamp_min.default", formulas.bound("maximum", "min"), _with(_ONE, min=0), _NUMBERS)
_op("clamp_max.default", formulas.bound("minimum", "max"), _with(_ONE, max=0), _NUMBERS)
_op("clamp_min.Tensor", formulas.bound("maximum", "min"), _TWO)
_op("clamp_max.Tensor", formulas.bound("minimum", "max"), _TWO)
_op("hardtanh.default", formulas.clamp, _with(_ONE, min_val=-1, max_val=1))
_op("relu6.default", activations.relu6)
_op("gelu.default", activations.gelu, _ONE + _with(_ONE, approximate="tanh"))
_op("leaky_relu.default", activations.leaky_relu, _with(_ONE, negative_slope=0.1))
_op("elu.default", activations.elu, _ONE + _with(_ONE, alpha=2, scale=1.5))
_op("softplus.default", activations.softplus, _ONE + _with(_ONE, beta=2))
_op("threshold.default", activations.threshold, _with(_ONE, threshold=0.1, value=2))
_THREE = (Case(((2, 3), (2, 3), (3,)), {"value": 2}),)
_op("addcmul.default", formulas.addcmul("mul"), _THREE)
_op("addcdiv.default", formulas.addcmul("div"), (Case(((2, 3), (2, 3), ((3,), "positive"))),))
_op("lerp.Scalar", formulas.lerp, _with(_TWO[:1], weight=0.3))
_op("lerp.Tensor", formulas.lerp, (Case(((2, 3), (2, 3), (3,))),))
_op("logit.default", activations.logit, (Case((((2, 3), "unit_positive"),), {"eps": 1e-3}),))
_op("log_sigmoid.default", activations.log_sigmoid)
_op(
    "round.decimals",
    formulas.round_decimals,
    _with(_ONE, decimals=2) + _with(_ONE[:1], decimals=-1),
)
_op("signbit.default", formulas.signbit, dtypes=_NUMBERS)
_op("copysign.Tensor", formulas.copysign, _TWO)
_op("copysign.Scalar", formulas.copysign, _with(_ONE, other=-2.0))
_op("hypot.default", formulas.hypot, _TWO, supports=_float_result)
for _name, _opcode in (("fmax", "maximum"), ("fmin", "minimum")):
    _op(f"{_name}.default", formulas.number_wins(_opcode), _TWO, _NUMBERS)
for _name in ("_to_copy.default", "to.dtype"):
    _op(_name, formulas.convert, tuple(Case(((2, 3, 5),), {"dtype": d}) for d in _ALL))

register(
    OpDef(
        "npu.pointwise",
        lower=_lower_fused,
        reference=reference_pointwise,
        infer=infer_pointwise,
        scalar=lambda node, graph: ScalarProgram.from_attr(node.attrs["program"]),
    )
)
