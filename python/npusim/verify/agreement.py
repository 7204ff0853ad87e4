"""Does npusim compute what PyTorch computes? Compares graphs and compiled programs, per output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from npusim.compile import compile
from npusim.errors import Error, ShapeError, foreign
from npusim.frontends.torch_export import extract_ir, plain_outputs
from npusim.frontends.weight_free import module_tensors
from npusim.ir.graph import Graph
from npusim.ir.specialize import at_shapes
from npusim.ops.reference import GraphRun, run_graph
from npusim.program.program import CompiledProgram
from npusim.targets import TargetConfig
from npusim.verify.bisect import Found, first_divergence
from npusim.verify.comparison import Comparison, compare_all
from npusim.verify.edge_inputs import on_edges
from npusim.verify.native_run import NativeRun
from npusim.verify.passes import first_wrong_pass
from npusim.verify.report import EdgeResult, PassDivergence, Progress, Report

if TYPE_CHECKING:
    from npusim.runtime import Device


def verify_ir_with_state_dict(
    *,
    ir: Graph | str | Path,
    state_dict: Mapping[str, Tensor],
    original_model: nn.Module,
    test_inputs: Any,
    test_kwargs: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> tuple[bool, Report]:
    """Compares a graph, run through PyTorch, with the model it was extracted from.

    Args:
        ir: the graph, or the path of its file.
        state_dict: the weights of both sides.
        original_model: in evaluation mode; gives the buffers that no state_dict holds.
        test_inputs: positional arguments with data, as the model takes them.
        test_kwargs: keyword arguments.
        tolerance: replaces `TOLERANCE` for floating-point outputs.
        progress: called as (stage, done, total) while the graph's nodes run.

    Returns:
        Whether all outputs agree, and the report.

    Raises:
        Error: inputs, weights or the model do not fit the graph.
    """
    graph = ir if isinstance(ir, Graph) else Graph.load(ir)
    args, kwargs = example_arguments(test_inputs, test_kwargs)
    weights = all_weights(graph, state_dict, original_model)
    expected = run_model(original_model, args, kwargs, state_dict)
    run = GraphRun(graph, tensor_leaves(args, kwargs), weights)
    for done, _ in enumerate(run):
        if progress is not None:
            progress("running the graph", done, len(graph.nodes))
    actual = run.outputs()
    names = [output.name for output in graph.outputs]
    report = Report(f"graph {graph.name}", compare_all(names, actual, expected, tolerance))
    return report.ok, report


def verify_program(
    program: CompiledProgram | Graph | str | Path,
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
    source: Graph | None = None,
    progress: Progress | None = None,
) -> tuple[bool, Report]:
    """Compares native runs of a compiled program with PyTorch.

    Args:
        program: a program or the path of its `.npubin` file; a graph is compiled for `device`.
        state_dict: the weights of both sides.
        test_inputs: positional arguments with data, as the model takes them.
        test_kwargs: keyword arguments.
        original_model: what to compare with; by default the graph inside the program.
        device: where to run, a device or its name.
        threads: workers of a cpu device given by name.
        tolerance: replaces `TOLERANCE` for floating-point values.
        bisect: look for the first command that diverges even when the outputs agree; when they
            do not, that is always done.
        edges: try inputs at the edges as well: zeros, NaN, empty and full masks, and extremes
            where nothing sums (`verify/edge_inputs.py`).
        source: the graph the program was compiled from, which tells a pass at fault; by default
            the one given as program, or extracted again from the model.
        progress: called as (stage, done, total) before each stage and each edge; 0 in total where
            that is not known.

    Returns:
        Whether all outputs agree, and the report; it names the first pass or command that differs,
        and says whether the command itself is at fault.

    Raises:
        Error: inputs or weights do not fit, or the program cannot run here.
    """
    from npusim.runtime import Device

    device = Device(device, threads=threads) if isinstance(device, str) else device
    if isinstance(program, Graph):
        source = program
    compiled = _program(program, device.name)
    args, kwargs = example_arguments(test_inputs, test_kwargs)
    inputs = tensor_leaves(args, kwargs)
    weights = all_weights(source or compiled.graph, state_dict or {}, original_model)
    expected = run_reference(original_model, source or compiled.graph, args, kwargs, weights)
    told = progress or (lambda *_: None)
    told("loading the weights", 0, 4)
    native = NativeRun(compiled, device, inputs, weights)
    compared = _Compared(native, original_model, source, args, kwargs, tolerance, told)
    told("running the program", 1, 4)
    outputs = compared.outputs(inputs, expected)
    tried = compared.edges(inputs) if edges else ()
    wrong = next((e for e in tried if not e.ok), None)
    fault: PassDivergence | None = None
    found: Found = (None, None)
    if bisect or wrong is not None or not all(output.ok for output in outputs):
        if wrong is not None and all(output.ok for output in outputs):
            inputs = list(wrong.inputs)
            expected = compared.reference(inputs)
            native.give(inputs)
        told("looking for the pass at fault", 2, 4)
        fault = compared.fault(inputs, expected)
        told("looking for the first command that diverges", 3, 4)
        found = compared.commands(inputs)
    title = f"program {_title(compiled)} on {device.name}"
    report = Report(title, outputs, *_blamed(fault, found), edges=tried, fault=fault)
    return report.ok, report


def _blamed(fault: PassDivergence | None, found: Found) -> Found:
    """Returns the commands that were found, but for those that repeat what a pass did."""
    first, largest = found
    if fault is not None and first is not None and first.value.ok:
        return None, None
    return first, largest


@dataclass(frozen=True)
class _Compared:
    """A program beside its reference, on any inputs of the right types."""

    native: NativeRun
    model: nn.Module | None
    source: Graph | None
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    tolerance: float | None
    progress: Progress

    def reference(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Returns what PyTorch makes of some inputs."""
        graph = self.source or self.native.program.graph
        args, kwargs = with_tensors(self.args, self.kwargs, inputs)
        return run_reference(self.model, graph, args, kwargs, self.native.state_dict)

    def outputs(
        self, inputs: Sequence[Tensor], expected: Sequence[Tensor]
    ) -> tuple[Comparison, ...]:
        """Compares a native run with what is expected."""
        self.native.give(inputs)
        names = [spec.name for spec in self.native.program.output_specs]
        return compare_all(names, self.native.run(), expected, self.tolerance)

    def edges(self, inputs: Sequence[Tensor]) -> tuple[EdgeResult, ...]:
        """Compares on the inputs' edges; those that PyTorch refuses are not tried."""
        graph = self.source or self.native.program.graph
        return on_edges(graph, inputs, self.reference, self.outputs, self.progress)

    def fault(self, inputs: Sequence[Tensor], expected: Sequence[Tensor]) -> PassDivergence | None:
        """Returns the pass that is at fault, if the program's own graph is wrong in PyTorch."""
        program = self.native.program
        if program.graph is None:
            return None
        names = [output.name for output in program.graph.outputs]
        actual = run_graph(program.graph, inputs, self.native.state_dict)
        wrong = [c for c in compare_all(names, actual, expected, self.tolerance) if not c.ok]
        if not wrong:
            return None
        source, weights = self._source(), self.native.state_dict
        target = TargetConfig.named(program.target)
        found = source and first_wrong_pass(source, target, inputs, weights, self.tolerance)
        return found or PassDivergence("", -1, wrong[0])

    def _source(self) -> Graph | None:
        """Returns the graph that the passes were given; extracted again, if need be."""
        if self.source is not None or self.model is None:
            return self.source
        try:
            return extract_ir(self.model, tuple(self.args), dict(self.kwargs) or None)
        except Error:
            return None

    def commands(self, inputs: Sequence[Tensor]) -> Found:
        """Returns the first command that diverges, and the one that adds most by itself."""
        graph = self.native.program.graph
        if graph is None:
            return None, None
        graph = at_shapes(graph, [tuple(tensor.shape) for tensor in inputs])
        self.native.give(inputs)
        return first_divergence(self.native, graph, self.tolerance)


def with_tensors(
    args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns arguments with other tensors in the place of theirs, in order."""
    left = iter(tensors)
    return pytree.tree_map_only(Tensor, lambda _: next(left), (tuple(args), dict(kwargs)))


def run_reference(
    model: nn.Module | None,
    graph: Graph | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    weights: Mapping[str, Tensor],
) -> list[Tensor]:
    """Returns what PyTorch computes: the model's results, or where there is none the graph's.

    Raises:
        Error: there is neither, or inputs or weights do not fit.
    """
    if model is not None:
        return run_model(model, args, kwargs, weights)
    if graph is None:
        raise Error("The program carries no graph to compare with.", hint="Pass original_model.")
    return run_graph(graph, tensor_leaves(args, kwargs), weights)


def run_model(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    state_dict: Mapping[str, Tensor],
) -> list[Tensor]:
    """Runs a model with the weights of a state_dict and returns the tensors of its result.

    The model itself stays as it is; it may be on the meta device.

    Raises:
        Error: the model is in training mode, or its code raises on these inputs and weights.
    """
    if model.training:
        raise Error(f"{type(model).__name__} is in training mode.", hint="Call model.eval() first.")
    tensors = module_tensors(model)
    weights = {
        path: state_dict[key]
        for key in tensors.originals.keys() & state_dict.keys()
        for path in tensors.paths(key)
    }
    copies = pytree.tree_map_only(Tensor, lambda t: t.clone(), (tuple(args), dict(kwargs)))
    try:
        with torch.no_grad():
            result = torch.func.functional_call(model, weights, *copies, tie_weights=False)
    except Exception as error:  # a model runs, and fails in, any code
        raise Error(
            f"{type(model).__name__} itself fails on these inputs and weights: {foreign(error)}."
        ) from error
    return tensor_leaves(plain_outputs(model, (), result))


def tensor_leaves(*trees: Any) -> list[Tensor]:
    """Returns the tensors of nested structures, in order."""
    return [leaf for leaf in pytree.tree_leaves(trees) if isinstance(leaf, Tensor)]


def example_arguments(
    inputs: Any, kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns positional and keyword arguments; ShapeError when they are not a tuple."""
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list)):
        raise ShapeError(f"test_inputs must be a tuple of arguments, not {type(inputs).__name__}.")
    return tuple(inputs), dict(kwargs or {})


def all_weights(
    graph: Graph | None, state_dict: Mapping[str, Tensor], model: nn.Module | None
) -> dict[str, Tensor]:
    """Returns the state_dict, completed by the model's buffers that no state_dict holds."""
    weights = dict(state_dict)
    own = module_tensors(model).originals if model is not None else {}
    for weight in graph.weights if graph is not None else ():
        keys = (weight.key, *weight.aliases)
        if not weight.persistent:
            weights.update((key, own[key]) for key in keys if key in own and key not in weights)
    return weights


def _program(program: CompiledProgram | Graph | str | Path, target: str) -> CompiledProgram:
    if isinstance(program, CompiledProgram):
        return program
    if isinstance(program, Graph):
        return compile(program, target)
    return CompiledProgram.load(program)


def _title(program: CompiledProgram) -> str:
    return str(program.metadata.get("model") or "without a name")
