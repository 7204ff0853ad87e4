"""OpDef: everything npusim knows about one operator. Owns the registry, not the entries.

The families register their ops at import (`ops/conv.py`, `ops/pointwise.py` …); `npusim.ops`
imports them all. An op needs a lowering to run natively; the reference defaults to PyTorch's own
operator of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from npusim.ir.types import TensorType

if TYPE_CHECKING:
    from npusim.abi.scalar import ScalarProgram
    from npusim.ir.graph import Graph, Node
    from npusim.lowering.context import Lowering


@dataclass(frozen=True)
class Case:
    """One conformance case.

    Attributes:
        inputs: per tensor operand (None for an absent optional): a shape, or (shape, spec) where
            spec is "randn" (default), "rand", "positive", "bool", ("int", low, high), a dtype
            name for integers in a small range, or a dtype name with all the values.
        attrs: the non-tensor arguments that differ from the schema's defaults.
        id: what distinguishes the case, for the test's name.
    """

    inputs: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    id: str = ""

    def types(self, dtype: str) -> list[TensorType | None]:
        """Returns the types of the operands in a dtype of the op's."""
        return [None if entry is None else _type(entry, dtype) for entry in self.inputs]


def _type(entry: Any, dtype: str) -> TensorType:
    shape, spec = entry if entry and isinstance(entry[0], tuple) else (entry, "randn")
    if isinstance(spec, tuple):
        return TensorType("int64" if spec[0] == "int" else spec[0], shape)
    return TensorType("bool" if spec == "bool" else dtype, shape)


@dataclass(frozen=True)
class OpDef:
    """An operator.

    Attributes:
        name: full name with overload, `aten.softmax.int` or `npu.conv`.
        lower: emits commands for a node; None when no backend has kernels for it (the node falls
            back, or compile lists it as unsupported).
        supports: returns why this node cannot be lowered ("dtype complex64", "mode area"), or None
            when it can.
        scalar: for pointwise ops: the node as a ScalarProgram over its tensor inputs, computed in
            the class of the promoted dtype. Pointwise fusion and the lowering both use it.
        reference: computes the outputs from torch tensors, given the node's inputs and attrs; None
            means `torch.ops` has it under the same name. Required for `npu.*`.
        infer: gives the output types from the input types and attrs, for ops torch does not know.
        cases: conformance cases; each runs on every backend and applicable dtype.
        dtypes: dtypes the cases run in.
        tolerance: multiplies the suite's tolerance for the dtype (long sums, exp of large values).
    """

    name: str
    lower: Callable[[Node, Lowering], None] | None = None
    supports: Callable[[Node, Graph], str | None] | None = None
    scalar: Callable[[Node, Graph], ScalarProgram | None] | None = None
    reference: Callable[..., Any] | None = None
    infer: Callable[..., Any] | None = None
    cases: Sequence[Case] = ()
    dtypes: tuple[str, ...] = ("float32", "float16", "bfloat16")
    tolerance: float = 1.0


REGISTRY: dict[str, OpDef] = {}


def register(op: OpDef) -> OpDef:
    """Adds an OpDef; ValueError when the name is taken."""
    if op.name in REGISTRY:
        raise ValueError(f"op {op.name} is already registered")
    REGISTRY[op.name] = op
    return op


def find(name: str) -> OpDef | None:
    """Returns the OpDef of that name, or None."""
    import_module("npusim.ops")  # registers the families; by name, as `ir` depends on nothing

    return REGISTRY.get(name)
