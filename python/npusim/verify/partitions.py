"""Comparing a partitioned model with PyTorch, and finding the partition that diverges.

Every native partition is given the values that PyTorch computes for its inputs, as soon as these
are known, so an error of one is not blamed on the next; the search goes on inside it, pass by pass
(`passes.py`) and command by command (`bisect.py`). Values are dropped after the last partition
that reads them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from npusim.ir.graph import Graph
from npusim.ir.specialize import bind_sizes, specialize
from npusim.ops.reference import GraphRun, run_graph, zeros
from npusim.partition.executor import DAGExecutor
from npusim.partition.plan import Partition, PartitionPlan
from npusim.targets import TargetConfig
from npusim.verify.agreement import (
    all_weights,
    example_arguments,
    run_reference,
    tensor_leaves,
    with_tensors,
)
from npusim.verify.bisect import first_divergence
from npusim.verify.comparison import Comparison, compare_all
from npusim.verify.edge_inputs import on_edges
from npusim.verify.native_run import NativeRun
from npusim.verify.passes import first_wrong_pass
from npusim.verify.report import Divergence, EdgeResult, PassDivergence, Progress, Report

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
    edges: bool = True,
    progress: Progress | None = None,
) -> tuple[bool, Report]:
    """Compares runs of a partitioned model with PyTorch.

    Arguments and results are those of `verify_program`, for what `npusim.partition` made. The
    fault and the first divergence name the partition as well as the pass, or the command in its
    program.

    Raises:
        Error: inputs or weights do not fit, or the plan cannot run here.
    """
    from npusim.runtime import Device

    device = Device(device, threads=threads) if isinstance(device, str) else device
    args, kwargs = example_arguments(test_inputs, test_kwargs)
    inputs = tensor_leaves(args, kwargs)
    weights = all_weights(plan.graph, state_dict or {}, original_model)
    executor = DAGExecutor(plan, device, summary=False).load_weights(weights)
    compared = _Compared(plan, executor, original_model, args, kwargs, weights, tolerance)
    outputs = compared.outputs(inputs, compared.reference(inputs))
    told = progress or (lambda *_: None)
    tried: tuple[EdgeResult, ...] = ()
    if edges:
        tried = on_edges(plan.graph, inputs, compared.reference, compared.outputs, told)
    wrong = next((e for e in tried if not e.ok), None)
    found = _Found()
    if bisect or wrong is not None or not all(output.ok for output in outputs):
        if wrong is not None and all(output.ok for output in outputs):
            inputs = list(wrong.inputs)
        told("looking for the partition at fault", 0, 0)
        found = _Search(plan, inputs, weights, device, tolerance).found()
    title = f"{plan.graph.name}, {len(plan.partitions)} partitions"
    report = Report(title, outputs, found.first, found.largest, edges=tried, fault=found.fault)
    return report.ok, report


@dataclass(frozen=True)
class _Found:
    """What a search ends with: the pass that is at fault, or the command that diverges first and
    the one that adds most by itself."""

    fault: PassDivergence | None = None
    first: Divergence | None = None
    largest: Divergence | None = None


@dataclass(frozen=True)
class _Compared:
    """A plan beside its reference, on any inputs of the right types."""

    plan: PartitionPlan
    executor: DAGExecutor
    model: nn.Module | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    tolerance: float | None

    def reference(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Returns what PyTorch makes of some inputs."""
        args, kwargs = with_tensors(self.args, self.kwargs, inputs)
        return run_reference(self.model, self.plan.graph, args, kwargs, self.weights)

    def outputs(
        self, inputs: Sequence[Tensor], expected: Sequence[Tensor]
    ) -> tuple[Comparison, ...]:
        """Compares a run, from states of zeros, with what is expected."""
        self.executor.reset()
        results = self.executor.execute(inputs)
        actual = [torch.as_tensor(results[o.name]).cpu() for o in self.plan.graph.outputs]
        return compare_all(list(results), actual, expected, self.tolerance)


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

    def found(self) -> _Found:
        """Returns the first divergence and what it is due to; where there is none, the command
        with the largest error."""
        worst = _Found()
        for partition in self.plan.partitions:
            self._advance(partition)
            found = self._inside(partition)
            first = found.first
            if found.fault is not None or (first is not None and not first.value.ok):
                return found
            if first is not None and (
                worst.first is None or first.value.max_rel > worst.first.value.max_rel
            ):
                worst = found
            self._forget(partition.index)
        return worst

    def _advance(self, partition: Partition) -> None:
        """Takes the reference far enough for the partition's inputs."""
        while missing := [name for name in partition.inputs if name not in self.values]:
            node, results = next(self.steps)
            for value, tensor in zip(node.outputs, results, strict=True):
                if self.last.get(value.name, -1) >= partition.index or value.name in missing:
                    self.values[value.name] = tensor

    def _inside(self, partition: Partition) -> _Found:
        program = partition.program
        graph = program.graph if program is not None else None
        if program is None or graph is None:
            return _Found()
        graph, source = self._sized(graph), self._sized(partition.graph)
        nobody_reads = {
            v.name: zeros(v.type) for v in graph.inputs if v.name in partition.witnesses
        }
        given = {**self.values, **nobody_reads}
        inputs = [given[spec.name] for spec in program.input_specs]
        fault = self._fault(graph, source, program.target, inputs)
        if fault is not None:
            return _Found(replace(fault, partition=partition.index))
        keys = {key for weight in program.weights for key in weight.keys}
        weights = {key: tensor for key, tensor in self.weights.items() if key in keys}
        native = NativeRun(program, self.device, inputs, weights)
        first, largest = first_divergence(native, graph, self.tolerance)
        return _Found(None, _of(first, partition.index), _of(largest, partition.index))

    def _fault(
        self, graph: Graph, source: Graph, target: str, inputs: Sequence[Tensor]
    ) -> PassDivergence | None:
        """Returns the pass that is at fault, if a program's graph differs from its source."""
        actual, expected = (run_graph(g, inputs, self.weights) for g in (graph, source))
        names = [output.name for output in source.outputs]
        wrong = [c for c in compare_all(names, actual, expected, self.tolerance) if not c.ok]
        if not wrong:
            return None
        config = TargetConfig.named(target)
        found = first_wrong_pass(source, config, inputs, self.weights, self.tolerance)
        return found or PassDivergence("", -1, wrong[0])

    def _sized(self, graph: Graph) -> Graph:
        return specialize(graph, {s.name: self.sizes[s.name] for s in graph.symbols})

    def _forget(self, index: int) -> None:
        for name in [n for n in self.values if self.last.get(n, -1) <= index]:
            del self.values[name]


def _of(divergence: Divergence | None, partition: int) -> Divergence | None:
    return None if divergence is None else replace(divergence, partition=partition)
