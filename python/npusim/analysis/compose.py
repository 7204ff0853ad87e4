"""Joins scalar formulas: several pointwise nodes as one ScalarProgram.

Owns what fusing means for values: an intermediate is converted as storing and loading it would
have converted it (truncation, wrapping of integers, bool), except that the rounding of float16
and bfloat16 intermediates is dropped, which is what fusing is allowed to gain. A conversion to
them that the model asks for is no such intermediate: `narrows` tells it. Equal instructions are
computed once, unused ones not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Protocol

import numpy as np

from npusim.abi import scalar_numpy
from npusim.abi.literals import literal_in
from npusim.abi.scalar import (
    OPCODES,
    ScalarOp,
    ScalarProgram,
    compute_class,
    from_float,
    result_class,
    wrapping,
)
from npusim.ir.graph import Node
from npusim.ir.opdef import find
from npusim.ir.symbolic import is_symbolic
from npusim.ir.types import TensorType

Literal = tuple[str, "float | int"]
Arg = int | Literal

# Integer results of these stay within what their operands' dtype can hold.
_CANNOT_OVERFLOW = frozenset(
    (
        *("load", "relu", "sign", "where", "clamp", "maximum", "minimum"),
        *("bitwise_and", "bitwise_or", "bitwise_xor"),
    )
)


# 16-bit floats are not rounded between the parts of a chain.
_WIDE = {"float16": "float32", "bfloat16": "float32"}


class Typed(Protocol):
    """Anything that knows the types of values: a Graph, or one being built."""

    @property
    def types(self) -> Mapping[str, TensorType]:
        """The type of every value by name."""


def scalar_program(node: Node, graph: Typed) -> ScalarProgram | None:
    """Returns a pointwise node as a program over its tensor inputs; None for any other node."""
    definition = find(node.op)
    if definition is None or definition.scalar is None or len(node.outputs) != 1:
        return None
    return definition.scalar(node, graph)  # type: ignore[arg-type]  # reads nothing but types


def narrows(node: Node, graph: Typed) -> bool:
    """Tells whether a node makes 16-bit floats of anything that holds more: its result is rounded
    for good, so what reads it must read it from memory."""
    floats_16_bit = ("float16", "bfloat16")
    if len(node.outputs) != 1 or node.type.dtype not in floats_16_bit:
        return False
    exact = (node.type.dtype, "bool", "int8", "uint8")
    return any(i is not None and graph.types[i].dtype not in exact for i in node.inputs)


class Composer:
    """Writes one program out of several.

    Operands are named while writing; `build` lists them in order of first use.
    """

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}
        self._classes: list[str] = []
        self._ops: list[tuple[str, tuple[Arg, ...], str]] = []
        self._index: dict[object, int] = {}

    def load(self, name: str, cls: str) -> int:
        """Returns the value of an operand loaded in a class."""
        if name not in self._slots:
            self._slots[name] = len(self._slots)
        return self._append("load", (("operand", self._slots[name]),), cls, cls)

    def op(self, name: str, args: tuple[Arg, ...], cls: str) -> Arg:
        """Returns the value of an instruction; an equal one is not repeated."""
        op = ScalarOp(name, args, cls)
        if all(isinstance(a, tuple) for a in args) and not is_symbolic(args):
            program = ScalarProgram(("i",), (op,))
            with suppress(ZeroDivisionError):  # left to the device, which reports it
                return ("const", scalar_numpy.run(program, [np.zeros(())], checked=True).item())
        return self._append(name, args, cls, result_class(op))

    def inline(self, program: ScalarProgram, args: list[Arg]) -> Arg:
        """Writes a program whose inputs are the given values; returns its result."""
        values: list[Arg] = list(args)
        for op in program.body:
            operands = tuple(values[a] if isinstance(a, int) else a for a in op.args)
            # A copy of a value of the same class is the value, except as a whole program.
            values.append(operands[0] if op.op == "copy" else self.op(op.op, operands, op.cls))
        return values[-1]

    def stored(self, value: Arg, dtype: str, operand_dtypes: Iterable[str]) -> Arg:
        """Returns a node's result as it is after a store to `dtype` and a load from it.

        Args:
            operand_dtypes: what the node read, which bounds an integer result.
        """
        wanted = compute_class(dtype)
        if isinstance(value, tuple):
            if is_symbolic(value):
                return value
            return ("const", literal_in(value[1], _WIDE.get(dtype, dtype)))
        if dtype == "bool":
            boolean = self._is_boolean(value)
            return value if boolean else self.op("to_bool", (value,), self._classes[value])
        if self._classes[value] != wanted:
            opcode = from_float(dtype) if wanted == "i" else f"to_{wanted}"
            converted = self.op(opcode, (value,), self._classes[value])
            assert isinstance(converted, int)
            value = converted
        if wanted != "i" or dtype == "int64" or self._is_boolean(value):
            return value
        bounded = all(d in (dtype, "bool") for d in operand_dtypes)
        if bounded and self._ops[value][0] in _CANNOT_OVERFLOW:
            return value
        return self._wrapped(value, dtype)

    def build(self, result: Arg, dtype: str) -> tuple[ScalarProgram, list[str]]:
        """Returns the program with the instructions the result needs, and its operands.

        Args:
            dtype: what the result is stored as.
        """
        if isinstance(result, tuple) or self._ops[result][0] == "load":
            cls = compute_class(dtype) if isinstance(result, tuple) else self._classes[result]
            result = self._append("copy", (result,), cls, cls)
        live = self._live(result)
        loads = [i for i in live if self._ops[i][0] == "load"]
        body = [i for i in live if self._ops[i][0] != "load"]
        number = {old: new for new, old in enumerate(loads + body)}
        slots = list(self._slots)
        names = [slots[self._ops[i][1][0][1]] for i in loads]  # type: ignore[index]
        ops = tuple(
            ScalarOp(op, tuple(number[a] if isinstance(a, int) else a for a in args), cls)
            for op, args, cls in (self._ops[i] for i in body)
        )
        return ScalarProgram(tuple(self._classes[i] for i in loads), ops), names

    def _live(self, result: int) -> list[int]:
        needed = {result}
        for index in range(result, -1, -1):
            if index in needed:
                needed.update(a for a in self._ops[index][1] if isinstance(a, int))
        return sorted(needed)

    def _append(self, name: str, args: tuple[Arg, ...], cls: str, result: str) -> int:
        key = (name, tuple(a if isinstance(a, int) else repr(a) for a in args), cls)
        if key not in self._index:
            self._index[key] = len(self._ops)
            self._ops.append((name, args, cls))
            self._classes.append(result)
        return self._index[key]

    def _is_boolean(self, value: int) -> bool:
        """Tells whether an integer-class value is 0 or 1 by construction."""
        name, args, _ = self._ops[value]
        if name == "load":
            return False
        if OPCODES[name][2] == "i" and name not in ("to_i", "to_i32"):
            return True
        operands = args[1:] if name == "where" else args
        return name in ("where", "bitwise_and", "bitwise_or", "bitwise_xor") and all(
            isinstance(a, int) and self._is_boolean(a) for a in operands
        )

    def _wrapped(self, value: int, dtype: str) -> Arg:
        """Returns an int64 value wrapped to a narrower integer dtype."""
        wrapped: Arg = value
        for opcode, number in wrapping(dtype):
            wrapped = self.op(opcode, (wrapped, ("const", number)), "i")
        return wrapped
