"""PyTorch's own quantization operators: extracted, computed in bytes, equal to PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import npusim
from npusim.passes.run import run_passes
from npusim.targets import TargetConfig

pytest.importorskip("torch.ao.quantization.fx._decomposed")
q = torch.ops.quantized_decomposed
BYTES = (-128, 127, torch.int8)


class Quantized(nn.Module):
    """What pt2e makes of a convolution, a ReLU, pooling and a linear."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in (("conv", (8, 4, 3, 3)), ("linear", (5, 72))):
            weight = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
            self.register_buffer(name, weight)
            scales = 2.0 ** torch.randint(-8, -5, shape[:1], generator=generator)
            self.register_buffer(f"{name}_scale", scales.float())
            self.register_buffer(f"{name}_zero", torch.zeros(shape[0], dtype=torch.int64))
        self.bias = nn.Parameter(torch.randn(8, generator=generator))

    def weight(self, name: str) -> torch.Tensor:
        scale, zero = getattr(self, f"{name}_scale"), getattr(self, f"{name}_zero")
        return q.dequantize_per_channel(getattr(self, name), scale, zero, 0, -127, 127, torch.int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def rounded(t: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
            t = q.quantize_per_tensor(t, scale, zero, *BYTES)
            return q.dequantize_per_tensor(t, scale, zero, *BYTES)

        x = rounded(x, 0.0625, 3)
        y = rounded(F.relu(F.conv2d(x, self.weight("conv"), self.bias)), 0.125, -100)
        y = rounded(F.max_pool2d(y, 2), 0.125, -100)
        return rounded(F.linear(y.flatten(1), self.weight("linear")), 0.5, 0)


def test_quantized_model() -> None:
    model = Quantized().eval()
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    ir = npusim.extract_ir(model, (x,))
    graph = run_passes(ir, TargetConfig.named("cpu"))
    ops = [node.op for node in graph.nodes]
    assert ops.count("npu.int8_conv") == ops.count("npu.int8_matmul") == 1
    assert "npu.conv" not in ops
    assert "npu.linear" not in ops
    run = npusim.load(npusim.compile(ir), model.state_dict())
    apart = (run(x)[0] - model(x)).abs()
    assert apart.max() <= 0.5  # one step, where a sum lies between two bytes
    assert (apart > 0).float().mean() < 0.05
