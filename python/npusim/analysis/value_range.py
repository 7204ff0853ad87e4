"""Between which numbers all elements of a value lie, as far as intervals tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npusim.abi.scalar import ScalarOp
from npusim.abi.scalar_numpy import decode
from npusim.analysis.compose import scalar_program
from npusim.analysis.shapes import VIEWS
from npusim.analysis.uniform import uniform_value
from npusim.ir.graph import Node
from npusim.ir.rewriter import Rewriter
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import is_float

Range = tuple[float, float]
_DEEPEST = 16  # nodes after one another that are looked at
_LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38, "float32": 3.4028234663852886e38}
_INTEGERS = {"bool": (0.0, 1.0), "uint8": (0.0, 255.0), "int8": (-128.0, 127.0)}


def value_range(value: str, rewriter: Rewriter, depth: int = 0) -> Range | None:
    """Returns finite bounds of a value; None where they are not known, or where it may be NaN."""
    type = rewriter.types[value]
    number = uniform_value(value, rewriter)
    if number is not None:
        known = not is_symbolic(number) and np.isfinite(number)
        return (float(number), float(number)) if known else None
    constant = rewriter.constants.get(value)
    if constant is not None:
        array = decode(constant.data, constant.type)
        finite = array.size > 0 and bool(np.all(np.isfinite(array)))
        return (float(array.min()), float(array.max())) if finite else None
    node = rewriter.producer(value)
    found = None
    if node is not None and depth < _DEEPEST:
        found = _of_node(node, rewriter, depth + 1)
    found = found or _INTEGERS.get(type.dtype)
    limit = _LARGEST.get(type.dtype, 1e300 if is_float(type.dtype) else 2.0**53)
    return found if found is not None and max(-found[0], found[1]) <= limit else None


def _of_node(node: Node, rewriter: Rewriter, depth: int) -> Range | None:
    if node.op in VIEWS and node.inputs[0] is not None:
        return value_range(node.inputs[0], rewriter, depth)
    program = scalar_program(node, rewriter)
    if program is None:
        return None
    operands = [i for i in node.inputs if i is not None]
    ranges = [value_range(i, rewriter, depth) for i in operands]
    for op in program.body:
        ranges.append(_instruction(op, ranges))
    return ranges[-1]


def _instruction(op: ScalarOp, ranges: Sequence[Range | None]) -> Range | None:
    args: list[Range | None] = []
    for argument in op.args:
        if isinstance(argument, int):
            args.append(ranges[argument])
        else:
            number = argument[1]
            known = not is_symbolic(number) and np.isfinite(number)
            args.append((float(number), float(number)) if known else None)
    if op.op in _TRUTHS:
        return 0.0, 1.0
    if op.op == "where":
        args = args[1:]
    known_args = [a for a in args if a is not None]
    function = _FUNCTIONS.get(op.op)
    if function is None or len(known_args) < len(args):
        return None
    return function(*known_args)


def _product(a: Range, b: Range) -> Range:
    ends = [x * y for x in a for y in b]
    return min(ends), max(ends)


_TRUTHS = frozenset(
    (
        *("eq", "ne", "lt", "le", "gt", "ge", "to_bool", "isnan", "isinf"),
        *("logical_not", "logical_and", "logical_or", "logical_xor"),
    )
)
_FUNCTIONS: dict[str, Callable[..., Range]] = {
    **dict.fromkeys(("copy", "to_f", "to_d"), lambda x: x),
    "neg": lambda x: (-x[1], -x[0]),
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _product,
    "where": lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    "maximum": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "minimum": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
}
