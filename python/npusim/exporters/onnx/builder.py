"""The ONNX graph under construction: what translations of operators are written with.

Owns names, nodes and shared constants. A `Tensor` knows its dtype and shape, so that a translation
converts and broadcasts where ONNX does not do so itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from onnx import NodeProto, TensorProto, helper

from npusim.errors import Error
from npusim.exporters.onnx.sizes import Sizes
from npusim.ir.graph import Graph, Node
from npusim.ir.rewrite import Names
from npusim.ir.symbolic import MAX_SIZE, is_symbolic, lower, maximum, minimum
from npusim.ir.types import TensorType
from npusim.ops.fused import broadcast_shapes

# dtype -> ONNX's element type
KINDS: dict[str, int] = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float64": TensorProto.DOUBLE,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
    "int16": TensorProto.INT16,
    "int8": TensorProto.INT8,
    "uint8": TensorProto.UINT8,
    "bool": TensorProto.BOOL,
}


class NoForm(Error):
    """A node has no form in ONNX; the message says why."""


@dataclass(frozen=True)
class Tensor:
    """A value of the ONNX graph."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        """Tells whether the elements are floating-point numbers."""
        return "float" in self.dtype


def kind_of(dtype: str) -> int:
    """Returns ONNX's element type of a dtype; NoForm for one that models do not hold."""
    if dtype not in KINDS:
        raise NoForm(f"dtype {dtype}")
    return KINDS[dtype]


def bytes_of(data: torch.Tensor) -> memoryview:
    """Returns a tensor's elements, row-major: its own memory where they lie so there."""
    if not data.numel():
        return memoryview(b"")
    flat = data.detach().reshape(-1)
    if flat.stride(0) != 1:  # of one element the stride may be anything
        flat = torch.empty_like(flat, memory_format=torch.contiguous_format).copy_(flat)
    return memoryview(flat.view(torch.uint8).numpy())


def tensor_proto(name: str, data: torch.Tensor) -> TensorProto:
    """Returns a tensor with its elements inside."""
    dtype = str(data.dtype).removeprefix("torch.")
    raw = bytes_of(data).tobytes()
    return TensorProto(name=name, data_type=kind_of(dtype), dims=list(data.shape), raw_data=raw)


class Builder:
    """Collects nodes and constants."""

    def __init__(self, names: Names, opset: int) -> None:
        self.names, self.opset = names, opset
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self.sizes = Sizes(self)
        self._held: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}

    def constant(self, data: torch.Tensor, name: str = "") -> Tensor:
        """Returns a constant; those with equal elements and no name are one."""
        proto = tensor_proto("", data)
        dtype, shape = str(data.dtype).removeprefix("torch."), tuple(data.shape)
        known = (dtype, shape, proto.raw_data)
        if not name and known in self._held:
            return self._held[known]
        result = Tensor(name or self.names.fresh(_written(data)), dtype, shape)
        proto.name = result.name
        self.constants.append(proto)
        if not name:
            self._held[known] = result
        return result

    def add(
        self,
        op: str,
        inputs: Sequence[Tensor | None],
        results: Sequence[tuple[str, tuple[int, ...]]],
        base: str,
        attrs: dict[str, Any],
    ) -> list[Tensor]:
        """Adds a node and returns its results, of given dtypes and shapes."""
        operands = ["" if t is None else t.name for t in inputs]
        return self.operate(op, operands, results, base, attrs)

    def operate(
        self,
        op: str,
        operands: list[str],
        results: Sequence[tuple[str, tuple[int, ...]]],
        base: str,
        attrs: dict[str, Any],
    ) -> list[Tensor]:
        """Adds a node over named operands."""
        outputs = [Tensor(self.names.fresh(f"{base}.{op}"), d, s) for d, s in results]
        while operands and not operands[-1]:
            operands.pop()
        self.nodes.append(helper.make_node(op, operands, [o.name for o in outputs], **attrs))
        return outputs


def _written(data: torch.Tensor) -> str:
    """Returns a constant's name: its value where that is short."""
    text = ",".join(
        f"{v:g}" if isinstance(v, float) else str(v) for v in data.flatten()[:5].tolist()
    )
    return text if 0 < data.numel() < 5 else "constant"


def _inside(at: int, size: int) -> int:
    """Returns an end of a slice as a position, 0 to the size; those beyond any size are common."""
    if at >= MAX_SIZE:
        return size
    if -MAX_SIZE < at < 0:
        at += size
    return minimum(maximum(at, 0), size)


@dataclass(frozen=True)
class Call:
    """A node of the graph, as its translation sees it.

    Attributes:
        builder: the ONNX graph under construction.
        graph: the graph that the node is of.
        node: the node.
    """

    builder: Builder
    graph: Graph
    node: Node

    @property
    def type(self) -> TensorType:
        """The type of the node's first result."""
        return self.node.outputs[0].type

    @property
    def opset(self) -> int:
        """The version of ONNX's operators that the model will name."""
        return self.builder.opset

    def attr(self, name: str, default: Any = None) -> Any:
        """Returns an attribute of the node."""
        return self.node.attrs.get(name, default)

    def dim(self, rank: int, name: str = "dim") -> int:
        """Returns a dimension, counted from the front."""
        return int(self.attr(name)) % max(rank, 1)

    def wanted(self, index: int) -> bool:
        """Tells whether anybody reads a result of the node."""
        name = self.node.outputs[index].name
        return bool(self.graph.users[name]) or name in self.graph.output_values

    # ---- nodes ----

    def op(
        self,
        op: str,
        *inputs: Tensor | None,
        dtype: str | None = None,
        shape: Sequence[int] | None = None,
        **attrs: Any,
    ) -> Tensor:
        """Adds a node with one result: by default of the first operand's dtype and shape."""
        first = next((t for t in inputs if t is not None), None)
        dtype = dtype or (first.dtype if first else self.type.dtype)
        size = first.shape if shape is None and first else tuple(shape or ())
        return self.ops(op, *inputs, results=[(dtype, size)], **attrs)[0]

    def ops(
        self,
        op: str,
        *inputs: Tensor | None,
        results: Sequence[tuple[str, tuple[int, ...]]],
        **attrs: Any,
    ) -> list[Tensor]:
        """Adds a node with several results, of given dtypes and shapes."""
        given = {name: value for name, value in attrs.items() if value is not None}
        return self.builder.add(op, inputs, results, self.node.outputs[0].name, given)

    def broadcast(self, op: str, *inputs: Tensor, dtype: str | None = None, **attrs: Any) -> Tensor:
        """Adds a pointwise node over operands that broadcast."""
        shape = broadcast_shapes(*(t.shape for t in inputs))
        return self.op(op, *inputs, dtype=dtype, shape=shape, **attrs)

    # ---- constants ----

    def const(self, value: Any, dtype: str) -> Tensor:
        """Returns a constant from numbers; a size that calls choose is computed."""
        if is_symbolic(value):
            if isinstance(value, (tuple, list)):
                return self.cast(self.builder.sizes.vector(value), dtype)
            size = self.builder.sizes.one(value)
            return self.cast(self.op("Squeeze", size, self.ints([0]), shape=()), dtype)
        wide = torch.as_tensor(value, dtype=None if dtype != "float64" else torch.float64)
        return self.builder.constant(wide.to(getattr(torch, dtype)))

    def ints(self, values: Sequence[int]) -> Tensor:
        """Returns a list of int64."""
        if is_symbolic(tuple(values)):
            return self.builder.sizes.vector(values)
        return self.const(np.asarray(list(values), np.int64), "int64")

    def range(self, count: int) -> Tensor:
        """Returns 0, 1, … count - 1 in int64."""
        if not is_symbolic(count):
            return self.ints(range(count))
        bounds = [self.const(bound, "int64") for bound in (0, count, 1)]
        return self.op("Range", *bounds, shape=(count,))

    # ---- what nearly every family needs ----

    def cast(self, x: Tensor, dtype: str) -> Tensor:
        """Returns a tensor in another dtype, converted as PyTorch does: integers wrap."""
        if x.dtype == dtype:
            return x
        if x.is_float and dtype in ("int32", "int16", "int8", "uint8"):
            x = self.op("Cast", x, dtype="int64", to=KINDS["int64"])
        return self.op("Cast", x, dtype=dtype, to=kind_of(dtype))

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Returns the elements in another shape."""
        shape = tuple(shape)
        if shape == x.shape:
            return x
        zero = 1 if any(lower(size) == 0 for size in shape) else None
        return self.op("Reshape", x, self.ints(shape), shape=shape, allowzero=zero)

    def expand(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Returns the tensor broadcast to a shape."""
        shape = tuple(shape)
        return x if shape == x.shape else self.op("Expand", x, self.ints(shape), shape=shape)

    def transpose(self, x: Tensor, order: Sequence[int]) -> Tensor:
        """Returns the tensor with its dimensions in another order."""
        order = [d % max(x.rank, 1) for d in order]
        if order == sorted(order):
            return x
        return self.op("Transpose", x, shape=[x.shape[d] for d in order], perm=order)

    def slice(self, x: Tensor, dim: int, start: int, end: int, step: int = 1) -> Tensor:
        """Returns a range of one dimension; `start` and `end` as Python has them."""
        if is_symbolic((x.shape[dim], start, end)):
            return self._slice_of_sizes(x, dim, start, end, step)
        picked = range(x.shape[dim])[start:end:step]
        if len(picked) == x.shape[dim] and step == 1:
            return x
        shape = (*x.shape[:dim], len(picked), *x.shape[dim + 1 :])
        bounds = [self.ints([value]) for value in (picked.start, picked.stop, dim, step)]
        return self.op("Slice", x, *bounds, shape=shape)

    def _slice_of_sizes(self, x: Tensor, dim: int, start: int, end: int, step: int) -> Tensor:
        size = x.shape[dim]
        start, end = (_inside(value, size) for value in (start, end))
        count = -(-maximum(end - start, 0) // step)
        if count == size and step == 1:
            return x
        shape = (*x.shape[:dim], count, *x.shape[dim + 1 :])
        bounds = [self.ints([value]) for value in (start, end, dim, step)]
        return self.op("Slice", x, *bounds, shape=shape)

    def concat(self, tensors: Sequence[Tensor], dim: int) -> Tensor:
        """Returns tensors one after another along a dimension."""
        if len(tensors) == 1:
            return tensors[0]
        shape = list(tensors[0].shape)
        shape[dim] = sum(t.shape[dim] for t in tensors)
        return self.op("Concat", *tensors, shape=shape, axis=dim)

    def reduce(
        self, op: str, x: Tensor, dims: Sequence[int], keepdim: bool, dtype: str | None = None
    ) -> Tensor:
        """Adds a Reduce… node over dimensions; none at all means every one."""
        axes = sorted({d % max(x.rank, 1) for d in dims}) if x.rank else []
        axes = axes or list(range(x.rank))
        if not x.rank:
            return self.op(op, x, dtype=dtype, keepdims=0)
        kept = [1 if d in axes else n for d, n in enumerate(x.shape)]
        shape = kept if keepdim else [n for d, n in enumerate(x.shape) if d not in axes]
        given = self.ints(axes)
        return self.op(op, x, given, dtype=dtype, shape=shape, keepdims=int(keepdim))
