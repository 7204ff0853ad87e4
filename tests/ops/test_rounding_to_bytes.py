"""Chains that end in bytes: what division, rounding, zero point, bounds and conversion say one
after the other, whatever the number, on each instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim._runtime import isa_names

EDGES = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1e-40, 3e38, -3e38, 4194303.5, 1e9, -1e9]
NOT_FINITE = [float("inf"), -float("inf"), float("nan")]


class Rounding(nn.Module):
    """Rounds a product to bytes; beside itself, so that rows need not follow each other."""

    def __init__(self, scale: float, zero: int, low: int, high: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.scale, self.zero, self.low, self.high, self.dtype = scale, zero, low, high, dtype

    def codes(self, x: Tensor) -> Tensor:
        """Maps floats [...] to bytes [...]."""
        whole = torch.round(x / self.scale)
        if self.zero:
            whole = whole + self.zero
        return whole.clamp(self.low, self.high).to(self.dtype)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Maps [m, n] and [n] to bytes [m, n], [m, n] and [m, 2 n]."""
        first, second = self.codes(x), self.codes(x * y)
        return first, second, torch.cat([self.codes(y * x), first], 1)


@pytest.mark.parametrize("shape", [(1, 3), (8, 10), (3, 1100)])
@pytest.mark.parametrize(
    "rounding",
    [
        (1.0, 0, 0, 255, torch.uint8),
        (0.25, 127, 0, 255, torch.uint8),
        (1 / 3, -128, -128, 127, torch.int8),
        (1e-30, 7, 3, 200, torch.uint8),
        (1.0, 0, -300, 300, torch.int8),  # wraps
    ],
)
def test_bytes_are_what_the_steps_say(
    shape: tuple[int, int], rounding: tuple[float, int, int, int, torch.dtype]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator) * 100
    edges = torch.tensor([*EDGES, *NOT_FINITE])[: x.numel()]
    x.view(-1)[: len(edges)] = edges
    y = torch.randn(shape[1], generator=generator)
    model = Rounding(*rounding).eval()
    wanted = []
    for found, floats in zip(model(x, y), (x, x * y, torch.cat([y * x, x], 1)), strict=True):
        wanted.append(found.masked_fill(floats.isnan(), 0).numpy())
    program = npusim.compile((model, (x, y)))
    for isa in isa_names():
        session = npusim.load(program, None, npusim.Device("cpu", threads=1, isa=isa))
        for got, expected in zip(session(x, y), wanted, strict=True):
            assert np.array_equal(np.asarray(got), expected), isa
