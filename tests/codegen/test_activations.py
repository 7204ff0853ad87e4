"""Activations behind products, at every number of 16 bits, against their definitions in float64."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from tests.codegen import host
from tests.codegen.cases import TARGET


class Activated(nn.Module):
    """A product by one, and what follows it."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.one = nn.Linear(1, 1, bias=False)
        nn.init.ones_(self.one.weight)
        self.act = {
            "gelu": nn.GELU(),
            "gelu_tanh": nn.GELU("tanh"),
            "silu": nn.SiLU(),
            "sigmoid": nn.Sigmoid(),
        }[name]

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 1] to the same shape."""
        return self.act(self.one(x))


def _defined(name: str, x: Tensor) -> Tensor:
    """By formulas in which nothing cancels; `x` is float64."""
    if name == "gelu":
        return x * torch.exp(torch.special.log_ndtr(x))
    if name == "gelu_tanh":
        return x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3))
    return torch.sigmoid(x) * (x if name == "silu" else 1)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize(
    "name",
    ["gelu", *(pytest.param(n, marks=pytest.mark.long) for n in ("gelu_tanh", "silu", "sigmoid"))],
)
def test_every_number(name: str, tmp_path: Path) -> None:
    """Within one unit in the last place of what is nearest; tails below 1e-9 stay there."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16)[:, None]
    inputs = {dtype: every.view(dtype) for dtype in (torch.float16, torch.bfloat16)}
    models = {dtype: Activated(name).to(dtype).eval() for dtype in inputs}
    programs = {
        dtype: assemble(run_passes(npusim.extract_ir(models[dtype], (x,)), TARGET), TARGET)
        for dtype, x in inputs.items()
    }
    kernels = host.build(host.keys_of(programs.values()), tmp_path)
    for dtype, x in inputs.items():
        weights = {"one.weight": _bytes(models[dtype].one.weight.detach())}
        (data,) = host.run_program(programs[dtype], kernels, [_bytes(x)], weights)
        got = torch.frombuffer(bytearray(data), dtype=dtype).reshape(x.shape)
        want = _defined(name, x.double()).to(dtype)
        apart = (_place(got) - _place(want)).abs()[x.isfinite()]
        tiny = want.abs()[x.isfinite()] < 1e-9
        assert bool((apart[~tiny] <= 1).all()), dtype
        assert bool((got[x.isfinite()][tiny].abs() < 1e-9).all()), dtype
        assert bool(got[x.isnan()].isnan().all())
        assert got[x == torch.inf].item() == (1 if name == "sigmoid" else torch.inf)


def _bytes(t: Tensor) -> bytes:
    return bytes(t.view(torch.uint8).numpy())


def _place(y: Tensor) -> Tensor:
    """Numbers in their order, one apart; both zeros are one."""
    bits = y.view(torch.int16).int()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)
