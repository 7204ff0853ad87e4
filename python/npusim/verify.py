"""Does npusim compute what PyTorch computes? Compares graphs and compiled programs, per output.

Owns the measures, the tolerances and the search for the first command of a program whose value
differs: native values are read behind each command of the fused program as it is, while the same
lowered graph runs through PyTorch in step, so memory stays that of one ordinary run of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from npusim.compile import compile
from npusim.errors import Error, ShapeError
from npusim.frontends.torch_export import plain_outputs
from npusim.frontends.weight_free import module_tensors
from npusim.ir.graph import Graph, Node, Value
from npusim.ir.types import TensorType, is_float
from npusim.ops.reference import GraphRun, run_graph, type_of
from npusim.program.program import Access, CompiledProgram, TensorSpec

if TYPE_CHECKING:
    from npusim.runtime import Device, DeviceBuffer, Executor

# Largest error that passes, relative to the largest magnitude of the expected tensor. Integers and
# bools must be equal.
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Comparison:
    """How far a tensor is from what was expected.

    Attributes:
        max_abs: largest absolute difference; infinite when NaNs or infinities stand elsewhere.
        max_rel: `max_abs` over the largest magnitude expected.
        sqnr_db: signal-to-quantization-noise ratio, 10·log10(Σ expected² / Σ difference²), in dB;
            infinite for equal tensors.
        cosine: of the angle between both, as vectors; 1 for equal ones.
        tolerance: what `max_rel` may be.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    max_abs: float
    max_rel: float
    sqnr_db: float
    cosine: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether the tensor is within its tolerance."""
        return self.max_rel <= self.tolerance

    def to_json(self) -> dict[str, Any]:
        """Returns the fields; infinities as None."""
        fields = {**asdict(self), "shape": list(self.shape), "ok": self.ok}
        return {k: None if _is_infinite(v) else v for k, v in fields.items()}

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        return (
            f"{self.name} {self.dtype}[{shape}]: max abs {self.max_abs:.3g}, "
            f"max rel {self.max_rel:.3g} (tolerance {self.tolerance:.3g}), "
            f"SQNR {self.sqnr_db:.1f} dB, cosine {self.cosine:.6f}"
        )


@dataclass(frozen=True)
class Divergence:
    """The first command of a program whose value is out of tolerance.

    When none is, though a result is, it is the command with the largest relative error.

    Attributes:
        command: index in the method.
        kernel: what it calls.
        node: the graph node it belongs to, with `op` and `source`.
        value: its result, compared with the reference.
    """

    command: int
    kernel: str
    node: str
    op: str
    source: str
    value: Comparison

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as JSON-able data."""
        return {**asdict(self), "value": self.value.to_json()}

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        place = f"command {self.command} {self.kernel}, node {self.node} {self.op}{source}"
        return f"{place}: {self.value}"


@dataclass(frozen=True)
class Report:
    """What a comparison found. `print(report)` shows it; `ok` is the answer."""

    subject: str
    outputs: tuple[Comparison, ...]
    first_divergence: Divergence | None = None

    @property
    def ok(self) -> bool:
        """Whether every output is within its tolerance."""
        return all(output.ok for output in self.outputs)

    def to_json(self) -> dict[str, Any]:
        """Returns the report as JSON-able data."""
        first = self.first_divergence
        return {
            "subject": self.subject,
            "ok": self.ok,
            "outputs": [output.to_json() for output in self.outputs],
            "first_divergence": first.to_json() if first else None,
        }

    def __str__(self) -> str:
        lines = [f"{self.subject}: {'agrees' if self.ok else 'DIFFERS'}"]
        lines += [f"  {'ok  ' if output.ok else 'FAIL'} {output}" for output in self.outputs]
        if self.first_divergence is not None:
            lines.append(f"  first divergence: {self.first_divergence}")
        return "\n".join(lines)


def verify_ir_with_state_dict(
    *,
    ir: Graph | str | Path,
    state_dict: Mapping[str, Tensor],
    original_model: nn.Module,
    test_inputs: Any,
    test_kwargs: Mapping[str, Any] | None = None,
    tolerance: float | None = None,
) -> tuple[bool, Report]:
    """Compares a graph, run through PyTorch, with the model it was extracted from.

    Args:
        ir: the graph, or the path of its file.
        state_dict: the weights of both sides.
        original_model: in evaluation mode; gives the buffers that no state_dict holds.
        test_inputs: positional arguments with data, as the model takes them.
        test_kwargs: keyword arguments.
        tolerance: replaces `TOLERANCE` for floating-point outputs.

    Returns:
        Whether all outputs agree, and the report.

    Raises:
        Error: inputs, weights or the model do not fit the graph.
    """
    graph = ir if isinstance(ir, Graph) else Graph.load(ir)
    args, kwargs = _arguments(test_inputs, test_kwargs)
    weights = _all_weights(graph, state_dict, original_model)
    expected = run_model(original_model, args, kwargs, state_dict)
    actual = run_graph(graph, tensor_leaves(args, kwargs), weights)
    names = [output.name for output in graph.outputs]
    report = Report(f"graph {graph.name}", _compare_all(names, actual, expected, tolerance))
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
) -> tuple[bool, Report]:
    """Compares a native run of a compiled program with PyTorch.

    Args:
        program: a program or the path of its `.npubin` file; a graph is compiled for `device`.
        state_dict: the weights of both sides.
        test_inputs: positional arguments with data, as the model takes them.
        test_kwargs: keyword arguments.
        original_model: what to compare with; by default the graph inside the program.
        device: where to run, a device or its name.
        threads: workers of a cpu device given by name.
        tolerance: replaces `TOLERANCE` for floating-point values.

    Returns:
        Whether all outputs agree, and the report; it names the first command that differs.

    Raises:
        Error: inputs or weights do not fit, or the program cannot run here.
    """
    from npusim.runtime import Device

    device = Device(device, threads=threads) if isinstance(device, str) else device
    compiled = _program(program, device.name)
    graph = compiled.graph
    args, kwargs = _arguments(test_inputs, test_kwargs)
    inputs = tensor_leaves(args, kwargs)
    weights = _all_weights(graph, state_dict or {}, original_model)
    if original_model is not None:
        expected = run_model(original_model, args, kwargs, weights)
    elif graph is not None:
        expected = run_graph(graph, inputs, weights)
    else:
        raise Error("The program carries no graph to compare with.", hint="Pass original_model.")
    native = _NativeRun(compiled, device, inputs, weights)
    names = [spec.name for spec in compiled.output_specs]
    outputs = _compare_all(names, native.run(), expected, tolerance)
    differs = graph is not None and not all(output.ok for output in outputs)
    first = native.first_divergence(graph, tolerance) if graph is not None and differs else None
    report = Report(f"program {_title(compiled)} on {device.name}", outputs, first)
    return report.ok, report


def compare(
    name: str, actual: Tensor, expected: Tensor, tolerance: float | None = None
) -> Comparison:
    """Measures how far a tensor is from the expected one.

    Raises:
        ShapeError: they differ in shape or dtype.
    """
    type = type_of(expected)
    if type_of(actual) != type:
        raise ShapeError(f"{name} is {type_of(actual)}, but PyTorch gives {type}.")
    allowed = TOLERANCE[type.dtype] if is_float(type.dtype) else 0.0
    if tolerance is not None and is_float(type.dtype):
        allowed = tolerance
    measures = _measure(actual.detach().cpu(), expected.detach().cpu())
    return Comparison(name, type.dtype, type.shape, *measures, allowed)


def _measure(actual: Tensor, expected: Tensor) -> tuple[float, float, float, float]:
    """Returns (max abs, max rel, SQNR in dB, cosine) in float64."""
    if torch.equal(actual, expected):  # also for integers that float64 cannot tell apart
        return 0.0, 0.0, math.inf, 1.0
    a, e = actual.double().reshape(-1), expected.double().reshape(-1)
    finite = torch.isfinite(e)
    same_elsewhere = (a == e) | (a.isnan() & e.isnan())
    if not bool(torch.all(torch.where(finite, torch.isfinite(a), same_elsewhere))):
        return math.inf, math.inf, -math.inf, 0.0
    a, e = a[finite], e[finite]
    difference = (a - e).abs()
    noise, signal = float((difference**2).sum()), float((e**2).sum())
    max_abs = float(difference.max()) if difference.numel() else 0.0
    if not actual.is_floating_point():
        max_abs = max(max_abs, 1.0)  # they differ, see above
    elif noise == 0.0:
        return max_abs, 0.0, math.inf, 1.0
    peak, lengths = float(e.abs().max()), math.sqrt(signal) * float(a.norm())
    max_rel = max_abs / peak if peak else math.inf
    noise = noise or max_abs**2
    sqnr = 10 * math.log10(signal / noise) if signal else -math.inf
    return max_abs, max_rel, sqnr, float(a @ e) / lengths if lengths else 0.0


def run_model(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    state_dict: Mapping[str, Tensor],
) -> list[Tensor]:
    """Runs a model with the weights of a state_dict and returns the tensors of its result.

    The model itself stays as it is; it may be on the meta device.
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
    with torch.no_grad():
        result = torch.func.functional_call(model, weights, *copies, tie_weights=False)
    return tensor_leaves(plain_outputs(model, (), result))


def tensor_leaves(*trees: Any) -> list[Tensor]:
    """Returns the tensors of nested structures, in order."""
    return [leaf for leaf in pytree.tree_leaves(trees) if isinstance(leaf, Tensor)]


def _arguments(inputs: Any, kwargs: Mapping[str, Any] | None) -> tuple[tuple[Any, ...], Any]:
    if isinstance(inputs, Tensor):
        inputs = (inputs,)
    if not isinstance(inputs, (tuple, list)):
        raise ShapeError(f"test_inputs must be a tuple of arguments, not {type(inputs).__name__}.")
    return tuple(inputs), dict(kwargs or {})


def _all_weights(
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


def _compare_all(
    names: Sequence[str],
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    tolerance: float | None,
) -> tuple[Comparison, ...]:
    if not len(names) == len(actual) == len(expected):
        raise ShapeError(f"There are {len(actual)} outputs, but PyTorch gives {len(expected)}.")
    triples = zip(names, actual, expected, strict=True)
    return tuple(compare(name, a, e, tolerance) for name, a, e in triples)


def _program(program: CompiledProgram | Graph | str | Path, target: str) -> CompiledProgram:
    if isinstance(program, CompiledProgram):
        return program
    if isinstance(program, Graph):
        return compile(program, target)
    return CompiledProgram.load(program)


def _title(program: CompiledProgram) -> str:
    return str(program.metadata.get("model") or "without a name")


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


# ---- the native side ----


class _NativeRun:
    """A program on a device with inputs and weights, and the taps on it."""

    def __init__(
        self,
        program: CompiledProgram,
        device: Device,
        inputs: Sequence[Tensor],
        weights: Mapping[str, Tensor],
    ) -> None:
        from npusim.runtime import Executor, load_weights

        specs = program.input_specs
        if len(inputs) != len(specs):
            raise ShapeError(f"The program takes {len(specs)} inputs, not {len(inputs)}.")
        self.program = program
        self.inputs, self.state = list(inputs), weights
        self.executor: Executor = Executor(program, device)
        self.weights = load_weights(weights, program, device)
        self.buffers = {
            spec.name: _buffer(tensor.detach().contiguous(), device, spec)
            for spec, tensor in zip(specs, inputs, strict=True)
        }

    def run(self) -> list[Tensor]:
        results = self.executor.run(self.buffers, self.weights)
        tensors = (torch.from_dlpack(results[s.name]) for s in self.program.output_specs)
        return [tensor.cpu().clone() for tensor in tensors]

    def first_divergence(self, graph: Graph, tolerance: float | None) -> Divergence | None:
        """Runs once more, command by command, in step with the graph's reference."""
        search = _Search(self.program, graph, self._read, tolerance)
        search.reference = iter(GraphRun(graph, self.inputs, self.state))
        self.executor.observe(search.after, self.buffers, self.weights)
        return search.first or search.worst

    def _read(self, buffer: int, type: TensorType) -> Tensor | None:
        """Returns what a program buffer holds, as a tensor of a value's type."""
        flat = self.executor.read_buffer(buffer, type.dtype)
        if flat is None or flat.size < type.numel:
            return None
        tensor = torch.from_numpy(flat[: type.numel].copy())
        if type.dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        order = type.order or tuple(range(type.rank))
        logical = [order.index(d) for d in range(type.rank)]
        return tensor.reshape([type.shape[d] for d in order]).permute(logical)


def _buffer(tensor: Tensor, device: Device, spec: TensorSpec) -> DeviceBuffer:
    """Returns a tensor on a device: itself where both share memory, else a copy."""
    from npusim.runtime import DeviceBuffer
    from npusim.runtime.host import torch_bits

    if device.shares_host_memory:
        return DeviceBuffer.from_dlpack(tensor, device)
    return DeviceBuffer.from_bits(torch_bits(tensor.cpu()), device, spec)


class _Search:
    """Compares values behind the commands that complete them; fed by `after`."""

    def __init__(
        self,
        program: CompiledProgram,
        graph: Graph,
        read: Callable[[int, TensorType], Tensor | None],
        tolerance: float | None,
    ) -> None:
        self.program, self.read, self.tolerance = program, read, tolerance
        self.taps = value_taps(program, graph)
        self.reference: Iterator[tuple[Node, list[Tensor]]] = iter(())
        self.first: Divergence | None = None
        self.worst: Divergence | None = None

    def after(self, command: int) -> None:
        """Called behind each command."""
        if self.first is not None or command not in self.taps:
            return
        node, values = self.taps[command]
        expected = self._expected(node)
        for buffer, value in values:
            actual = self.read(buffer, value.type)
            if actual is not None and value.name in expected:
                comparison = compare(value.name, actual, expected[value.name], self.tolerance)
                self._note(command, comparison)

    def _expected(self, name: str) -> dict[str, Tensor]:
        """Advances the reference to a node; returns its results by name."""
        for node, results in self.reference:
            if node.name == name:
                return dict(zip((v.name for v in node.outputs), results, strict=True))
        return {}

    def _note(self, index: int, comparison: Comparison) -> None:
        command = self.program.methods[0].commands[index]
        info = self.program.nodes[command.node]
        kernel = self.program.kernels[command.kernel].name
        found = Divergence(index, kernel, info.name, info.op, info.source, comparison)
        if not comparison.ok:
            self.first = self.first or found
        if self.worst is None or comparison.max_rel > self.worst.value.max_rel:
            self.worst = found


def value_taps(
    program: CompiledProgram, graph: Graph
) -> dict[int, tuple[str, list[tuple[int, Value]]]]:
    """Returns, by command of the first method, which values of the graph are complete behind it.

    A buffer named after a result of the command's node shows that result once the last command of
    the node that writes it has run.
    """
    results = {node.name: {v.name: v for v in node.outputs} for node in graph.nodes}
    last: dict[tuple[str, int], int] = {}
    for index, command in enumerate(program.methods[0].commands):
        node = program.nodes[command.node].name
        for operand in command.operands:
            name = program.buffers[operand.buffer].name
            if operand.access is not Access.READ and name in results.get(node, {}):
                last[node, operand.buffer] = index
    taps: dict[int, tuple[str, list[tuple[int, Value]]]] = {}
    for (node, buffer), index in last.items():
        value = results[node][program.buffers[buffer].name]
        taps.setdefault(index, (node, []))[1].append((buffer, value))
    return taps
