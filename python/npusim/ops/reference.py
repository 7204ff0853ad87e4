"""Running a graph through PyTorch: the reference every compiled program is compared with.

An operator's schema, or the reference in its OpDef, is all that is needed; there is no table of
operators here. Also owns type inference, which is the same run on tensors without data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from npusim.errors import Error, GraphError, ShapeError, WeightMismatchError, at, first_line
from npusim.ir.graph import Attr, Constant, Graph, Node, Value, Weight
from npusim.ir.opdef import find
from npusim.ir.specialize import at_shapes
from npusim.ir.types import TensorType
from npusim.ops import schema

Tensors = Sequence["Tensor | None"]
Observer = Callable[[Node, Sequence[Tensor]], None]


def run_graph(
    graph: Graph,
    inputs: Sequence[Any] | Mapping[str, Any],
    weights: Mapping[str, Tensor] | None = None,
    *,
    observe: Observer | None = None,
) -> list[Tensor]:
    """Computes the graph's outputs with PyTorch, in order.

    Args:
        graph: any legal graph, before or after passes.
        inputs: tensors or arrays, in order or by name; shapes and dtypes must match exactly.
        weights: a state_dict: by key, alias or the weight's name in the graph.
        observe: called with every node and its results, right after it ran.

    Raises:
        ShapeError: the inputs do not fit.
        WeightMismatchError: a weight is missing or misshapen.
        Error: a node failed; says which, with its source.
    """
    run = GraphRun(graph, inputs, weights)
    for node, results in run:
        if observe is not None:
            observe(node, results)
    return run.outputs()


class GraphRun:
    """A run of a graph, one node at a time: iterating yields (node, results).

    Values are dropped after their last use, so memory stays that of an ordinary run. The
    arguments are those of `run_graph`.

    Attributes:
        graph: what runs; symbolic sizes have the values that the inputs give them.
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Sequence[Any] | Mapping[str, Any],
        weights: Mapping[str, Tensor] | None = None,
        states: Mapping[str, Tensor] | None = None,
    ) -> None:
        bound = _bind_inputs(graph, inputs)
        self.graph = graph = at_shapes(graph, [tuple(tensor.shape) for _, tensor in bound])
        self._values = {v.name: _input(v, t) for v, (_, t) in zip(graph.inputs, bound, strict=True)}
        self._values.update(_bind_weights(graph, weights or {}))
        known = (v.device for v in self._values.values())
        self._device = next(known, torch.device("cpu"))
        for constant in graph.constants:
            self._values[constant.name] = constant_tensor(constant).to(self._device)
        for state in graph.states:
            given = (states or {}).get(state.name)
            self._values[state.name] = zeros(state.type, self._device) if given is None else given

    def __iter__(self) -> Iterator[tuple[Node, list[Tensor]]]:
        values, remaining = self._values, Counter(self.graph.output_values)
        remaining.update(i for n in self.graph.nodes for i in n.inputs if i is not None)
        for node in self.graph.nodes:
            operands = [None if i is None else values[i] for i in node.inputs]
            with torch.no_grad():
                results = run_node(node, operands, self._device)
            values.update(zip((v.name for v in node.outputs), results, strict=True))
            yield node, results
            _release(node, values, remaining)

    def operands(self, node: Node) -> dict[str, Tensor]:
        """Returns what the node was given, by name; until the iteration goes on behind it."""
        return {i: self._values[i] for i in node.inputs if i is not None}

    def outputs(self) -> list[Tensor]:
        """Returns the graph's outputs, once all nodes have run."""
        return [self._values[o.value] for o in self.graph.outputs]

    def updates(self) -> dict[str, Tensor]:
        """Returns what the run leaves in the states it updates, once all nodes have run."""
        return {u.name: self._values[u.value] for u in self.graph.updates}


def zeros(type: TensorType, device: torch.device | None = None) -> Tensor:
    """Returns a state's first value."""
    return torch.zeros(type.shape, dtype=getattr(torch, type.dtype), device=device)


def _release(node: Node, values: dict[str, Tensor], remaining: Counter[str]) -> None:
    """Drops the values that no later node reads."""
    for name in node.inputs:
        if name is not None:
            remaining[name] -= 1
            if not remaining[name]:
                values.pop(name, None)
    for value in node.outputs:
        if not remaining[value.name]:
            values.pop(value.name, None)


def run_node(node: Node, tensors: Tensors, device: torch.device | None = None) -> list[Tensor]:
    """Computes one node's outputs from its operands.

    Raises:
        Error: the operator refused them, or gave other results than the node declares.
    """
    try:
        results = execute(node.op, tensors, node.attrs, device or torch.device("cpu"))
    except Error as error:
        raise type(error)(f"{node.name}{at(node.source)}: {error}") from None
    except Exception as error:  # whatever an operator raises on operands it cannot take
        shapes = ", ".join("None" if t is None else str(type_of(t)) for t in tensors)
        raise Error(
            f"{node.name} ({node.op} of {shapes}){at(node.source)}: {first_line(error)}"
        ) from error
    declared = [v.type for v in node.outputs]
    computed = [type_of(t) for t in results]
    if [t.with_order(None) for t in declared] != computed:
        raise GraphError(
            f"{node.name} ({node.op}){at(node.source)} declares {_list(declared)}, but its "
            f"reference gives {_list(computed)}."
        )
    return results


def infer_types(
    op: str, inputs: Sequence[TensorType | None], attrs: Mapping[str, Attr] | None = None
) -> tuple[TensorType, ...]:
    """Returns the types of an op's outputs (row-major), from its operands' types and attributes.

    Raises:
        Error: the op refuses the operands, or is unknown.
    """
    attrs = attrs or {}
    definition = find(op)
    if definition is not None and definition.infer is not None:
        result = definition.infer(*inputs, **attrs)
        return tuple(result) if isinstance(result, (tuple, list)) else (result,)
    tensors = [None if t is None else _empty(t) for t in inputs]
    try:
        with torch.no_grad():
            return tuple(map(type_of, execute(op, tensors, attrs, torch.device("meta"))))
    except Error:
        raise
    except Exception as error:
        raise Error(f"{op} refuses {_list(inputs)}: {first_line(error)}") from None


def check_node(node: Node, types: Mapping[str, TensorType]) -> None:
    """Checks a node's operands, attributes and declared results against its op.

    Args:
        types: the types of the values it reads (`Graph.types`).

    Raises:
        Error: the op refuses them; GraphError when the declared types are not what it gives.
    """
    operands = [None if i is None else types[i].with_order(None) for i in node.inputs]
    try:
        inferred = infer_types(node.op, operands, node.attrs)
    except Error as error:
        raise type(error)(f"{node.name}{at(node.source)}: {error}") from None
    declared = tuple(v.type.with_order(None) for v in node.outputs)
    if inferred != declared:
        raise GraphError(
            f"{node.name} ({node.op}){at(node.source)} declares {_list(declared)}, but the op "
            f"gives {_list(inferred)}."
        )


def type_of(tensor: Tensor) -> TensorType:
    """Returns a tensor's type; ExportError for a dtype npusim does not have."""
    return TensorType(schema.dtype_name(tensor.dtype), tuple(int(d) for d in tensor.shape))


def constant_tensor(constant: Constant) -> Tensor:
    """Returns a constant as a tensor on the CPU."""
    dtype = getattr(torch, constant.type.dtype)
    if not constant.data:
        return torch.empty(constant.type.shape, dtype=dtype)
    return torch.frombuffer(bytearray(constant.data), dtype=dtype).reshape(constant.type.shape)


def execute(
    op: str, tensors: Tensors, attrs: Mapping[str, Attr], device: torch.device
) -> list[Tensor]:
    """Returns an op's results; whatever it raises on operands it cannot take."""
    result = _implementation(op)(tensors, attrs, device)
    if isinstance(result, Tensor):
        return [result]
    leaves = schema.result_leaves(result)
    if not leaves or not all(isinstance(t, Tensor) for t in leaves):
        raise GraphError(f"{op} gives {type(result).__name__}, not tensors.")
    return leaves


def _implementation(op: str) -> Callable[[Tensors, Mapping[str, Attr], torch.device], Any]:
    definition = find(op)
    if definition is not None and definition.reference is not None:
        reference = definition.reference
        return lambda tensors, attrs, device: reference(*tensors, **attrs)
    return _torch_operator(op)


@cache
def _torch_operator(op: str) -> Callable[[Tensors, Mapping[str, Attr], torch.device], Any]:
    operator = schema.resolve(op)
    if not _reads_strides(operator):
        return lambda tensors, attrs, device: schema.call(operator, tensors, attrs, device)

    def on_dense(tensors: Tensors, attrs: Mapping[str, Attr], device: torch.device) -> Any:
        dense = [None if t is None else t.contiguous() for t in tensors]
        return schema.call(operator, dense, attrs, device)

    return on_dense


def _reads_strides(operator: torch._ops.OpOverload) -> bool:
    """Tells whether an operator's result depends on strides: it may return an alias of its input.

    Values of a graph have no strides, so such operators get dense operands.
    """
    return any(r.alias_info is not None for r in operator._schema.returns)


def _bind_inputs(graph: Graph, inputs: Any) -> list[tuple[str, Tensor]]:
    names = [v.name for v in graph.inputs]
    if isinstance(inputs, Mapping):
        unknown = sorted(set(map(str, inputs)) - set(names))
        missing = [name for name in names if name not in inputs]
        if unknown or missing:
            raise ShapeError(
                f"The graph's inputs are {', '.join(names)}; "
                + (f"{', '.join(missing)} is missing." if missing else f"not {unknown[0]}.")
            )
        inputs = [inputs[name] for name in names]
    if len(inputs) != len(names):
        raise ShapeError(
            f"The graph takes {len(names)} inputs ({', '.join(names)}), not {len(inputs)}."
        )
    return [(v.name, torch.as_tensor(t)) for v, t in zip(graph.inputs, inputs, strict=True)]


def _input(value: Value, tensor: Tensor) -> Tensor:
    if type_of(tensor) != value.type.with_order(None):
        raise ShapeError(f"Input {value.name} must be {value.type}, not {type_of(tensor)}.")
    return tensor.detach()


def _bind_weights(graph: Graph, weights: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    bound = []
    for weight in graph.weights:
        key = next((k for k in (weight.key, *weight.aliases, weight.name) if k in weights), None)
        if key is None:
            raise WeightMismatchError(_missing(weight))
        tensor = weights[key].detach()
        if type_of(tensor) != weight.type.with_order(None):
            raise WeightMismatchError(
                f"Weight {key} must be {weight.type}, but the checkpoint has {type_of(tensor)}."
            )
        bound.append((weight.name, tensor))
    return bound


def _missing(weight: Weight) -> str:
    keys = " or ".join((weight.key, *weight.aliases))
    reason = "" if weight.persistent else " (a buffer that state_dict() leaves out)"
    return f"The weights lack {keys}{reason}, {weight.type}."


def _empty(type: TensorType) -> Tensor:
    return torch.empty(type.shape, dtype=getattr(torch, type.dtype), device="meta")


def _list(types: Sequence[TensorType | None]) -> str:
    return ", ".join(map(str, types)) or "nothing"
