"""`verify` for described machines: programs and plans compared with PyTorch, as for all targets."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

import npusim
from npusim.targets import TargetConfig
from tests.frontends.test_quantized import Quantized


class Encoder(nn.Module):
    """A convolution, attention over its pixels, a norm and a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 4, 4)
        self.attention = nn.MultiheadAttention(24, 3, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.patches(x).flatten(2).transpose(1, 2)
        z, _ = self.attention(y, y, y, need_weights=False)
        return self.head(self.norm(y + z)).mean(1)


def test_a_program() -> None:
    torch.manual_seed(0)
    model, x = Encoder().eval(), torch.randn(2, 3, 16, 16)
    program = npusim.compile(npusim.extract_ir(model, (x,)), "npu-edge-32x32")
    ok, report = npusim.verify_program(
        program, state_dict=model.state_dict(), original_model=model, test_inputs=(x,)
    )
    assert ok, report


def test_a_device_without_the_kernel_refuses_bytes() -> None:
    """Floats in the place of a machine's integers would be other values; the host has theirs."""
    model = Quantized().eval()
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    graph = npusim.extract_ir(model, (x,))
    whole = TargetConfig.named("npu-edge-32x32")
    lacking = replace(whole, kernels=tuple(k for k in whole.kernels if "int8" not in k))
    with pytest.raises(npusim.UnsupportedOpError, match=r"has no kernel '(conv|pack)_int8'"):
        npusim.compile(graph, lacking)
    plan = npusim.partition(graph, target=lacking)
    left = {n.op for n in plan.graph.nodes if not plan.verdicts[n.name].is_native}
    assert {"npu.int8_conv", "npu.int8_matmul"} <= left
    (there,), (here,) = (
        npusim.DAGExecutor(npusim.partition(graph, target=target), summary=False).load_weights(
            model.state_dict()
        )(x)
        for target in (whole, lacking)
    )
    torch.testing.assert_close(here, there, rtol=0, atol=0)


def test_a_plan_with_the_host() -> None:
    model = Quantized().eval()
    x = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    graph = npusim.extract_ir(model, (x,))
    for name in ("gemmini-8", "ethos-u55-256"):
        plan = npusim.partition(graph, target=TargetConfig.named(name))
        assert {p.executor for p in plan.partitions} == {"native", "pytorch"}
        ok, report = npusim.verify_plan(
            plan, state_dict=model.state_dict(), original_model=model, test_inputs=(x,),
            tolerance=0.5, edges=False,
        )  # fmt: skip
        assert ok, report  # one step of the result, where a sum lies between two bytes
