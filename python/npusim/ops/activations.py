"""Formulas of activation functions, and of what PyTorch defines like them.

Owns how each reads as scalar operations on one element; `ops/formulas.py` has all others.
"""

from __future__ import annotations

from npusim.abi.scalar import Arg, ScalarBuilder
from npusim.ir.graph import Node
from npusim.ops.formulas import checked, class_of, number


def relu6(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """min(max(x, 0), 6)."""
    cls = class_of(node)
    b.op("clamp", cls, b.to(args[0], cls), b.to(("const", 0), cls), b.to(("const", 6), cls))


def gelu(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """x times the normal distribution's CDF at x, or its tanh form."""
    opcode = "gelu_tanh" if node.attrs.get("approximate") == "tanh" else "gelu"
    b.op(opcode, class_of(node), args[0])


def leaky_relu(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """x above zero, negative_slope * x elsewhere."""
    cls, x = class_of(node), args[0]
    scaled = b.op("mul", cls, x, b.to(number(node.attrs["negative_slope"]), cls))
    b.op("where", cls, b.op("gt", cls, x, b.to(("const", 0), cls)), x, scaled)


def elu(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """scale * x above zero, scale * alpha * (exp(input_scale * x) - 1) elsewhere."""
    cls, x = class_of(node), args[0]
    alpha, scale, input_scale = (
        float(node.attrs.get(k, 1.0))  # type: ignore[arg-type]
        for k in ("alpha", "scale", "input_scale")
    )
    inner = b.op("mul", cls, x, ("const", input_scale)) if input_scale != 1 else x
    low = b.op("mul", cls, b.op("expm1", cls, inner), ("const", alpha * scale))
    high = b.op("mul", cls, x, ("const", scale)) if scale != 1 else x
    b.op("where", cls, b.op("gt", cls, x, ("const", 0.0)), high, low)


def softplus(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """log(1 + exp(beta * x)) / beta, and x itself where beta * x exceeds the threshold."""
    cls, x = class_of(node), args[0]
    beta = float(node.attrs.get("beta", 1.0))  # type: ignore[arg-type]
    threshold = float(node.attrs.get("threshold", 20.0))  # type: ignore[arg-type]
    scaled = b.op("mul", cls, x, ("const", beta)) if beta != 1 else x
    soft = b.op("log1p", cls, b.op("exp", cls, scaled))
    soft = b.op("mul", cls, soft, ("const", 1 / beta)) if beta != 1 else soft
    b.op("where", cls, b.op("gt", cls, scaled, ("const", threshold)), x, soft)


def threshold(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """x above the threshold, a value elsewhere (NaN stays NaN).

    16-bit floats are compared with the threshold as it is, unrounded.
    """
    cls, x = class_of(node), args[0]
    value = checked(b, number(node.attrs["value"]), node)
    limit: Arg = number(node.attrs["threshold"])
    limit = b.to(limit, cls) if cls == "f" else checked(b, limit, node)
    b.op("where", cls, b.op("le", cls, x, limit), value, x)


def logit(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """log(x / (1 - x)), clamped to [eps, 1 - eps] when eps is given."""
    cls, x = class_of(node), args[0]
    eps = node.attrs.get("eps")
    if eps is not None:
        assert isinstance(eps, (int, float))
        x = b.op("clamp", cls, b.to(x, cls), ("const", float(eps)), ("const", 1.0 - float(eps)))
    x = b.to(x, cls)
    b.op("log", cls, b.op("div", cls, x, b.op("sub", cls, ("const", 1.0), x)))


def log_sigmoid(b: ScalarBuilder, args: list[Arg], node: Node) -> None:
    """min(x, 0) - log1p(exp(-|x|))."""
    cls, x = class_of(node), args[0]
    tail = b.op("log1p", cls, b.op("exp", cls, b.op("neg", cls, b.op("abs", cls, x))))
    b.op("sub", cls, b.op("minimum", cls, x, ("const", 0.0)), tail)
