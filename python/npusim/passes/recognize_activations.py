"""Recognises activations that were written out: gelu by erf or tanh, silu, hardswish and others.

There are many ways to write each, so nothing is matched by its shape: the pointwise nodes between
a result and the one tensor it depends on are evaluated, and compared with the known activations at
sample points. Agreement to six digits over the whole range is the definition of being the same.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from npusim.analysis.compose import scalar_program
from npusim.analysis.cone import Cone
from npusim.ir.graph import Attr, Graph, Node
from npusim.ir.rewriter import Answer, Rewriter, become, rewrite
from npusim.ir.types import is_float
from npusim.ops import scalar_numpy
from npusim.ops.scalar import ScalarOp, ScalarProgram
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
_FEW = 3  # points that tell almost everything else apart
_NEAR = np.concatenate(([-1.3, 0.7, 2.9], np.linspace(-12, 12, 97), [-90.0, -30.0, 30.0, 90.0]))
# Beyond them many ways to write an activation overflow; those that do not must agree here too,
# which tells a clamp at some large number from a relu.
_FAR = np.array([s * x for x in (300.0, 1e3, 1e5, 1e10, 1e30) for s in (1.0, -1.0)])
_POINTS = np.concatenate((_NEAR, _FAR))
_AROUND = (0.5, 0.99, 1.01)  # times a number of the formula: a threshold lies between two of them


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
    wide = _in_float64(program)
    few = scalar_numpy.run(wide, [_POINTS[:_FEW]])
    close = _agree(few, _expected()[:, :_FEW])
    if not close.any():
        return None
    close = _agree(scalar_numpy.run(wide, [_POINTS]), _expected())
    name = next((n for n, same in zip(ACTIVATIONS, close, strict=True) if same), None)
    return name if name is not None and _same_between(wide, name) else None


def _same_between(program: ScalarProgram, name: str) -> bool:
    """Tells whether a program is an activation also around the numbers that it compares with."""
    numbers = {float(a[1]) for op in program.body for a in op.args if isinstance(a, tuple)}
    around = [s * n * f for n in numbers if np.isfinite(n) for f in _AROUND for s in (1.0, -1.0)]
    if not around:
        return True
    points = np.array(around)
    near = np.abs(points) <= _NEAR.max()
    values = scalar_numpy.run(program, [points[near]])
    expected = scalar_numpy.run(_plain(name), [points[near]])
    return bool(np.all(np.abs(values - expected) <= 1e-9 + 1e-6 * np.abs(expected)))


def _plain(name: str) -> ScalarProgram:
    return ScalarProgram(("d",), (ScalarOp(name, (0,), "d"),))


def _agree(values: scalar_numpy.Array, expected: scalar_numpy.Array) -> scalar_numpy.Array:
    """Tells for each row of `expected` whether the values are the same to six digits."""
    same = np.abs(values - expected) <= 1e-9 + 1e-6 * np.abs(expected)
    far = np.arange(same.shape[1]) >= _NEAR.size
    return np.all(same | (far & ~np.isfinite(values)), axis=1)


@cache
def _expected() -> scalar_numpy.Array:
    """Returns the activations, in the order of `ACTIVATIONS`, at the sample points."""
    return np.stack([scalar_numpy.run(_plain(n), [_POINTS]) for n in ACTIVATIONS])


def _in_float64(program: ScalarProgram) -> ScalarProgram:
    """Returns a float program with every float32 instruction in float64, free of rounding."""
    body = tuple(
        ScalarOp("to_d" if op.op == "to_f" else op.op, op.args, "d" if op.cls == "f" else op.cls)
        for op in program.body
    )
    return ScalarProgram(("d",), body)
