"""Recognises activations that were written out: gelu by erf or tanh, silu, hardswish and others.

There are many ways to write each, so nothing is matched by its shape. The pointwise nodes between a
result and the one tensor it depends on are proved to be the same function of a real number as the
activation (analysis/closed_form.py), its constants being those of the definition as the dtype
stores them. Then both are computed where floats are no real numbers: NaN, infinities, zeros of
both signs, every power of two and the neighbours of every constant give the same, up to rounding.
Only a formula that doubles x on its way, as exporters write gelu, may overflow before the op does.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from npusim.abi import scalar_numpy
from npusim.abi.scalar import ScalarOp, ScalarProgram
from npusim.analysis.closed_form import same_function
from npusim.analysis.compose import scalar_program
from npusim.analysis.cone import Cone
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import is_float
from npusim.ops.edge_values import float_edges
from npusim.targets.target_config import TargetConfig

# Scalar opcode -> the op that stands for it and its attributes.
ACTIVATIONS: dict[str, tuple[str, dict[str, Attr]]] = {
    "relu": ("aten.relu.default", {}),
    "gelu": ("aten.gelu.default", {"approximate": "none"}),
    "gelu_tanh": ("aten.gelu.default", {"approximate": "tanh"}),
    "silu": ("aten.silu.default", {}),
    "hardswish": ("aten.hardswish.default", {}),
    "hardsigmoid": ("aten.hardsigmoid.default", {}),
    "softplus": ("aten.softplus.default", {"beta": 1, "threshold": 20}),
    "mish": ("aten.mish.default", {}),
}
# What the last instruction of a written-out activation can be.
_LAST = frozenset(("mul", "div", "where", "maximum", "clamp", "log", "log1p"))
_MOST_NODES = 12  # of a written-out activation
_MOST_MISSES = 5  # no activation is a longer chain of functions of one value
_FEW = np.array([-1.3, 0.7, 2.9])  # that tell almost everything apart, so that few are proved
_ULPS = 8  # of the result or of x, the larger, by which equal formulas may differ in rounding


def recognize_activations(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with written-out activations replaced by the ops they are."""
    return rewrite(graph, _visit)


def _visit(node: Node, rewriter: Rewriter) -> Answer:
    program = scalar_program(node, rewriter)
    if program is None or program.body[-1].op not in _LAST or not is_float(node.type.dtype):
        return None
    cone = Cone(node, program, rewriter)
    misses = 0
    for _ in range(_MOST_NODES):
        operands = cone.operands()
        if len(operands) == 1 and rewriter.types[operands[0]] == node.type:
            name = _activation(cone.program()[0])
            if name is not None:
                op, attrs = ACTIVATIONS[name]
                return become(node, op, operands, attrs) if node.op != op else None
            misses += 1
        if misses == _MOST_MISSES:
            return None
        value = cone.candidate(set())
        if value is None:
            return None
        cone.take(value)
    return None


def _activation(program: ScalarProgram) -> str | None:
    """Returns the opcode of the activation a program of one float input computes, or None."""
    if program.inputs not in (("f",), ("d",)):
        return None
    close = _close(program)
    for name, same in zip(ACTIVATIONS, close, strict=True):
        plain = ScalarProgram(program.inputs, (ScalarOp(name, (0,), program.inputs[0]),))
        if same and (turns := same_function(program, plain)) is not None:
            return name if _same_at_edges(program, plain, turns) else None
    return None


def _close(program: ScalarProgram) -> list[bool]:
    """Tells for each activation whether it is worth a proof: the same at a few points, about."""
    values = scalar_numpy.run(_in_float64(program), [_FEW])
    return [bool(np.allclose(values, row, rtol=1e-4, atol=0)) for row in _expected()]


@cache
def _expected() -> list[scalar_numpy.Array]:
    """Returns the activations, in the order of `ACTIVATIONS`, at the few points."""
    plain = (ScalarProgram(("d",), (ScalarOp(name, (0,), "d"),)) for name in ACTIVATIONS)
    return [scalar_numpy.run(program, [_FEW]) for program in plain]


def _same_at_edges(program: ScalarProgram, plain: ScalarProgram, turns: list[float]) -> bool:
    """Tells whether programs that are proved to be one function agree where floats are no reals.

    NaN, infinities and the sign of zero have to be the same; anything else up to rounding. Operands
    in the last two binades may overflow to the infinity of their sign.
    """
    dtype = "float64" if program.inputs == ("d",) else "float32"
    numbers = {float(a[1]) for op in program.body for a in op.args if isinstance(a, tuple)}
    limits = np.finfo(dtype)
    powers = np.arange(limits.minexp - limits.nmant, limits.maxexp)
    sizes = np.concatenate([m * np.ldexp(1.0, powers) for m in (1.0, 1.5)])
    edges = float_edges(dtype, [*numbers, *turns])
    x = np.concatenate((edges, sizes, -sizes)).astype(dtype)
    a, b = (scalar_numpy.run(p, [x]) for p in (program, plain))
    with np.errstate(all="ignore"):
        size = np.maximum(np.abs(x), np.abs(b))
        rounded = np.abs(a - b) <= _ULPS * (limits.eps * size + limits.smallest_subnormal)
        doubled = (np.abs(x) >= limits.max / 4) & (a == np.inf * np.sign(b)) & np.isfinite(b)
    same = (a == b) | (np.isnan(a) & np.isnan(b)) | rounded | doubled
    zeros = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
    return bool(np.all(same & ~zeros))


def _in_float64(program: ScalarProgram) -> ScalarProgram:
    """Returns a float program with every float32 instruction in float64, free of rounding."""
    body = tuple(
        ScalarOp("to_d" if op.op == "to_f" else op.op, op.args, "d" if op.cls == "f" else op.cls)
        for op in program.body
    )
    return ScalarProgram(("d",), body)
