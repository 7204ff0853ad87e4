"""The graph under construction: ATen operators on values, with views that do nothing left out."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from npusim.frontends.tinygrad.known import Array
from npusim.frontends.tinygrad.terms import Term
from npusim.ir.graph import Attr, Constant, Node, Source, Value, Weight
from npusim.ir.rewrite import Names
from npusim.ir.types import TensorType
from npusim.ops import schema
from npusim.ops.reference import infer_types


class Builder:
    """A graph under construction."""

    def __init__(self) -> None:
        self.names = Names()
        self.inputs: list[Value] = []
        self.weights: list[Weight] = []
        self.states: list[Value] = []
        self.nodes: list[Node] = []
        self.constants: dict[tuple[TensorType, bytes], Constant] = {}
        self.source: Source | None = None
        self._views: dict[tuple[str, tuple[int, ...]], Value] = {}
        self._viewed: dict[str, Value] = {}  # a view's source
        self._permuted: dict[str, tuple[Value, tuple[int, ...]]] = {}

    # ---- leaves ----

    def leaf(self, term: Term) -> Value:
        """Returns the value of a leaf that is an input, a weight or a state."""
        leaf = term.arg
        value = Value(self.names.fresh(leaf.name), TensorType(term.dtype, term.shape))
        if leaf.kind == "input":
            self.inputs.append(value)
        elif leaf.kind == "state":
            self.states.append(value)
        else:
            self.weights.append(Weight(value.name, leaf.name, value.type, leaf.aliases))
        return value

    def constant(self, data: Array | float, dtype: str) -> Value:
        """Returns elements that are known, as a constant."""
        array = np.ascontiguousarray(data)
        tensor = torch.from_numpy(array.astype(_EXACT.get(dtype, dtype))).reshape(np.shape(data))
        tensor = tensor.to(getattr(torch, dtype))
        raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        key = TensorType(dtype, tuple(tensor.shape)), raw
        if key not in self.constants:
            self.constants[key] = Constant(self.names.fresh("constant"), *key)
        found = self.constants[key]
        return Value(found.name, found.type)

    # ---- operators ----

    def op(self, name: str, *args: Any, **kwargs: Any) -> Value:
        """Returns the only result of an ATen operator ("add.Tensor")."""
        target = schema.resolve(f"aten.{name}")
        inputs: list[Value | None] = []
        attrs: dict[str, Attr] = {}
        for argument, value in schema.bind(target, args, kwargs):
            if argument.kind == "tensor":
                inputs.append(value)
            elif argument.kind == "tensors":
                inputs.extend(value or ())
                attrs[argument.name] = None if value is None else len(value)
            elif argument.kind == "attr":
                attrs[argument.name] = schema.to_attr(value, argument)
        types = tuple(None if v is None else v.type for v in inputs)
        named = tuple(sorted(attrs.items()))
        (type,) = _infer(str(target), types, named, repr(named))
        base = self.names.fresh(name.split(".")[0].strip("_"))
        value = Value(base, type)
        names = tuple(None if v is None else v.name for v in inputs)
        self.nodes.append(Node(base, str(target), names, (value,), attrs, self.source))
        return value

    def view(self, x: Value, shape: Sequence[int]) -> Value:
        """Returns the elements in another shape."""
        x = self._viewed.get(x.name, x)
        if x.type.shape == tuple(shape):
            return x
        key = x.name, tuple(shape)
        if key not in self._views:
            result = self.op("reshape.default", x, list(shape))
            self._viewed[result.name] = x
            self._views[key] = result
        return self._views[key]

    def permute(self, x: Value, order: Sequence[int]) -> Value:
        """Returns the dimensions in another order."""
        order = tuple(order)
        if x.name in self._permuted:
            x, before = self._permuted[x.name]
            order = tuple(before[d] for d in order)
        if order == tuple(range(len(order))):
            return x
        result = self.op("permute.default", x, list(order))
        self._permuted[result.name] = x, order
        return result

    def ordered(self, x: Value, order: Sequence[int]) -> Value:
        """Returns the dimensions in another order, as a view where only those of size 1 move."""
        large = [d for d in order if x.type.shape[d] != 1]
        if large == sorted(large):
            return self.view(x, [x.type.shape[d] for d in order])
        return self.permute(x, order)

    def expand(self, x: Value, shape: Sequence[int]) -> Value:
        """Returns the value broadcast to a shape."""
        return x if x.type.shape == tuple(shape) else self.op("expand.default", x, list(shape))

    def cast(self, x: Value, dtype: str) -> Value:
        """Returns the elements in another dtype."""
        if x.type.dtype == dtype:
            return x
        return self.op("_to_copy.default", x, dtype=getattr(torch, dtype))


_EXACT = {"bfloat16": "float32", "float8_e4m3fn": "float32", "float8_e5m2": "float32"}


@cache
def _infer(
    op: str,
    inputs: tuple[TensorType | None, ...],
    attrs: tuple[tuple[str, Attr], ...],
    spelled: str,  # tells 1, 1.0 and True apart, which are one key and promote differently
) -> tuple[TensorType, ...]:
    return infer_types(op, inputs, dict(attrs))
