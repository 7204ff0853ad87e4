"""Small programs that simulations are tested on."""

from __future__ import annotations

from functools import cache

import torch
from torch import nn

import npusim
from npusim.partition.plan import PartitionPlan


class Net(nn.Module):
    """Convolutions, a depthwise one, rows, attention, products, and elements."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.depthwise = nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.norm = nn.LayerNorm(16)
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.depthwise(self.conv(x)))
        y = torch.max_pool2d(y, 2).flatten(2).transpose(1, 2)
        q, k, v = self.qkv(self.norm(y)).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        z = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(z.transpose(1, 2).flatten(2)).softmax(-1).cumsum(-1)


@cache
def net(target: str | npusim.TargetConfig = "npu-edge-32x32") -> npusim.CompiledProgram:
    """Returns the net, compiled for a target."""
    torch.manual_seed(0)
    graph = npusim.extract_ir(Net().eval(), (torch.zeros(1, 3, 16, 16),))
    return npusim.compile(graph, target)


@cache
def rows() -> npusim.CompiledProgram:
    """Returns a linear layer over a number of rows that calls choose, 1 … 512."""
    batch = torch.export.Dim("batch", min=1, max=512)
    graph = npusim.extract_ir(
        nn.Linear(64, 64).eval(), (torch.zeros(8, 64),), dynamic_shapes=({0: batch},)
    )
    return npusim.compile(graph, "npu-edge-32x32")


class Cut(nn.Module):
    """Two layers with something between them that no machine computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 8192)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.last(torch.linalg.det(y.unflatten(-1, (4, 4, 4))).repeat(1, 16))


@cache
def cut(target: str = "npu-edge-32x32") -> PartitionPlan:
    """Returns a plan of three steps, whose middle one is PyTorch's."""
    torch.manual_seed(0)
    graph = npusim.extract_ir(Cut().eval(), (torch.zeros(16, 64),))
    return npusim.partition(graph, target=target)
