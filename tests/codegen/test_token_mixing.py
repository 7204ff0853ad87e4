"""Products with W from the left: one command computes what a linear between transpositions does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import npusim
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.token_mixing import token_mixing
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from tests.codegen import host
from tests.codegen.cases import TARGET, examples
from tests.codegen.test_kernels import _bytes, _check, check_spilling

needs_compiler = pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler for kernels")


@needs_compiler
def test_products_are_what_pytorch_computes(tmp_path: Path) -> None:
    chosen = [e for e in examples("npu.token_mixing") if e.dtype != "bfloat16"]
    keys = host.keys_of(e.program for e in chosen)
    assert "token_mixing" in {stem for stem, _ in keys}
    for unwritten in (0, 2):  # weights that are loaded after the wait, and before
        kernels = host.build(keys, tmp_path, unwritten=unwritten)
        for example in chosen:
            given = [_bytes(t) for t in example.tensors if t is not None]
            _check(example, host.run_program(example.program, kernels, given))


class Mixed(nn.Module):
    """Tokens mixed by a product from the left, between two formulas."""

    def __init__(self, tokens: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(tokens, hidden), nn.Linear(hidden, tokens)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [batch, tokens, channels] to the same."""
        y = nn.functional.gelu(self.first((2 * x).transpose(1, 2)))
        return x + self.second(y).transpose(1, 2)


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_layers_of_mixers(dtype: torch.dtype, tmp_path: Path) -> None:
    """A number that is not finite reaches its own column alone; padded rows of W reach none."""
    torch.manual_seed(0)
    model, x = Mixed(49, 20).to(dtype).eval(), torch.randn(2, 49, 40).to(dtype)
    x[0, 48, 3], x[1, 48, 7] = torch.nan, torch.inf
    graph = run_passes(npusim.extract_ir(model, (x,)), TARGET)
    program = assemble(graph, TARGET)
    stems = [program.kernels[c.kernel].name for c in program.methods[0].commands]
    assert stems == ["pointwise", "token_mixing", "token_mixing"]
    kernels = host.build(host.keys_of([program]), tmp_path)
    weights = {key: _bytes(t) for key, t in model.state_dict().items()}
    (out,) = host.run_program(program, kernels, [_bytes(x)], weights)
    got = torch.frombuffer(bytearray(out), dtype=dtype).reshape(x.shape)
    wanted = model.double()(x.double())
    error = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}[dtype]
    torch.testing.assert_close(got.double(), wanted, rtol=error, atol=error, equal_nan=True)


def test_products_compile_without_spilling(compiler: nvrtc.Nvrtc) -> None:
    chosen = (e for e in examples("npu.token_mixing") if e.dtype in ("float32", "float16"))
    keys = [key for key in host.keys_of(e.program for e in chosen) if key[0] == "token_mixing"]
    check_spilling(keys, "sm_90a", compiler)


@pytest.mark.parametrize(
    ("batch", "m", "n", "grid"),
    [(1, 384, 768, (6, 12, 1)), (8, 384, 768, (48, 6, 1)), (64, 196, 768, (128, 6, 1))],
)
def test_items_follow_one_another(batch: int, m: int, n: int, grid: tuple[int, ...]) -> None:
    p = {"batch": batch, "m": m, "n": n, "k": 196, "x_dtype": 1, "w_dtype": 1}
    assert token_mixing({**p, "has_bias": 1, "residual": 0}).launches[0].grid == grid


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_target_without_the_kernel_transposes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, x = Mixed(49, 20).to(dtype).eval(), torch.randn(2, 49, 40).to(dtype)
    graph = run_passes(npusim.extract_ir(model, (x,)), TARGET)
    assert [n.op for n in graph.nodes].count("npu.token_mixing") == 2
    less = replace(TARGET, kernels=tuple(k for k in TARGET.kernels if k != "token_mixing"))
    program = assemble(graph, less)
    assert "linear" in {kernel.name for kernel in program.kernels}
