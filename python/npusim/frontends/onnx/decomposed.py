"""Operators without a lowering, in terms of others: PyTorch's decomposition, replayed as nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

from npusim.frontends.decompositions import decompositions, is_copy

if TYPE_CHECKING:
    from npusim.frontends.onnx.builder import Builder, Tensor


def replay(
    graph: Builder, function: Callable[..., Any], args: Any, kwargs: Any
) -> list[Tensor] | None:
    """Adds the nodes that a decomposition consists of and returns its results.

    None when the decomposition does not serve these arguments, or gives anything but tensors.
    """
    from npusim.frontends.onnx.builder import Tensor

    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def call(*tensors: torch.Tensor) -> Any:
        filled = list(leaves)
        for place, tensor in zip(places, tensors, strict=True):
            filled[place] = tensor
        given, named = pytree.tree_unflatten(filled, spec)
        return function(*given, **named)

    mode = FakeTensorMode()
    with mode:
        fakes = [
            torch.empty(leaves[i].shape, dtype=getattr(torch, leaves[i].dtype)) for i in places
        ]
    try:
        traced = make_fx(call, decomposition_table=decompositions(), tracing_mode="fake")(*fakes)
    except Exception:  # a trace runs any code of PyTorch; without it the operator stays whole
        return None
    values: dict[torch.fx.Node, Any] = {}
    operands = iter([leaves[i] for i in places])
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(operands)
        elif node.op == "output":
            results = pytree.tree_leaves(torch.fx.map_arg(node.args[0], values.__getitem__))
            return results if all(isinstance(r, Tensor) for r in results) else None
        elif node.op == "get_attr":
            data = getattr(traced, str(node.target))
            values[node] = graph.known(data.detach().numpy())
        elif not isinstance(node.target, torch._ops.OpOverload):
            source, index = node.args
            values[node] = values[source][index]
        elif is_copy(node):
            values[node] = values[node.args[0]]
        else:
            values[node] = _add(graph, node, values)
    return None


def _add(graph: Builder, node: torch.fx.Node, values: dict[torch.fx.Node, Any]) -> Any:
    args = torch.fx.map_arg(node.args, values.__getitem__)
    kwargs = torch.fx.map_arg(node.kwargs, values.__getitem__)
    name = str(node.target).removeprefix("aten.")
    results = graph.ops(_for_numbers(name, args), *args, **kwargs)
    return results[0] if isinstance(node.meta.get("val"), torch.Tensor) else tuple(results)


def _for_numbers(name: str, args: Any) -> str:
    """Returns the overload for numbers where a trace gives one for a tensor."""
    if name.endswith(".Tensor") and len(args) > 1 and isinstance(args[1], (bool, int, float)):
        scalar = name.removesuffix("Tensor") + "Scalar"
        packet, overload = scalar.split(".")
        if hasattr(getattr(torch.ops.aten, packet), overload):
            return scalar
    return name
