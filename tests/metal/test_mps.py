"""Products by Metal Performance Shaders, where a target asks for them.

In the images of the first tests the launches write 7 everywhere: whoever reads a product was served
by MPS.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import npusim
import npusim.ops  # registers them
from npusim.codegen.metal.image import unpack_image
from npusim.codegen.metal.mps import NAME
from npusim.errors import ProgramFormatError
from npusim.ir.opdef import REGISTRY
from npusim.program.program import BufferKind, CompiledProgram
from npusim.selftest.single_op import graph_of, tensors_for
from tests.metal.programs import OPENING, MetalBuilder, image, unary
from tests.softmetal import metal

RNG = np.random.default_rng(3)
SEVENS = (
    OPENING
    + """kernel void run(device const float* x [[buffer(0)]], device const float* w [[buffer(1)]],
                device float* y [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = 7.0f;
}
"""
)
M, N, K = 3, 4, 5
PRODUCT: dict[str, Any] = {
    "m": M, "n": N, "k": K, "x": [0, 0, K, 0], "w": [1, 0, K, 0], "y": [2, 0, N, 0],
}  # fmt: skip
PROBLEM: dict[str, Any] = {"name": "mps", "dtype": "float32", "products": [PRODUCT]}


def program(problem: Any = PROBLEM) -> CompiledProgram:
    """y = (x + 1) · wᵀ - 1, whose product is MPS's where it is there."""
    b = MetalBuilder()
    x, y, w = b.input("x", (M, K)), b.output("y", (M, N)), b.weight("w", (N, K))
    more, product = (b.buffer(BufferKind.TEMP, 4 * count) for count in (M * K, M * N))
    b.launch(unary("x[i] + 1.0f", M * K), [x], [more])
    b.launch(image(SEVENS, threads=M * N, library=problem), [more, w], [product])
    b.launch(unary("x[i] - 1.0f", M * N), [product], [y])
    return b.finish()


@pytest.fixture
def operands() -> tuple[np.ndarray, np.ndarray]:
    return tuple(RNG.standard_normal(s).astype(np.float32) for s in ((M, K), (N, K)))  # type: ignore[return-value]


def run(device: npusim.Device, code: CompiledProgram, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    result: np.ndarray = npusim.load(code, weights={"w": w}, device=device)(x)[0]
    return result


# Methods with products of MPS are encoded directly, whatever the device can.
@pytest.mark.parametrize("indirect", ["on", "off"])
@pytest.mark.parametrize("order", ["forward", "reverse", "shuffle"])
def test_a_product_between_kernels(
    device: npusim.Device, order: str, operands: tuple[np.ndarray, np.ndarray]
) -> None:
    metal.set_option("ORDER", order)
    metal.set_option("DELAY_US", 500)
    x, w = operands
    session = npusim.load(program(), weights={"w": w}, device=device)
    for scale in (1, 2):  # the second run finds what the first one left
        expected = (np.float32(scale) * x + 1) @ w.T - 1
        np.testing.assert_allclose(
            session(np.float32(scale) * x)[0], expected, rtol=2e-6, atol=2e-6
        )


def test_own_kernels_where_the_device_has_no_mps(
    device: npusim.Device, operands: tuple[np.ndarray, np.ndarray]
) -> None:
    metal.set_option("PERFORMANCE_SHADERS", 0)
    without = npusim.Device("metal")
    np.testing.assert_array_equal(run(without, program(), *operands), np.full((M, N), 6.0, "f4"))
    metal.set_option("PERFORMANCE_SHADERS", 1)


def test_own_kernels_where_the_memory_ends_in_a_row(device: npusim.Device) -> None:
    """MPS takes whole rows; of y, the last row is not there to its end."""
    b = MetalBuilder()
    x, y, w = b.input("x", (2, 2)), b.output("y", (6,)), b.weight("w", (2, 2))
    product = {"m": 2, "n": 2, "k": 2, "x": [0, 0, 2, 0], "w": [1, 0, 2, 0], "y": [2, 0, 4, 0]}
    problem = {**PROBLEM, "products": [product]}
    b.launch(image(SEVENS, threads=6, library=problem), [x, w], [y])
    session = npusim.load(b.finish(), weights={"w": np.eye(2, dtype="f4")}, device=device)
    np.testing.assert_array_equal(session(np.ones((2, 2), "f4"))[0], np.full(6, 7.0, "f4"))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "cublaslt"}, "this device never has that library"),
        ({"name": "cudnn", "products": [], "convolution": {}}, "there is no batch"),
        ({"name": "blas"}, "a library has no 'blas'"),
        ({"dtype": "bfloat16"}, "products alone, of float32 or float16"),
        ({"dtype": "int8"}, "a library has no 'int8'"),
        ({"activation": "relu"}, "products alone"),
        ({"products": []}, "the others products"),
        ({"products": [PRODUCT] * 17}, "too many products"),
        ({"products": [{**PRODUCT, "m": 0}]}, "an empty product"),
        ({"products": [{**PRODUCT, "m": M + 1}]}, "passes the end of its operand"),
        ({"products": [{**PRODUCT, "n": 2**40}]}, "passes the end of its operand"),
        ({"products": [{**PRODUCT, "x": [3, 0, K, 0]}]}, "there is no such operand"),
        ({"products": [{**PRODUCT, "x": [0, 1, K, 0]}]}, "passes the end of its operand"),
        ({"products": [{**PRODUCT, "x": [0, 0, K - 1, 0]}]}, "rows overlap"),
        ({"products": [{**PRODUCT, "bias": [1, 0, 0, 0]}]}, "products alone"),
        ({"products": [{**PRODUCT, "residual": [2, 0, N, 0]}]}, "products alone"),
        ({"products": [{**PRODUCT, "m": 1, "batch": 3}]}, "do not lie as MPS takes them"),
        (
            {"products": [{**PRODUCT, "m": 1, "batch": 2, "x": [0, 0, K, K + 1]}]},
            "do not lie as MPS takes them",
        ),
    ],
)
def test_hostile_problems_are_refused(
    device: npusim.Device,
    operands: tuple[np.ndarray, np.ndarray],
    changed: dict[str, Any],
    said: str,
) -> None:
    with pytest.raises(ProgramFormatError, match=said):
        run(device, program({**PROBLEM, **changed}), *operands)


# ---- what is compiled for it ----

METAL = replace(npusim.TargetConfig.named("metal"), libraries="all")


class Products(nn.Module):
    """Products of all kinds: with and without what MPS does not compute."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = nn.Linear(24, 40, bias=False)
        self.biased = nn.Linear(40, 24)
        self.merged = nn.ModuleList(nn.Linear(24, n, bias=False) for n in (16, 8))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [..., 24] to [..., 24]."""
        y = self.biased(torch.relu(self.plain(x)))
        parts = torch.cat([layer(y) for layer in self.merged], -1)
        return parts @ parts.transpose(-1, -2) @ y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_model_by_mps(device: npusim.Device, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = Products().eval().to(dtype)
    x = torch.randn(3, 20, 24).to(dtype)
    code = npusim.compile((model, (x,)), METAL)
    images = [unpack_image(kernel.image) for kernel in code.kernels]
    by_mps = [one for one in images if one.library is not None]
    assert bool(by_mps) == (dtype != torch.bfloat16)
    assert all(one.library["name"] == NAME and one.config.launches for one in by_mps)  # type: ignore[index]
    session = npusim.load(code, weights=model.state_dict(), device=device)
    got = (
        torch.as_tensor(np.asarray(session(x)[0], np.float32)) if dtype != torch.bfloat16 else None
    )
    expected = model.double()(x.double()).float()
    scale = expected.abs().max()
    if got is not None:
        close = 2e-6 if dtype == torch.float32 else 4e-3
        assert (got - expected).abs().max() <= close * scale


def test_nothing_is_mps_s_unless_asked_for() -> None:
    model = Products().eval()
    for libraries in ("none", "auto"):
        target = replace(METAL, libraries=libraries)
        code = npusim.compile((model, (torch.randn(2, 24),)), target)
        assert all(unpack_image(kernel.image).library is None for kernel in code.kernels)


CASES = [
    (name, dtype, index)
    for name in ("npu.linear", "aten.linear.default", "aten.matmul.default", "aten.bmm.default")
    for dtype in ("float32", "float16")
    for index in range(len(REGISTRY[name].cases))
]


@pytest.mark.parametrize(("name", "dtype", "index"), CASES)
def test_conformance_by_mps(device: npusim.Device, name: str, dtype: str, index: int) -> None:
    op = REGISTRY[name]
    case = op.cases[index]
    tensors = tensors_for(case, dtype, f"{name}{case.inputs}")
    graph = graph_of(op, case, tensors, dtype)
    arrays = [t for t in tensors if t is not None]
    results = []
    for target in (METAL, npusim.TargetConfig.named("metal")):
        session = npusim.load(npusim.compile(graph, target), device=device)
        results.append([np.asarray(one, np.float64) for one in session(*arrays)])
    for theirs, own in zip(*results, strict=True):
        tolerance = 1e-5 if dtype == "float32" else 4e-3
        np.testing.assert_allclose(theirs, own, rtol=tolerance, atol=tolerance)
