"""Scalar programs on the machine: literals in every position, register reuse, class changes."""

from __future__ import annotations

import pytest
import torch

import npusim
from npusim.abi.scalar import ScalarBuilder, ScalarProgram
from npusim.ir.graph import Graph, Node, Output, Value
from npusim.ir.types import TensorType
from npusim.lowering.pointwise_kernel import register_pressure
from npusim.ops.reference import run_graph


def graph_of(
    program: ScalarProgram, dtypes: list[str], dtype: str, shape: tuple[int, ...]
) -> Graph:
    """Returns a graph of one npu.pointwise over inputs of one shape."""
    inputs = tuple(Value(f"x{i}", TensorType(d, shape)) for i, d in enumerate(dtypes))
    attrs = {"program": program.to_attr(), "dtype": dtype}
    output = Value("y", TensorType(dtype, shape))
    node = Node("node", "npu.pointwise", tuple(v.name for v in inputs), (output,), attrs)
    return Graph("g", inputs, (Output("y", "y"),), (), (), (node,))


def check(program: ScalarProgram, tensors: list[torch.Tensor], dtype: str) -> None:
    """Runs a program natively and by the reference."""
    dtypes = [str(t.dtype).removeprefix("torch.") for t in tensors]
    graph = graph_of(program, dtypes, dtype, tuple(tensors[0].shape))
    (want,) = run_graph(graph, tensors)
    (got,) = npusim.load(npusim.compile(graph))(*tensors)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("condition", [0, 1])
def test_a_literal_condition_counts(condition: int) -> None:
    builder = ScalarBuilder("f")
    builder.op("where", "f", ("const", condition), 0, ("const", -3.5))
    check(builder.build("float32"), [torch.randn(37)], "float32")


def test_literals_in_every_position() -> None:
    builder = ScalarBuilder("f")
    left = builder.op("sub", "f", ("const", 2.5), 0)
    clamped = builder.op("clamp", "f", left, ("const", -1.0), ("const", 1.0))
    builder.op("fma", "f", clamped, ("const", 3.0), ("const", 0.5))
    check(builder.build("float32"), [torch.randn(1000)], "float32")


def test_registers_are_reused_and_inputs_survive() -> None:
    """A long chain that keeps coming back to its inputs, over more elements than one tile."""
    builder = ScalarBuilder("ff")
    value = 0
    for index in range(30):
        value = builder.op("add", "f", value, index % 2)
        value = builder.op("mul", "f", value, ("const", 0.5))
    program = builder.build("float32")
    assert register_pressure(program) <= 5
    check(program, [torch.randn(5000), torch.randn(5000)], "float32")


def test_classes_change_within_a_chain() -> None:
    builder = ScalarBuilder("if")
    wide = builder.to(0, "f")
    total = builder.op("mul", "f", wide, 1)
    whole = builder.to(total, "i")
    builder.op("remainder", "i", whole, ("const", 5))
    x = torch.randint(-9, 9, (300,))
    check(builder.build("int64"), [x, torch.randn(300) * 4], "int64")


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_bytes_of_bounded_floats(dtype: str) -> None:
    """Of what a byte does not hold, or no integer, the conversion is not the number itself."""
    bounds = [(0, 255), (-1, 255), (0, 256), (-128, 127), (-129, 127), (-128, 128), (3, 9)]

    class Converted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            clamped = [x[i].clamp(*b) for i, b in enumerate(bounds)]
            clamped += [x[i].round().clamp(*b) for i, b in enumerate(bounds)]
            return [c.to(getattr(torch, dtype)).float() * 0.5 for c in clamped]

    x = torch.tensor([-300.0, -129, -128.5, -1.5, -0.5, 0.5, 2.5, 127.5, 128, 255.5, 256, 400])
    x = x.repeat(len(bounds), 1)  # rows of their own, so that each chain is fused whole
    graph = npusim.extract_ir(Converted().eval(), (x,))
    for got, want in zip(npusim.load(npusim.compile(graph))(x), Converted()(x), strict=True):
        assert torch.equal(torch.as_tensor(got), want)
