"""Programs whose target wants rows of 64 bytes, on Metal: the numbers of those without padding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import npusim
from npusim.targets import TargetConfig

METAL = TargetConfig.named("metal:apple7")
PADDED = replace(METAL, channel_align_bytes=64)


class Small(torch.nn.Module):
    """A convolution, a norm, a product and attention-like shapes of odd extents."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 10, 3, padding=1)
        self.deep = torch.nn.Conv2d(10, 10, 3, groups=10)
        self.norm, self.out = torch.nn.LayerNorm(10), torch.nn.Linear(10, 7)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(self.deep(torch.relu(self.conv(x))))
        rows = self.norm(torch.nn.functional.max_pool2d(y, 2).flatten(2).transpose(1, 2))
        scores = torch.softmax(rows @ rows.transpose(1, 2), -1)
        return self.out(scores @ rows), rows.sum(1), rows.cumsum(1)[:, 1:]


@pytest.mark.parametrize("dtype", [torch.float16])
def test_padding_changes_no_number(device: npusim.Device, dtype: torch.dtype) -> None:
    model = Small().eval().to(dtype)
    x = torch.randn(2, 3, 8, 9).to(dtype)
    ir = npusim.extract_ir(model, (x,))
    padded = npusim.compile(ir, PADDED)
    assert any(spec.shape != spec.alloc_shape for spec in padded.methods[0].outputs)
    wanted = npusim.load(npusim.compile(ir, METAL), model.state_dict(), device)(x.numpy())
    for got, want in zip(
        npusim.load(padded, model.state_dict(), device)(x.numpy()), wanted, strict=True
    ):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=2e-3, atol=2e-3)
