"""A graph as a module of PyTorch, whose forward calls PyTorch's operators one after the other.

As `torch.export`'s programs become modules: what eager mode then takes is PyTorch's operators and
their calls, and `torch.compile` takes it as any other module. Imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from npusim.errors import Error
from npusim.ir.graph import Graph, Node
from npusim.ir.opdef import find
from npusim.ops import schema
from npusim.ops.reference import constant_tensor

# Of the operators that return views, those whose results do not depend on strides.
_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        *("alias", "detach", "diagonal", "expand", "permute", "select", "slice", "split"),
        *("split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze"),
    )
)


def torch_module(graph: Graph, weights: Mapping[str, Tensor]) -> fx.GraphModule:
    """Returns a module that computes a graph: takes its inputs, returns a tuple of its outputs.

    Args:
        graph: without states and symbolic sizes.
        weights: by their names in the graph, on the CPU.

    Raises:
        Error: the graph has states or symbolic sizes.
        UnsupportedOpError: PyTorch lacks an operator.
    """
    if graph.states or graph.symbols:
        raise Error(f"{graph.name} has states or symbolic sizes: PyTorch has no module for it.")
    traced = fx.Graph()
    tracer = fx.proxy.GraphAppendingTracer(traced)
    stored = {w.name: weights[w.name] for w in graph.weights}
    stored |= {c.name: constant_tensor(c) for c in graph.constants}
    values = {
        v.name: fx.Proxy(traced.placeholder(f"input_{i}"), tracer)
        for i, v in enumerate(graph.inputs)
    }
    root = torch.nn.Module()

    def kept(tensor: Tensor) -> fx.Proxy:
        name = f"stored_{len(root._buffers)}"
        root.register_buffer(name, tensor)
        return fx.Proxy(traced.get_attr(name), tracer)

    values |= {name: kept(tensor) for name, tensor in stored.items()}
    for node in graph.nodes:
        operands = [None if i is None else values[i] for i in node.inputs]
        for value, result in zip(node.outputs, _results(tracer, node, operands), strict=True):
            # What an operator made from nothing is a tensor already.
            values[value.name] = kept(result) if isinstance(result, Tensor) else result
    traced.output(tuple(values[output.value].node for output in graph.outputs))
    return fx.GraphModule(root, traced)


def _results(
    tracer: fx.proxy.GraphAppendingTracer, node: Node, operands: Sequence[Any]
) -> list[Any]:
    definition = find(node.op)
    if definition is not None and definition.reference is not None:
        given = tuple(None if o is None else o.node for o in operands)
        call = tracer.graph.call_function(definition.reference, given, dict(node.attrs))
        return _leaves(fx.Proxy(call, tracer), len(node.outputs), nested=len(node.outputs) > 1)
    operator = schema.resolve(node.op)
    views = any(r.alias_info is not None for r in operator._schema.returns)
    if views and node.op.rpartition(".")[0] not in _VIEWS:
        operands = [None if o is None else o.contiguous() for o in operands]
    returned = [str(r.type) for r in operator._schema.returns]
    result = schema.call(operator, operands, node.attrs, torch.device("cpu"))
    return _leaves(result, len(node.outputs), nested=len(returned) > 1 or "List" in returned[0])


def _leaves(result: Any, count: int, *, nested: bool) -> list[Any]:
    return [result[i] for i in range(count)] if nested else [result]
