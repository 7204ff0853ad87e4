"""Tensors and the graph under construction: what translations of operators are written with.

Owns how a call of an ATen operator becomes nodes: with a lowering, the node itself; without, what
PyTorch's decompositions make of it. Types come from running operators on tensors without data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from onnx import TensorProto

from npusim.errors import ExportError
from npusim.frontends import MAX_CONSTANT_BYTES
from npusim.frontends.onnx.kinds import Array, carried, carrier, kind_of_dtype, numpy_dtype
from npusim.frontends.onnx.sizes import has_sizes
from npusim.frontends.onnx.symbolic_types import SymbolicTypes
from npusim.ir.graph import Attr, Constant, Node, Source, Value, Weight
from npusim.ir.opdef import find
from npusim.ir.rewrite import Names
from npusim.ir.symbolic import is_symbolic, minimum
from npusim.ir.types import TensorType
from npusim.ops import schema
from npusim.ops.reference import infer_types


class NeedsValues(ExportError):
    """The model's structure depends on values of inputs.

    Attributes:
        inputs: the graph inputs whose values are needed; empty when values of weights are.
    """

    def __init__(self, message: str, inputs: frozenset[str], hint: str = "") -> None:
        give = (
            "Give these values when importing: values={name: array} (`--value name=file.npy`)."
            if inputs
            else ""
        )
        super().__init__(message, hint=f"{hint} {give}".strip())
        self.message, self.inputs = message, inputs

    def with_hint(self, hint: str) -> NeedsValues:
        """Returns the error with something that can be done first of all."""
        return NeedsValues(self.message, self.inputs, hint)


@dataclass(eq=False)
class Tensor:
    """A tensor of the model: a value of the graph, or one known while importing, or both.

    Sizes that calls choose stand in shapes as symbolic sizes do in a graph.

    Attributes:
        kind: ONNX's element type; `type.dtype` carries it.
        data: the elements in ONNX's own type, when they are known.
        sizes: the elements as Python objects, when some are symbolic sizes.
        key: the initialiser's name, of a tensor that is one as it stands.
        needs: the graph inputs whose values it was computed from.
        name: the value's name in the graph, once the graph has it.
    """

    graph: Builder
    kind: int
    type: TensorType
    data: Array | None = None
    key: str | None = None
    needs: frozenset[str] = frozenset()
    name: str | None = None
    sizes: Array | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.type.shape)

    @property
    def dtype(self) -> str:
        """The dtype that carries the elements."""
        return self.type.dtype

    def op(self, name: str, *args: Any, kind: int | None = None, **attrs: Any) -> Tensor:
        """Returns the operator's only result, of this tensor and further arguments."""
        return self.graph.op(name, self, *args, kind=kind, **attrs)

    def _binary(self, name: str, other: Tensor | float) -> Tensor:
        overload = "Tensor" if isinstance(other, Tensor) else "Scalar"
        return self.op(f"{name}.{overload}", other)

    def __add__(self, other: Tensor | float) -> Tensor:
        return self._binary("add", other)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self._binary("sub", other)

    def __rsub__(self, other: float) -> Tensor:
        return self._binary("rsub", other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self._binary("mul", other)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self._binary("div", other)

    def __lt__(self, other: Tensor | float) -> Tensor:
        return self._binary("lt", other)

    def __gt__(self, other: Tensor | float) -> Tensor:
        return self._binary("gt", other)

    def equals(self, other: Tensor | float) -> Tensor:
        """Returns where both are equal."""
        return self._binary("eq", other)

    def to(self, dtype: str, kind: int | None = None) -> Tensor:
        """Returns the elements in another dtype of graphs."""
        if dtype == self.dtype:
            return self if kind in (None, self.kind) else self.graph.retyped(self, kind or 0)
        return self.op("_to_copy.default", dtype=getattr(torch, dtype), kind=kind)

    def view(self, shape: Sequence[int]) -> Tensor:
        """Returns the elements in another shape."""
        return self if tuple(shape) == self.shape else self.op("view.default", list(shape))

    def permute(self, order: Sequence[int]) -> Tensor:
        """Returns the tensor with its dimensions in another order."""
        return (
            self
            if list(order) == list(range(self.rank))
            else self.op("permute.default", list(order))
        )

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> Tensor:
        """Returns a range of one dimension."""
        end = minimum(end, self.shape[dim])
        if (start, step) == (0, 1) and end == self.shape[dim]:
            return self
        return self.op("slice.Tensor", dim, start, end, step)

    def expand(self, shape: Sequence[int]) -> Tensor:
        """Returns the tensor broadcast to a shape."""
        return self if tuple(shape) == self.shape else self.op("expand.default", list(shape))

    def values(self, what: str) -> Array:
        """Returns the elements, which must be known.

        Raises:
            NeedsValues: they are known only once the model runs.
        """
        if self.sizes is not None:
            raise ExportError(f"{what} is {self.sizes.tolist()}, which calls choose.")
        if self.data is None:
            named = ", ".join(sorted(self.needs))
            raise NeedsValues(
                f"{what} is computed while the model runs"
                + (f", from {named}" if named else "")
                + "; a graph's shapes are fixed before.",
                self.needs,
            )
        return self.data

    def ints(self, what: str) -> list[int]:
        """Returns the elements, which must be known, as a list of ints or symbolic sizes."""
        if self.sizes is not None:
            return list(self.sizes.reshape(-1))
        return [int(v) for v in self.values(what).reshape(-1)]


@dataclass
class Builder:
    """A graph under construction."""

    names: Names = field(default_factory=Names)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    weights: dict[str, Weight] = field(default_factory=dict)
    arrays: dict[str, Array] = field(default_factory=dict)
    constants: dict[tuple[str, tuple[int, ...], bytes], Constant] = field(default_factory=dict)
    source: Source | None = None
    label: str = ""
    types: SymbolicTypes | None = None  # of a model with symbolic sizes

    # ---- leaves ----

    def add_input(self, name: str, kind: int, shape: tuple[int, ...]) -> Tensor:
        """Adds an input that the caller supplies."""
        type = TensorType(carrier(kind, f"input {name}"), shape)
        value = Value(self.names.fresh(name), type)
        self.inputs.append(value)
        return Tensor(self, kind, type, needs=frozenset((name,)), name=value.name)

    def known(
        self,
        data: Array,
        *,
        kind: int | None = None,
        key: str | None = None,
        needs: frozenset[str] = frozenset(),
    ) -> Tensor:
        """Returns a tensor whose elements are known; the graph gets it when a node reads it."""
        from onnx import helper

        array = np.asarray(data)
        kind = helper.np_dtype_to_tensor_dtype(array.dtype) if kind is None else kind
        type = TensorType(carrier(kind, f"the tensor {key or self.label}"), array.shape)
        return Tensor(self, kind, type, array, key, needs)

    def known_sizes(self, values: Array, kind: int = TensorProto.INT64) -> Tensor:
        """Returns a tensor of numbers some of which may be symbolic sizes."""
        if not has_sizes(values):
            return self.known(values.astype(numpy_dtype(kind)), kind=kind)
        type = TensorType(carrier(kind, self.label), values.shape)
        return Tensor(self, kind, type, sizes=values)

    def line(self, count: int) -> Tensor:
        """Returns 0 … count - 1 as int64."""
        if not is_symbolic(count):
            return self.known(np.arange(count, dtype=np.int64))
        return self.op("arange.start_step", 0, count, 1, dtype=torch.int64)

    def table(self, data: Any, like: Tensor | str) -> Tensor:
        """Returns numbers as a tensor of another's dtype."""
        dtype = like if isinstance(like, str) else like.dtype
        array = np.asarray(data)
        if dtype == "bfloat16":
            return self.known(array.astype(np.float32)).to("bfloat16")
        return self.known(array.astype(dtype))

    def full(self, shape: Sequence[int], value: float, dtype: str) -> Tensor:
        """Returns a tensor of one number."""
        kwargs = {"dtype": getattr(torch, dtype)}
        return self.op("full.default", list(shape), value, **kwargs)

    def retyped(self, x: Tensor, kind: int) -> Tensor:
        """Returns the same elements, called another kind that has the same carrier."""
        return Tensor(self, kind, x.type, None, None, x.needs, self.name_of(x))

    def name_of(self, x: Tensor) -> str:
        """Returns the value's name in the graph; a known tensor becomes a weight or constant."""
        if x.name is None and x.sizes is not None:
            x.name = self._of_sizes(x)
        if x.name is None:
            assert x.data is not None
            array = np.ascontiguousarray(carried(x.data)).reshape(x.shape)
            large = array.nbytes > MAX_CONSTANT_BYTES
            x.name = self._stored(x, array) if x.key or large else self._constant(array, x.type)
        return x.name

    def _of_sizes(self, x: Tensor) -> str:
        """Adds nodes that give a tensor of symbolic sizes."""
        assert x.sizes is not None
        each = [self.full((1,), size, x.dtype) for size in x.sizes.reshape(-1)]
        return self.name_of(self.op("cat.default", each, 0).view(x.shape))

    def _stored(self, x: Tensor, array: Array) -> str:
        key = x.key or self.names.fresh(f"{self.label or 'tensor'}.value")
        if key not in self.weights:
            self.weights[key] = Weight(self.names.fresh(key), key, x.type)
            self.arrays[key] = array
        return self.weights[key].name

    def _constant(self, array: Array, type: TensorType) -> str:
        key = (type.dtype, type.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = Constant(self.names.fresh("constant"), type, key[2])
        return self.constants[key].name

    # ---- calls ----

    def op(self, name: str, *args: Any, kind: int | None = None, **kwargs: Any) -> Tensor:
        """Returns the only result of an ATen operator ("add.Tensor")."""
        (result,) = self.ops(name, *args, kind=kind, **kwargs)
        return result

    def ops(self, name: str, *args: Any, kind: int | None = None, **kwargs: Any) -> list[Tensor]:
        """Returns the results of an ATen operator.

        Args:
            kind: what the results are called; by default what the first operand of a result's
                dtype is, and else what the dtype itself is.
        """
        target = schema.resolve(f"aten.{name}")
        inputs: list[Tensor | None] = []
        attrs: dict[str, Attr] = {}
        for argument, value in schema.bind(target, args, kwargs):
            if argument.kind == "tensor":
                number = isinstance(value, (bool, int, float))
                inputs.append(self.table(value, _like(args)) if number else value)
            elif argument.kind == "tensors":
                inputs.extend(value or ())
                attrs[argument.name] = None if value is None else len(value)
            elif argument.kind == "attr":
                attrs[argument.name] = schema.to_attr(value, argument)
        if find(str(target)) is None:
            results = self._decomposed(target, args, kwargs)
            if results is not None:
                return results
        return self.add(str(target), inputs, attrs, kind)

    def add(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        attrs: Mapping[str, Attr],
        kind: int | None = None,
    ) -> list[Tensor]:
        """Adds a node and returns its results."""
        names = tuple(None if t is None else self.name_of(t) for t in inputs)
        key = tuple(sorted(attrs.items()))
        types = self._infer(op, tuple(None if t is None else t.type for t in inputs), key)
        base = self.names.fresh(self.label or op.split(".")[1])
        several = len(types) > 1
        values = tuple(
            Value(self.names.fresh(f"{base}.{i}") if several else base, type)
            for i, type in enumerate(types)
        )
        self.nodes.append(Node(base, op, names, values, attrs, self.source))
        needs = frozenset().union(*(t.needs for t in inputs if t is not None))
        return [
            Tensor(self, _kind(v.type, kind, inputs), v.type, None, None, needs, v.name)
            for v in values
        ]

    def _infer(
        self,
        op: str,
        inputs: tuple[TensorType | None, ...],
        attrs: tuple[tuple[str, Attr], ...],
    ) -> tuple[TensorType, ...]:
        shapes = [t.shape for t in inputs if t is not None]
        if self.types is None or not is_symbolic((shapes, [value for _, value in attrs])):
            return _infer(op, inputs, attrs, repr(attrs))
        return self.types.infer(op, inputs, dict(attrs))

    def _decomposed(self, target: Any, args: Any, kwargs: Any) -> list[Tensor] | None:
        """Returns the results of what an operator without a lowering is made of, or None."""
        function = _decompositions().get(target)
        if function is None:
            return None
        from npusim.frontends.onnx.decomposed import replay

        return replay(self, function, args, kwargs)


def _like(args: Sequence[Any]) -> str:
    """Returns the dtype of a number among tensors."""
    dtypes = [a.dtype for a in args if isinstance(a, Tensor)]
    return next((d for d in dtypes if d != "bool"), "float32")


def _kind(type: TensorType, kind: int | None, inputs: Sequence[Tensor | None]) -> int:
    if kind is not None:
        return kind
    kinds = (t.kind for t in inputs if t is not None and t.dtype == type.dtype)
    return next(kinds, kind_of_dtype(type.dtype))


@cache
def _infer(
    op: str,
    inputs: tuple[TensorType | None, ...],
    attrs: tuple[tuple[str, Attr], ...],
    spelled: str,  # tells 1, 1.0 and True apart, which are one key and promote differently
) -> tuple[TensorType, ...]:
    return infer_types(op, inputs, dict(attrs))


@cache
def _decompositions() -> Mapping[Any, Callable[..., Any]]:
    from npusim.frontends.decompositions import decompositions

    table = decompositions()  # fills itself when it is walked, not when it is asked
    return {target: table[target] for target in table}
