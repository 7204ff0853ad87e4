"""Graphs of pointwise nodes and of the formulas that passes know, about numbers at the edges.

Owns the ways to add a node; `drafts.py` has what makes the result legal, and knows which values
rounding has not touched: what jumps reads only those, and so does what enlarges an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import numpy as np

from npusim.ir.graph import Attr, Constant, Graph
from npusim.ir.types import TensorType
from tests.properties.drafts import Draft, kind_of
from tests.properties.edge_matmuls import (
    attention,
    convolution,
    linear,
    matmul,
    written_attention,
)

_FLOATS = ("float32",) * 4 + ("float64", "float16", "bfloat16")
_DTYPES = (*_FLOATS, "int64", "int32", "int8", "uint8", "bool")
_NUMBERS = (0.0, -0.0, 1.0, -1.0, 1e-9, -1e-12, 1e-38, 1e-45, 0.5, 3.0, 6.0, 20.0, 3e38, math.inf)
_EXACT = ("neg", "abs", "relu", "sign", "floor", "ceil", "round", "trunc", "isnan", "isinf")
_ROUNDING = (
    *("sqrt", "reciprocal", "exp", "log", "log1p", "expm1", "tanh", "sigmoid", "erf", "gelu"),
    *("silu", "hardsigmoid", "softplus", "mish", "rsqrt", "exp2", "log_sigmoid"),
)
_SHAPE = (4, 12)


def edge_graph(random: Random) -> Graph:
    """Returns a legal graph of one to eight ways' nodes over tensors of one shape."""
    while True:
        draft = Draft(random)
        draft.fresh(random.choice(_DTYPES if random.random() < 0.4 else _FLOATS), _SHAPE)
        for _ in range(random.randint(1, 8)):
            random.choice(WAYS)(draft)
        if draft.nodes:
            return draft.graph()


def _number(draft: Draft) -> float:
    """Returns an edge number, or a neighbour in the last place of float32 of one."""
    number = draft.random.choice(_NUMBERS)
    if draft.random.random() < 0.2 and math.isfinite(number):
        towards = np.float32(draft.random.choice((-np.inf, np.inf)))
        return float(np.nextafter(np.float32(number), towards))
    return number


def _pick(draft: Draft, kinds: str = "f", *, exact: bool = False) -> tuple[str, TensorType] | None:
    """Returns a value; of 16 bits only what rounding has not touched, as chains round it once."""
    found = draft.pick(kinds, exact=exact)
    if found is not None and found[1].dtype in ("float16", "bfloat16"):
        return found if found[0] in draft.exact else None
    return found


def _exact_op(draft: Draft) -> None:
    found = _pick(draft, "fi", exact=True)
    if found is not None:
        draft.add(f"aten.{draft.random.choice(_EXACT)}.default", [found[0]], {}, exact=True)


def _rounding_op(draft: Draft) -> None:
    found = _pick(draft, exact=True)
    if found is not None:
        name = draft.random.choice(_ROUNDING)
        draft.add(f"aten.{name}.default", [found[0]], {}, exact=False)


def _bound(draft: Draft) -> None:
    """A clamp, by numbers or by tensors that hold one."""
    found = _pick(draft, "fi")
    if found is None:
        return
    low, high = _number(draft), _number(draft)
    if kind_of(found[1].dtype) == "i":
        low, high = draft.random.randint(-3, 0), draft.random.randint(0, 99)
        if found[1].dtype == "uint8":
            low = 0
    way = draft.random.randrange(4)
    if way == 0:
        draft.add("aten.clamp.default", [found[0]], {"min": low, "max": high}, exact=True)
    elif way == 1:
        draft.add("aten.clamp.default", [found[0]], {"min": low}, exact=True)
    elif way == 2:
        draft.add("aten.clamp_max.default", [found[0]], {"max": high}, exact=True)
    elif kind_of(found[1].dtype) == "f":
        name = draft.random.choice(("maximum", "minimum"))
        other = _constant(draft, low, found[1].dtype)
        draft.add(f"aten.{name}.default", [found[0], other], {}, exact=True)


def _constant(draft: Draft, number: float, dtype: str) -> str:
    stored = {"bfloat16": "float32"}.get(dtype, dtype)
    with np.errstate(all="ignore"):
        data = np.array(number, stored).tobytes()
    name = f"c{len(draft.constants)}"
    data = data[2:] if dtype == "bfloat16" else data
    draft.constants.append(Constant(name, TensorType(dtype, ()), data))
    return name


def _choice(draft: Draft) -> None:
    """Of a value and a number, by comparing the value with a number."""
    found = _pick(draft, exact=True)
    if found is None:
        return
    name = draft.random.choice(("lt", "le", "gt", "ge", "eq", "ne"))
    at = _number(draft) if draft.random.random() < 0.5 else 0
    if not draft.add(f"aten.{name}.Scalar", [found[0]], {"other": at}, exact=True):
        return
    flag = draft.nodes[-1].outputs[0].name
    other: dict[str, Attr] = {"other": 0.0 if draft.random.random() < 0.7 else _number(draft)}
    way = draft.random.randrange(3)
    if way == 0:
        draft.add("aten.where.ScalarOther", [flag, found[0]], other, exact=True)
    elif way == 1:
        draft.add("aten.where.ScalarSelf", [flag, found[0]], {"self": other["other"]}, exact=True)
    else:
        value = {"value": other["other"]}
        draft.add("aten.masked_fill.Scalar", [found[0], flag], value, exact=True)


def _arithmetic(draft: Draft) -> None:
    """With a number that may be neutral."""
    found = _pick(draft)
    if found is not None:
        name = draft.random.choice(("add", "sub", "mul", "div"))
        number = (
            _number(draft) if found[0] in draft.exact else draft.random.choice((0.0, -0.0, 1.0))
        )
        if name == "div" and number == 0:
            number = 1.0
        attrs: dict[str, Attr] = {"other": number}
        attrs |= {"alpha": 1} if name in ("add", "sub") else {}
        neutral = (name in ("add", "sub") and number == 0) or (name[:3] in "muldiv" and number == 1)
        draft.add(f"aten.{name}.Scalar", [found[0]], attrs, exact=neutral)


def _integers(draft: Draft) -> None:
    found = draft.pick("i")
    if found is not None:
        name = draft.random.choice(("add", "sub", "mul"))
        attrs: dict[str, Attr] = {"other": draft.random.choice((0, 1, -1, 3, 127))}
        attrs |= {"alpha": 1} if name != "mul" else {}
        if found[1].dtype != "uint8" or attrs["other"] != -1:
            draft.add(f"aten.{name}.Scalar", [found[0]], attrs, exact=True)


def _cast(draft: Draft) -> None:
    """To another dtype of floats, and often back."""
    found = _pick(draft, "fib", exact=True)
    if found is None:
        return
    dtype = draft.random.choice(_FLOATS)
    if draft.add("aten._to_copy.default", [found[0]], {"dtype": dtype}, exact=True):
        back = draft.nodes[-1].outputs[0].name
        if draft.random.random() < 0.7:
            draft.add("aten._to_copy.default", [back], {"dtype": "float32"}, exact=True)


def _activation(draft: Draft) -> None:
    """One that is written out, its numbers those of the definition or beside them."""
    found = _pick(draft, exact=True)
    if found is None or found[1].dtype not in ("float32", "float64"):
        return
    x = found[0]

    def call(name: str, *operands: str, **attrs: Attr) -> str:
        attrs |= {"alpha": 1} if name.startswith("add") else {}
        assert draft.add(f"aten.{name}", list(operands), attrs, exact=False)
        return draft.nodes[-1].outputs[0].name

    def near(number: float) -> float:
        return number * draft.random.choice((1.0, 1.0, 1.0, 1 + 2.0**-22, 1.001))

    way = draft.random.randrange(4)
    if way == 0:
        y = call("erf.default", call("mul.Scalar", x, other=near(math.sqrt(0.5))))
        y = call("add.Scalar", y, other=1)
        call("mul.Tensor", call("mul.Scalar", x, other=0.5), y)
    elif way == 1:
        y = call("add.Scalar", call("exp.default", call("neg.default", x)), other=near(1.0))
        call("div.Tensor", x, y)
    elif way == 2:
        y = call("clamp.default", call("add.Scalar", x, other=3), min=0, max=near(6.0))
        call("div.Scalar", call("mul.Tensor", x, y), other=6)
    else:
        y = call("log1p.default", call("exp.default", x))
        call("mul.Tensor", x, call("tanh.default", y))


def _rows(draft: Draft) -> None:
    """A softmax, its logarithm or a norm of each row, with and without what keeps it in range."""
    found = _pick(draft, exact=True)
    if found is None or found[1].dtype not in ("float32", "float64") or found[1].rank != 2:
        return
    x, shape = found[0], {"dim": (-1,), "keepdim": True}

    def call(name: str, *operands: str, **attrs: Attr) -> str:
        assert draft.add(f"aten.{name}", list(operands), attrs, exact=False)
        return draft.nodes[-1].outputs[0].name

    way = draft.random.randrange(4)
    if way < 2:
        if way == 0:
            x = call("sub.Tensor", x, call("amax.default", x, **shape), alpha=1)
        e = call("exp.default", x)
        call("div.Tensor", e, call("sum.dim_IntList", e, **shape))
    elif way == 2:
        call("sub.Tensor", x, call("logsumexp.default", x, **shape), alpha=1)
    else:
        x = call("clamp.default", x, min=-1e15, max=1e15)  # beyond, sums of squares overflow
        square = call("mean.dim", call("mul.Tensor", x, x), **shape)
        eps = draft.random.choice((1e-6, 1e-12, 1.0))
        root = call("rsqrt.default", call("add.Scalar", square, other=eps, alpha=1))
        call("mul.Tensor", x, root)


Way = Callable[[Draft], None]
WAYS: tuple[Way, ...] = (
    *(_exact_op, _exact_op, _rounding_op, _bound, _bound, _choice, _choice, _arithmetic),
    *(_arithmetic, _integers, _cast, _cast, _activation, _rows, linear, matmul, convolution),
    *(attention, written_attention),
)
