"""Linear layers on the machine: which kernel multiplies which weights, and the gated form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import npusim
from npusim.errors import ShapeError
from npusim.ir.graph import Attr, Graph, Node, Output, Value, Weight
from npusim.ir.types import TensorType
from npusim.lowering.assemble import assemble
from npusim.ops.fused import NO_EPILOGUE
from npusim.ops.reference import infer_types, run_graph, type_of
from npusim.program.program import CompiledProgram, Method
from npusim.targets import TargetConfig

_HALVES = ("float16", "bfloat16")
TARGET = TargetConfig.named("cpu")


class Builder:
    """A graph of one input, some weights and the nodes a test adds; the last one is its result."""

    def __init__(self, x: Tensor, weights: dict[str, Tensor]) -> None:
        self.x = x
        self.state = weights
        self.types = {"x": type_of(x), **{k: type_of(w) for k, w in weights.items()}}
        self.nodes: list[Node] = []

    def add(self, op: str, inputs: tuple[str | None, ...], **attrs: Attr) -> str:
        types = infer_types(op, [None if i is None else self.types[i] for i in inputs], attrs)
        name = f"v{len(self.nodes)}"
        self.nodes.append(Node(name, op, inputs, (Value(name, types[0]),), attrs))
        self.types[name] = types[0]
        return name

    def graph(self) -> Graph:
        weights = tuple(Weight(k, k, self.types[k]) for k in self.state)
        result = self.nodes[-1].output
        return Graph(
            "g",
            (Value("x", self.types["x"]),),
            (Output("y", result.name),),
            weights,
            (),
            tuple(self.nodes),
        )

    def check(self) -> CompiledProgram:
        """Compares with the reference; returns the program, lowered without passes."""
        graph = self.graph()
        (want,) = run_graph(graph, [self.x], self.state)
        program = assemble(graph, TARGET)
        (got,) = npusim.load(program, self.state)(self.x)
        tolerance = {torch.float64: 1e-12, torch.float32: 1e-5}.get(want.dtype, 2e-2)
        torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance)
        return program


def kernels(program: CompiledProgram, method: Method | None = None) -> list[str]:
    """Returns the kernels a method calls, in order; by default the run's."""
    commands = (method or program.methods[0]).commands
    return [program.kernels[c.kernel].name for c in commands]


def randn(dtype: str, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", _HALVES)
def test_stored_rows_of_16_bits_are_multiplied_where_they_lie(dtype: str) -> None:
    build = Builder(randn(dtype, 3, 40), {"w": randn(dtype, 24, 40), "b": randn(dtype, 24)})
    build.add("npu.linear", ("x", "w", "b", None), **NO_EPILOGUE)
    assert kernels(build.check()) == ["linear"]


def test_float32_and_transposed_weights_are_packed() -> None:
    build = Builder(randn("float32", 3, 40), {"w": randn("float32", 24, 40)})
    build.add("npu.linear", ("x", "w", None, None), **NO_EPILOGUE)
    assert kernels(build.check()) == ["gemm"]
    build = Builder(randn("bfloat16", 3, 40), {"w": randn("bfloat16", 40, 24)})
    turned = build.add("aten.permute.default", ("w",), dims=(1, 0))
    build.add("npu.linear", ("x", turned, None, None), **NO_EPILOGUE)
    assert kernels(build.check()) == ["gemm"]


@pytest.mark.parametrize("residual", [1, 2])
def test_the_residual_may_be_strided(residual: int) -> None:
    build = Builder(randn("bfloat16", 2, 5, 48), {"w": randn("bfloat16", 24, 24)})
    part = build.add("aten.slice.Tensor", ("x",), dim=2, start=0, end=24, step=1)
    rest = build.add("aten.slice.Tensor", ("x",), dim=2, start=24, end=48, step=1)
    epilogue = {**NO_EPILOGUE, "act": "relu", "residual": residual}
    build.add("npu.linear", (part, "w", None, rest), **epilogue)
    assert kernels(build.check()) == ["linear"]


def test_concatenated_weights_stay_where_they_are() -> None:
    weights = {f"w{i}": randn("bfloat16", n, 40) for i, n in enumerate((16, 3, 5))}
    build = Builder(randn("bfloat16", 7, 40), weights)
    joined = build.add("aten.cat.default", tuple(weights), tensors=3, dim=0)
    build.add("npu.linear", ("x", joined, None, None), **NO_EPILOGUE)
    program = build.check()
    assert kernels(program) == ["linear"]
    assert kernels(program, program.init) == []  # nothing is copied


@pytest.mark.parametrize("dtype", ["float32", "float64", *_HALVES])
@pytest.mark.parametrize("biased", [False, True])
def test_gated_linear(dtype: str, biased: bool) -> None:
    weights = {"w": randn(dtype, 34, 40)} | ({"b": randn(dtype, 34)} if biased else {})
    build = Builder(randn(dtype, 2, 3, 40), weights)
    build.add("npu.gated_linear", ("x", "w", "b" if biased else None), act="silu")
    program = build.check()
    assert dtype == "float64" or kernels(program) == ["linear"]


def test_gated_linear_of_two_weights_and_of_a_transposed_one() -> None:
    halves = {"gate": randn("float32", 17, 40), "up": randn("float32", 17, 40) / 2}
    build = Builder(randn("float32", 1, 40), halves)
    joined = build.add("aten.cat.default", ("gate", "up"), tensors=2, dim=0)
    build.add("npu.gated_linear", ("x", joined, None), act="gelu_tanh")
    program = build.check()
    assert kernels(program, program.init) == []
    build = Builder(randn("float16", 3, 40), {"w": randn("float16", 40, 34)})
    turned = build.add("aten.permute.default", ("w",), dims=(1, 0))
    build.add("npu.gated_linear", ("x", turned, None), act="silu")
    program = build.check()
    assert kernels(program, program.init) == ["copy"]


def test_gated_linear_needs_an_even_number_of_rows() -> None:
    x, odd, bias = (TensorType("float32", s) for s in ((2, 8), (7, 8), (7,)))
    with pytest.raises(ShapeError, match=r"expected \[2n, k\]"):
        infer_types("npu.gated_linear", [x, odd, None], {"act": "silu"})
    with pytest.raises(ShapeError, match="expected 8 elements"):
        even = TensorType("float32", (8, 8))
        infer_types("npu.gated_linear", [x, even, bias], {"act": "silu"})
