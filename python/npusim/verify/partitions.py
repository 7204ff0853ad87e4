"""Comparing a partitioned model with PyTorch, and finding the partition that diverges.

Every native partition is given the values that PyTorch computes for its inputs, as soon as these
are known, so an error of one is not blamed on the next; the search goes on inside it, command by
command (`bisect.py`). Values are dropped behind the last partition that reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from npusim.ir.specialize import bind_sizes, specialize
from npusim.ops.reference import GraphRun, zeros
from npusim.partition.executor import DAGExecutor
from npusim.partition.plan import Partition, PartitionPlan
from npusim.verify.agreement import (
    all_weights,
    example_arguments,
    run_reference,
    tensor_leaves,
)
from npusim.verify.bisect import first_divergence
from npusim.verify.comparison import compare_all
from npusim.verify.native_run import NativeRun
from npusim.verify.report import Divergence, Report

if TYPE_CHECKING:
    from npusim.runtime import Device


def verify_plan(
    plan: PartitionPlan,
    *,
    state_dict: Mapping[str, Tensor] | None = None,
    test_inputs: Any,
    test_kwargs: Mapping[str, Any] | None = None,
    original_model: nn.Module | None = None,
    device: str | Device = "cpu",
    threads: int | None = None,
    tolerance: float | None = None,
    bisect: bool = False,
) -> tuple[bool, Report]:
    """Compares a run of a partitioned model with PyTorch.

    Arguments and results are those of `verify_program`, for what `npusim.partition` made. The
    first divergence names the partition as well as the command in its program.

    Raises:
        Error: inputs or weights do not fit, or the plan cannot run here.
    """
    from npusim.runtime import Device

    device = Device(device, threads=threads) if isinstance(device, str) else device
    args, kwargs = example_arguments(test_inputs, test_kwargs)
    inputs = tensor_leaves(args, kwargs)
    weights = all_weights(plan.graph, state_dict or {}, original_model)
    expected = run_reference(original_model, plan.graph, args, kwargs, weights)
    executor = DAGExecutor(plan, device, summary=False).load_weights(weights)
    results = executor.execute(inputs)
    actual = [torch.as_tensor(results[o.name]).cpu() for o in plan.graph.outputs]
    outputs = compare_all(list(results), actual, expected, tolerance)
    found: tuple[Divergence | None, Divergence | None] = (None, None)
    if bisect or not all(output.ok for output in outputs):
        found = _Search(plan, inputs, weights, device, tolerance).found()
    report = Report(f"{plan.graph.name}, {len(plan.partitions)} partitions", outputs, *found)
    return report.ok, report


class _Search:
    """Runs native partitions on PyTorch's values, in order, until one diverges."""

    def __init__(
        self,
        plan: PartitionPlan,
        inputs: list[Tensor],
        weights: Mapping[str, Tensor],
        device: Device,
        tolerance: float | None,
    ) -> None:
        self.plan, self.weights, self.device, self.tolerance = plan, weights, device, tolerance
        shapes = [tuple(tensor.shape) for tensor in inputs]
        self.sizes = bind_sizes([(v.name, v.type.shape) for v in plan.graph.inputs], shapes)
        graph = specialize(plan.graph, self.sizes)
        self.run = GraphRun(graph, inputs, weights)
        self.steps = iter(self.run)
        self.last = {name: p.index for p in plan.partitions for name in p.inputs}
        self.values = dict(zip((v.name for v in graph.inputs), inputs, strict=True))
        self.values.update((s.name, zeros(s.type)) for s in graph.states)

    def found(self) -> tuple[Divergence | None, Divergence | None]:
        """Returns the first divergence, or where there is none the largest error, and the command
        that adds most by itself in the same partition."""
        worst: tuple[Divergence | None, Divergence | None] = (None, None)
        for partition in self.plan.partitions:
            self._advance(partition)
            first, largest = self._inside(partition)
            if first is not None and not first.value.ok:
                return first, largest
            if first is not None and (
                worst[0] is None or first.value.max_rel > worst[0].value.max_rel
            ):
                worst = first, largest
            self._forget(partition.index)
        return worst

    def _advance(self, partition: Partition) -> None:
        """Takes the reference far enough for the partition's inputs."""
        while missing := [name for name in partition.inputs if name not in self.values]:
            node, results = next(self.steps)
            for value, tensor in zip(node.outputs, results, strict=True):
                if self.last.get(value.name, -1) >= partition.index or value.name in missing:
                    self.values[value.name] = tensor

    def _inside(self, partition: Partition) -> tuple[Divergence | None, Divergence | None]:
        program = partition.program
        graph = program.graph if program is not None else None
        if program is None or graph is None:
            return None, None
        graph = specialize(graph, {s.name: self.sizes[s.name] for s in graph.symbols})
        nobody_reads = {
            v.name: zeros(v.type) for v in graph.inputs if v.name in partition.witnesses
        }
        given = {**self.values, **nobody_reads}
        inputs = [given[spec.name] for spec in program.input_specs]
        keys = {key for weight in program.weights for key in weight.keys}
        weights = {key: tensor for key, tensor in self.weights.items() if key in keys}
        native = NativeRun(program, self.device, inputs, weights)
        first, largest = first_divergence(native, graph, self.tolerance)
        return _of(first, partition.index), _of(largest, partition.index)

    def _forget(self, index: int) -> None:
        for name in [n for n in self.values if self.last.get(n, -1) <= index]:
            del self.values[name]


def _of(divergence: Divergence | None, partition: int) -> Divergence | None:
    return None if divergence is None else replace(divergence, partition=partition)
