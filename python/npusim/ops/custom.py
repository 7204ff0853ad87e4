"""Operators outside ATen: `npusim.register_op`.

Owns how a Python function becomes an operator that torch.export keeps whole, that the reference
can run, and that a backend may have a lowering for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from npusim.errors import Error, first_line
from npusim.ir.opdef import OpDef, find, register
from npusim.ir.types import TensorType

if TYPE_CHECKING:
    from npusim.ir.graph import Graph, Node
    from npusim.lowering.context import Lowering

Function = Callable[..., Any]


def register_op(
    name: str,
    reference: Function | None = None,
    *,
    infer: Function | None = None,
    lower: Callable[[Node, Lowering], None] | None = None,
    supports: Callable[[Node, Graph], str | None] | None = None,
) -> Any:
    """Registers an operator and returns a function that calls it; also a decorator.

    A model that calls the function keeps it as one node, `namespace.name.default`, whatever the
    function does inside:

        @npusim.register_op("mylib.swiglu")
        def swiglu(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
            return x * torch.nn.functional.silu(gate)

    Args:
        name: `namespace.name`; `aten`, `prims` and `npu` are taken.
        reference: computes the result from tensors, without changing them. Its annotations are
            the operator's schema (torch.library: Tensor, list[Tensor], int, float, bool, str,
            Optional, and lists of numbers). Not needed where PyTorch has the operator already.
        infer: gives the result's TensorType (or a tuple of them) from the arguments, with a
            TensorType for every tensor. By default `reference` runs on tensors without data.
        lower: emits the commands of a node; without it, the node has no native kernel.
        supports: says why a node cannot be lowered, or None.

    Raises:
        Error: the name is malformed or taken, or the annotations make no schema.
    """
    namespace, _, short = name.partition(".")
    if not (namespace.isidentifier() and short.isidentifier()):
        raise Error(f"{name!r} is not an operator's name.", hint="Write namespace.name.")
    if namespace in ("aten", "prims", "npu"):
        raise Error(f"The namespace {namespace} is taken.", hint="Use one of your own.")
    if find(f"{name}.default") is not None:
        raise Error(f"The operator {name} is registered already.")

    def add(function: Function) -> Function:
        call = _define(namespace, short, function, infer)
        register(OpDef(f"{name}.default", lower=lower, supports=supports))
        return call

    existing = _existing(namespace, short)
    if reference is None and existing is not None:
        register(OpDef(f"{name}.default", lower=lower, supports=supports))
        return existing
    return add if reference is None else add(reference)


def _existing(namespace: str, short: str) -> Any:
    """Returns PyTorch's operator of that name, or None."""
    import torch

    return getattr(getattr(torch.ops, namespace), short, None)


def _define(namespace: str, short: str, function: Function, infer: Function | None) -> Function:
    """Makes a PyTorch operator of a function; returns what calls it."""
    import torch

    if _existing(namespace, short) is not None:
        raise Error(f"PyTorch has an operator {namespace}.{short} already.")
    compute = _without_aliases(function)
    try:
        schema = torch.library.infer_schema(function, mutates_args=())
        operator = torch.library.custom_op(
            f"{namespace}::{short}", compute, mutates_args=(), schema=schema
        )
    except (ValueError, RuntimeError) as error:
        raise Error(
            f"{namespace}.{short}: {first_line(error)}",
            hint="Annotate every parameter and the result, as torch.library.custom_op asks.",
        ) from None
    operator.register_fake(compute if infer is None else _fake(infer))

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return operator(*args, **kwargs)

    return call


def _without_aliases(function: Function) -> Function:
    """Copies results that share memory with an argument, which PyTorch forbids an operator."""
    import torch

    def storage(value: Any) -> Any:
        return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None

    @functools.wraps(function)
    def compute(*args: Any, **kwargs: Any) -> Any:
        used = {storage(value) for value in _flat((args, tuple(kwargs.values())))}
        result = function(*args, **kwargs)
        own = []
        for value in _flat(result):
            own.append(value.clone() if storage(value) in used else value)
            used.add(storage(own[-1]))
        return (
            tuple(own) if isinstance(result, tuple) else own if isinstance(result, list) else own[0]
        )

    return compute


def _flat(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in _flat(item)]
    return [value]


def _fake(infer: Function) -> Function:
    """Returns the fake implementation that makes tensors of the types `infer` gives."""
    import torch

    def type_of(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype).removeprefix("torch.")
            return TensorType(dtype, tuple(int(d) for d in value.shape))
        return [type_of(item) for item in value] if isinstance(value, (list, tuple)) else value

    def tensor(type: TensorType, device: Any) -> Any:
        return torch.empty(type.shape, dtype=getattr(torch, type.dtype), device=device)

    def fake(*args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        device = next((v.device for v in given if isinstance(v, torch.Tensor)), "cpu")
        types = infer(*map(type_of, args), **{k: type_of(v) for k, v in kwargs.items()})
        if isinstance(types, TensorType):
            return tensor(types, device)
        return tuple(tensor(type, device) for type in types)

    return fake
