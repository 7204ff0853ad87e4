"""Control flow, unrolled: If with a known condition, Loop and Scan with known trip counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import GraphProto, NodeProto, helper

from npusim.errors import ExportError
from npusim.frontends.onnx.builder import Tensor

if TYPE_CHECKING:
    from npusim.frontends.onnx.importer import ModelWalk
    from npusim.frontends.onnx.scope import Scope

OPERATORS = ("If", "Loop", "Scan", "SequenceMap")
MAX_TRIPS = 10_000


def unrolled(owner: ModelWalk, node: NodeProto, inputs: Sequence[Any], scope: Scope) -> list[Any]:
    """Returns the results of a node of control flow.

    Raises:
        NeedsValues: the condition or the trip count is computed while the model runs.
    """
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "If":
        taken = inputs[0].values("the condition of If").reshape(-1)[0]
        return _body(owner, attrs["then_branch" if taken else "else_branch"], (), scope)
    if node.op_type == "Loop":
        return _loop(owner, attrs["body"], inputs, scope)
    if node.op_type == "SequenceMap":
        return _map(owner, attrs["body"], inputs, scope)
    return _scan(owner, attrs, inputs, scope, len(node.output))


def _body(owner: ModelWalk, graph: GraphProto, inputs: Sequence[Any], scope: Scope) -> list[Any]:
    inner = scope.inner()
    for tensor in graph.initializer:
        array = owner.array_of(tensor)
        inner.values[tensor.name] = owner.graph.known(array, kind=tensor.data_type)
    inner.values.update(zip((i.name for i in graph.input), inputs, strict=False))
    for node in graph.node:
        owner.add_node(node, inner)
    return [inner.get(o.name) for o in graph.output]


def _loop(owner: ModelWalk, body: GraphProto, inputs: Sequence[Any], scope: Scope) -> list[Any]:
    limit, condition, *carried = inputs
    trips = None if limit is None else limit.ints("the trip count of Loop")[0]
    count = len(carried)
    going = condition is None or bool(condition.values("the condition of Loop").reshape(-1)[0])
    stacked: list[list[Tensor]] = [[] for _ in body.output[1 + count :]]
    step = 0
    while going and (trips is None or step < trips):
        if step >= MAX_TRIPS:
            raise ExportError(f"the loop takes more than {MAX_TRIPS} trips to unroll.")
        known = owner.graph.known
        given = condition if condition is not None else known(np.array(True))
        flag, *results = _body(
            owner, body, (known(np.array(step, np.int64)), given, *carried), scope
        )
        carried, outputs = results[:count], results[count:]
        for items, output in zip(stacked, outputs, strict=True):
            items.append(output)
        condition, step = flag, step + 1
        if trips is None or condition.data is not None or step < trips:
            going = bool(condition.values("the condition of Loop").reshape(-1)[0])
    return [*carried, *(_stack(owner, items, 0) for items in stacked)]


def _stack(owner: ModelWalk, items: list[Tensor], axis: int) -> Tensor:
    if not items:
        raise ExportError("the loop makes no trip, so that the shape it scans is not known.")
    return owner.graph.op("stack.default", items, axis)


def _scan(
    owner: ModelWalk, attrs: dict[str, Any], inputs: Sequence[Any], scope: Scope, outputs: int
) -> list[Any]:
    body, scanned = attrs["body"], int(attrs["num_scan_inputs"])
    if len(body.input) != len(inputs):
        return _scan_of_batches(owner, attrs, inputs, scope, outputs)
    carried = list(inputs[: len(inputs) - scanned])
    tensors = inputs[len(inputs) - scanned :]
    axes = list(attrs.get("scan_input_axes") or [0] * scanned)
    turned = list(attrs.get("scan_input_directions") or [0] * scanned)
    made = outputs - len(carried)
    steps = tensors[0].shape[axes[0]]
    stacked: list[list[Tensor]] = [[] for _ in range(made)]
    for step in range(steps):
        slices = [
            t.op("select.int", a % t.rank, steps - 1 - step if back else step)
            for t, a, back in zip(tensors, axes, turned, strict=True)
        ]
        results = _body(owner, body, (*carried, *slices), scope)
        carried = results[: len(carried)]
        for items, output in zip(stacked, results[len(carried) :], strict=True):
            items.append(output)
    out_axes = list(attrs.get("scan_output_axes") or [0] * made)
    out_turned = list(attrs.get("scan_output_directions") or [0] * made)
    results = []
    for items, axis, back in zip(stacked, out_axes, out_turned, strict=True):
        ordered = list(reversed(items)) if back else items
        rank = (ordered[0].rank if ordered else 0) + 1
        results.append(_stack(owner, ordered, axis % rank))
    return [*carried, *results]


def _scan_of_batches(
    owner: ModelWalk, attrs: dict[str, Any], inputs: Sequence[Any], scope: Scope, outputs: int
) -> list[Any]:
    """Opset 8: the first input says how long each example is, and all have a batch in front."""
    if inputs[0] is not None:
        raise ExportError("sequences of different lengths are not supported in Scan of opset 8.")
    batch = inputs[1].shape[0]
    inner = {k: v for k, v in attrs.items() if k != "directions"}
    inner["scan_input_directions"] = attrs.get("directions")
    rows = [
        _scan(owner, inner, [t.op("select.int", 0, i) for t in inputs[1:]], scope, outputs)
        for i in range(batch)
    ]
    return [_stack(owner, list(items), 0) for items in zip(*rows, strict=True)]


def _map(owner: ModelWalk, body: GraphProto, inputs: Sequence[Any], scope: Scope) -> list[Any]:
    first, *others = inputs
    rows = []
    for i, item in enumerate(first):
        given = [other[i] if isinstance(other, list) else other for other in others]
        rows.append(_body(owner, body, (item, *given), scope))
    return [list(column) for column in zip(*rows, strict=True)]
