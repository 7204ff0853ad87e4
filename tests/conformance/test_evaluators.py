"""Who evaluates scalar programs agrees bit for bit: kernels, NumPy, PyTorch, and the CUDA text.

One instruction each, over the awkward values of its class, and every conversion between storage
dtypes and classes; NumPy's interpreter is the yardstick. What approximates (exp, tanh, …) is left
to tests with bounds. CUDA's text runs through a host compiler, so no GPU is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import npusim
from npusim.abi import scalar_numpy, scalar_torch
from npusim.abi.scalar import (
    OPCODES,
    ScalarBuilder,
    ScalarOp,
    ScalarProgram,
    compute_class,
    result_class,
)
from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.types import DTYPES, TensorType
from npusim.lowering.assemble import assemble
from npusim.ops.fused import reference_pointwise
from npusim.targets import TargetConfig
from tests.codegen import host
from tests.conformance.value_operands import dtype_of, edges, thinned
from tests.conformance.value_sweep import devices, difference

_STORAGE = {"f": "float32", "d": "float64", "i": "int64"}
_APPROXIMATE = frozenset(
    (
        *("exp", "expm1", "log", "log1p", "log2", "log10", "rsqrt", "sin", "cos", "tan", "asin"),
        *("acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "sigmoid", "erf"),
        *("gelu", "gelu_tanh", "silu", "hardswish", "hardsigmoid", "softplus", "mish", "exp2"),
        *("atan2", "fma"),
    )
)
_APPROXIMATE_IN_PYTORCH = frozenset(
    f"{name} {cls}" for name in ("sqrt", "fmod", "remainder") for cls in "fd"
)
_DIVISIONS = ("div_trunc", "div_floor", "remainder", "fmod")


@dataclass(frozen=True)
class Case:
    """A program, what it reads, and the dtype its result is stored as."""

    name: str
    program: ScalarProgram
    inputs: tuple[Tensor, ...]
    dtype: str


def _operands(name: str, cls: str) -> tuple[Tensor, ...]:
    """Returns all combinations of awkward values, as many operands as the opcode takes."""
    base = thinned(edges(_STORAGE[cls]), {1: 4096, 2: 90, 3: 14}[OPCODES[name][1]])
    if name == "where":
        x, y = base.repeat_interleave(len(base)), base.repeat(len(base))
        return torch.arange(len(x)) % 3, x, y
    grid = torch.meshgrid(*[base] * OPCODES[name][1], indexing="ij")
    found = [g.reshape(-1).contiguous() for g in grid]
    if cls == "i" and name in _DIVISIONS:
        found = [x[found[1] != 0] for x in found]
    return tuple(found)


def _instructions() -> list[Case]:
    cases = []
    for name, (_, arity, _, allowed) in OPCODES.items():
        for cls in allowed:
            if name in _APPROXIMATE or (name == "pow" and cls != "i"):
                continue
            op = ScalarOp(name, tuple(range(arity)), cls)
            inputs = _operands(name, cls)
            classes = ("i", cls, cls) if name == "where" else (cls,) * arity
            program = ScalarProgram(classes, (op,))
            cases.append(Case(f"{name} {cls}", program, inputs, _STORAGE[result_class(op)]))
    return cases


def _conversions() -> list[Case]:
    """Each dtype to each other, by the instructions that the store needs."""
    cases = []
    for source in DTYPES:
        for dtype in DTYPES:
            builder = ScalarBuilder(compute_class(source), (source,))
            builder.op("copy", compute_class(source), 0)
            program = builder.build(dtype)
            cases.append(Case(f"{source} to {dtype}", program, (edges(source),), dtype))
            builder = ScalarBuilder(compute_class(source), (source,))
            builder.op("copy", compute_class(dtype), builder.stored(0, dtype))
            wide = _STORAGE[compute_class(dtype)]
            case = Case(f"{source} as {dtype}", builder.build(wide), (edges(source),), wide)
            cases.append(case)
    return cases


CASES = [*_instructions(), *_conversions()]


def _graph(cases: Sequence[Case]) -> tuple[Graph, list[Tensor]]:
    """Returns a graph of one node a case, and its inputs."""
    inputs: list[Value] = []
    nodes = []
    tensors: list[Tensor] = []
    for index, case in enumerate(cases):
        names = []
        for x in case.inputs:
            names.append(f"x{len(inputs)}")
            dtype = str(x.dtype).removeprefix("torch.")
            inputs.append(Value(names[-1], TensorType(dtype, tuple(x.shape))))
            tensors.append(x)
        output = Value(f"y{index}", TensorType(case.dtype, tuple(case.inputs[0].shape)))
        attrs = {"program": case.program.to_attr(), "dtype": case.dtype}
        nodes.append(Node(f"n{index}", "npu.pointwise", tuple(names), (output,), attrs))
    outputs = tuple(Output(f"y{i}", f"y{i}") for i in range(len(cases)))
    return Graph("cases", tuple(inputs), outputs, (), (), tuple(nodes)), tensors


def _numpy(case: Case) -> Tensor:
    """Returns what constant folding makes of a case."""
    arrays = [
        scalar_numpy.decode(_bytes(x), TensorType(str(x.dtype).removeprefix("torch."), x.shape))
        for x in case.inputs
    ]
    data = scalar_numpy.encode(scalar_numpy.run(case.program, arrays), case.dtype)
    return torch.frombuffer(bytearray(data), dtype=dtype_of(case.dtype))


def _bytes(x: Tensor) -> bytes:
    return bytes(x.contiguous().view(torch.uint8).numpy().tobytes())


def _differences(results: Sequence[Tensor], cases: Sequence[Case]) -> list[str]:
    found = []
    for case, got in zip(cases, results, strict=True):
        count, message = difference(got, _numpy(case), rounded=False)
        if count:
            at = int(message[1 : message.index("]")])
            operands = [x.reshape(-1)[at].item() for x in case.inputs]
            found.append(f"{case.name} of {operands}: {message.replace('PyTorch', 'NumPy')}")
    return found


@pytest.mark.parametrize("isa", list(devices()))
def test_kernels_evaluate_as_constant_folding_does(isa: str) -> None:
    graph, tensors = _graph(CASES)
    program = assemble(graph, TargetConfig.named("cpu"))
    results = npusim.load(program, device=devices()[isa])(*tensors)
    assert not _differences([torch.as_tensor(r) for r in results], CASES)


def test_pytorchs_interpreter_evaluates_as_constant_folding_does() -> None:
    exact = [c for c in CASES if c.name not in _APPROXIMATE_IN_PYTORCH]
    results = [
        reference_pointwise(*c.inputs, program=c.program.to_attr(), dtype=c.dtype) for c in exact
    ]
    assert not _differences(results, exact)
    assert set(scalar_torch.functions()) == set(OPCODES)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_cudas_text_evaluates_as_constant_folding_does(tmp_path: Path) -> None:
    graph, tensors = _graph(CASES)
    program = assemble(graph, TargetConfig.named("cuda"))
    kernels = host.build(host.keys_of([program]), tmp_path)
    data = host.run_program(program, kernels, [_bytes(t) for t in tensors])
    results = [
        torch.frombuffer(bytearray(d), dtype=dtype_of(c.dtype))
        for d, c in zip(data, CASES, strict=True)
    ]
    assert not _differences(results, CASES)


def test_integers_divided_by_zero_are_left_to_the_device() -> None:
    """Folding keeps the division, which a run then reports."""
    program = ScalarProgram(("i",), (ScalarOp("remainder", (0, ("const", 0)), "i"),))
    with pytest.raises(ZeroDivisionError):
        scalar_numpy.run(program, [np.arange(3)], checked=True)
