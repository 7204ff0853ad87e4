"""Moves uint8 to int8 where a machine's array multiplies int8 alone.

A byte q of 0 … 255 with the zero point z stands for what q - 128 with z - 128 stands for, so that
products have the same sums, and what they make saturates at the same values:

* products of bytes take their operands, residuals and zero points so, and leave bytes so;
* views, concatenations and maxima over windows of such bytes go along;
* whatever else makes or reads uint8 (an input, a rounding of floats, an output) keeps it: what it
  makes is shifted once, and what it reads is shifted back, exactly.

Everything is bit by bit what it was, but for a residual that float32 adds: the term that its zero
point is in is another number then, so a sum that lies within float32's precision of the middle
between two bytes may become the other one. Machines that add by integers have no such term.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from npusim.abi.requantization import FLOAT32
from npusim.abi.scalar_numpy import decode
from npusim.analysis.int8_operands import PRODUCTS, RESIDUAL, TERMS, W_ZERO, X_ZERO, Y_ZERO
from npusim.analysis.quantized_values import array_of
from npusim.analysis.shapes import VIEWS
from npusim.ir.graph import Graph, Node
from npusim.ir.rewrite import drop_dead
from npusim.ir.rewriter import Answer, Rewriter, become
from npusim.ir.types import TensorType
from npusim.targets.target_config import TargetConfig

_SHIFT = 128
_MOVERS = VIEWS | {"aten.max_pool2d.default", "aten.cat.default"}
_COPY = "aten._to_copy.default"
_WIDE = ("float32", "int32", "int64")  # what holds every byte, shifted and not


def sign_bytes(graph: Graph, target: TargetConfig) -> Graph:
    """Returns the graph with products of int8 in place of those of uint8."""
    if target.npu is None or not target.multiplies_bytes:
        return graph
    if "uint8" in target.npu.multiplied:
        return graph
    changed = Rewriter(graph).run(_Signing().visit)
    return graph if changed == graph else drop_dead(changed)


class _Signing:
    """One graph being rewritten.

    Attributes:
        signed: of values of uint8, those of int8 that are 128 less.
    """

    def __init__(self) -> None:
        self.signed: dict[str, str] = {}

    def visit(self, node: Node, rewriter: Rewriter) -> Answer:
        if len(node.outputs) != 1:
            return None
        before = dict(self.signed)
        try:
            return self._answer(node, rewriter)
        except BaseException:  # what was emitted for it goes
            self.signed = before
            raise

    def _answer(self, node: Node, rewriter: Rewriter) -> Answer:
        if node.op in PRODUCTS:
            return self._product(node, rewriter)
        source = node.inputs[0] if node.inputs else None
        if node.op == _COPY and source in self.signed and node.type.dtype in _WIDE:
            return _widened(node, self.signed[source], rewriter)
        if node.op not in _MOVERS or node.type.dtype != "uint8":
            return None
        if not all(value in self.signed for value in node.inputs):
            return None
        return self._unsigned(node, self._moved(node, rewriter), rewriter)

    def _product(self, node: Node, rewriter: Rewriter) -> Answer:
        operands = [None if i is None else rewriter.types[i].dtype for i in node.inputs]
        moves = {at: operands[at] == "uint8" for at in (0, 1, RESIDUAL)}
        makes = node.type.dtype == "uint8"
        if not makes and not any(moves.values()):
            return None
        inputs = list(node.inputs)
        if inputs[TERMS] is not None:
            inputs[TERMS] = _terms(node, moves[RESIDUAL], makes, rewriter)
            if inputs[TERMS] is None:
                return None
        for at in (at for at, does in moves.items() if does):
            inputs[at] = self._of(inputs[at] or "", node, rewriter)
        for at, does in ((X_ZERO, moves[0]), (W_ZERO, moves[1]), (Y_ZERO, makes)):
            zero = inputs[at]
            if does:
                known = _minus_128(rewriter) if zero is None else self._of(zero, node, rewriter)
                inputs[at] = known
        if not makes:
            return become(node, node.op, inputs, node.attrs)
        type = replace(node.type, dtype="int8")
        attrs = {**node.attrs, "dtype": "int8"}
        return self._unsigned(
            node, rewriter.emit(node.op, inputs, type, attrs, like=node), rewriter
        )

    def _of(self, value: str, like: Node, rewriter: Rewriter) -> str:
        """Returns a value of uint8 as int8, 128 less."""
        if value not in self.signed:
            node = rewriter.producer(value)
            if node is not None and node.op in _MOVERS and len(node.outputs) == 1:
                self.signed[value] = self._moved(node, rewriter)
            else:
                self.signed[value] = _shifted(value, like, rewriter)
        return self.signed[value]

    def _moved(self, node: Node, rewriter: Rewriter) -> str:
        inputs = [None if i is None else self._of(i, node, rewriter) for i in node.inputs]
        type = replace(node.type, dtype="int8")
        return rewriter.emit(node.op, inputs, type, node.attrs, like=node)

    def _unsigned(self, node: Node, signed: str, rewriter: Rewriter) -> Node:
        """Returns a node that makes the bytes that were: for whoever reads uint8, if anybody."""
        self.signed[node.output.name] = signed
        wide = _added(signed, _SHIFT, "int32", node, rewriter)
        return become(node, _COPY, (wide,), {"dtype": "uint8"})


def _added(value: str, shift: int, dtype: str, like: Node, rewriter: Rewriter) -> str:
    type = replace(rewriter.types[value], dtype=dtype)
    wide = rewriter.emit(_COPY, (value,), type, {"dtype": dtype}, like=like)
    attrs = {"other": shift, "alpha": 1}
    return rewriter.emit("aten.add.Scalar", (wide,), type, attrs, like=like)


def _widened(node: Node, signed: str, rewriter: Rewriter) -> str:
    """Returns the bytes that were in a wider dtype."""
    return _added(signed, _SHIFT, node.type.dtype, node, rewriter)


def _shifted(value: str, like: Node, rewriter: Rewriter) -> str:
    constant = rewriter.constants.get(value)
    if constant is not None:
        array = decode(constant.data, constant.type).astype(np.int64) - _SHIFT
        return _constant(value, array, constant.type.shape, rewriter)
    type = replace(rewriter.types[value], dtype="int8")
    wide = _added(value, -_SHIFT, "int32", like, rewriter)
    return rewriter.emit(_COPY, (wide,), type, {"dtype": "int8"}, like=like)


def _minus_128(rewriter: Rewriter) -> str:
    return _constant("zero_point", np.array([-_SHIFT]), (1,), rewriter)


def _constant(name: str, array: np.ndarray, shape: Sequence[int], rewriter: Rewriter) -> str:
    data = array.astype(np.int8).tobytes()
    return rewriter.constant(name, TensorType("int8", tuple(shape)), data)


def _terms(node: Node, residual: bool, result: bool, rewriter: Rewriter) -> str | None:
    """Returns the terms of a sum whose residual or result moves; None for terms not known yet."""
    name = node.inputs[TERMS]
    terms = None if name is None else array_of(name, rewriter)
    if terms is None:
        return None
    low, high, own, other, rest = (float(t) for t in terms.reshape(-1))
    if node.attrs.get("requantize", FLOAT32) != FLOAT32:  # where the last is the residual's zero
        rest -= _SHIFT if residual else 0
    else:  # the result's zero point, less the residual's times its factor
        rest += (_SHIFT * other if residual else 0) - (_SHIFT if result else 0)
    data = np.asarray((low, high, own, other, rest), "<f4").tobytes()
    return rewriter.constant("terms", TensorType("float32", (5,)), data)
