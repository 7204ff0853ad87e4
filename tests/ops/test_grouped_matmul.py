"""Products of groups of rows: what PyTorch and transformers export for experts runs natively."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.ops.grouped_matmul import reference_grouped_matmul


class Experts(nn.Module):
    """Rows of x[m, 32], grouped by `offsets`, by matrices stored as [out, in]."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(4, 16, 32, generator=generator).to(dtype))

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        weight = self.weight.transpose(1, 2)
        if weight.dtype == torch.bfloat16:  # what PyTorch exports, in this dtype alone
            return nn.functional.grouped_mm(x, weight, offs=offsets)
        return torch.ops.transformers.grouped_mm_fallback(x, weight, offsets)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_experts_run_natively(dtype: str) -> None:
    pytest.importorskip("transformers.integrations.moe")  # defines its operator
    model = Experts(getattr(torch, dtype)).eval()
    x = torch.randn(21, 32).to(getattr(torch, dtype))
    offsets = torch.tensor([2, 2, 17, 20], dtype=torch.int32)
    graph = npusim.extract_ir(model, (x, offsets))
    assert npusim.check(graph).coverage == 1.0
    run = npusim.load(npusim.compile(graph), weights=model.state_dict())
    for ends in (offsets, torch.tensor([0, 21, 21, 21], dtype=torch.int32)):
        want = reference_grouped_matmul(x.float(), model.weight.float().transpose(1, 2), ends)
        (got,) = run(x, ends)
        torch.testing.assert_close(got, want.to(got.dtype), rtol=1.6e-2, atol=1e-2)
        assert not want[int(ends[-1]) :].any(), "a row after all groups is 0"


def test_other_groups_are_left_to_pytorch() -> None:
    class Gradient(nn.Module):
        def forward(self, x: Tensor, y: Tensor, offsets: Tensor) -> Tensor:
            return nn.functional.grouped_mm(x, y, offs=offsets)

    x, y = torch.randn(16, 32).bfloat16(), torch.randn(32, 8).bfloat16()
    offsets = torch.tensor([16, 32], dtype=torch.int32)
    graph = npusim.extract_ir(Gradient().eval(), (x, y, offsets))
    assert graph.outputs and graph.nodes[0].type.shape == (2, 16, 8)
    (other,) = npusim.check(graph).others
    assert other.reason == "groups of a 2-dimensional and a 2-dimensional operand"
