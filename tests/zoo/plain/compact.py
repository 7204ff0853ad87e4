"""Networks for small machines: ShuffleNetV2, GhostNet, MNASNet, RepVGG, MobileOne."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.models.layers import ConvNormAct
from tests.models.mobilenet import InvertedResidual


class Shuffle(nn.Module):
    """ShuffleNetV2's block (Ma et al., arXiv:1807.11164): half of the channels pass by."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half, self.stride = outputs // 2, stride
        ways = inputs if stride == 2 else inputs // 2
        self.main = nn.Sequential(
            ConvNormAct(ways, half, 1),
            ConvNormAct(half, half, 3, stride, half, activation=None),
            ConvNormAct(half, half, 1),
        )
        self.beside = nn.Sequential(
            ConvNormAct(inputs, inputs, 3, stride, inputs, activation=None),
            ConvNormAct(inputs, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.stride == 2:
            beside, main = self.beside(x), self.main(x)
        else:
            beside, main = x.chunk(2, dim=1)
            main = self.main(main)
        joined = torch.cat([beside, main], 1)
        n, c, h, w = joined.shape
        return joined.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet_v2() -> nn.Module:
    return nn.Sequential(
        *(ConvNormAct(3, 16, 3, 2), nn.MaxPool2d(3, 2, 1)),
        *(Shuffle(16, 24, 2), Shuffle(24, 24, 1), Shuffle(24, 48, 2), Shuffle(48, 48, 1)),
        *(ConvNormAct(48, 64, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )


class Ghost(nn.Module):
    """GhostNet's module (Han et al., arXiv:1911.11907): cheap copies of half of the channels."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.primary = ConvNormAct(inputs, outputs // 2, 1)
        self.cheap = ConvNormAct(outputs // 2, outputs // 2, 3, groups=outputs // 2)
        self.outputs = outputs

    def forward(self, x: Tensor) -> Tensor:
        primary = self.primary(x)
        return torch.cat([primary, self.cheap(primary)], 1)[:, : self.outputs]


class GhostBottleneck(nn.Module):
    def __init__(self, inputs: int, hidden: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.main = nn.Sequential(
            Ghost(inputs, hidden),
            *([ConvNormAct(hidden, hidden, 3, 2, hidden, None)] if stride == 2 else []),
            Ghost(hidden, outputs),
        )
        self.beside = ConvNormAct(inputs, outputs, 1, stride, activation=None)

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x) + self.beside(x)


def ghostnet() -> nn.Module:
    return nn.Sequential(
        ConvNormAct(3, 8, 3, 2, activation=nn.Hardswish),
        *(GhostBottleneck(8, 16, 16, 2), GhostBottleneck(16, 32, 24, 2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)),
    )


def mnasnet() -> nn.Module:
    """MNASNet (Tan et al., arXiv:1807.11626): blocks of MobileNetV2, sizes found by search."""
    return nn.Sequential(
        *(ConvNormAct(3, 8, 3, 2), ConvNormAct(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1)),
        *(InvertedResidual(8, 16, 2, 3), InvertedResidual(16, 16, 1, 3)),
        *(InvertedResidual(16, 24, 2, 6), InvertedResidual(24, 24, 1, 6)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)),
    )


class Rep(nn.Module):
    """A sum of branches that training keeps apart: k x k convolutions, 1 x 1, the identity."""

    def __init__(self, inputs: int, outputs: int, stride: int, branches: int, groups: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            ConvNormAct(inputs, outputs, 3, stride, groups, None) for _ in range(branches)
        )
        self.point = ConvNormAct(inputs, outputs, 1, stride, groups, None)
        self.skip = nn.BatchNorm2d(inputs) if inputs == outputs and stride == 1 else None

    def forward(self, x: Tensor) -> Tensor:
        total = self.point(x)
        for branch in self.branches:
            total = total + branch(x)
        return torch.relu(total if self.skip is None else total + self.skip(x))


def repvgg() -> nn.Module:
    """RepVGG as it is trained (Ding et al., arXiv:2101.03697)."""
    sizes = ((3, 8, 2), (8, 16, 2), (16, 16, 1), (16, 24, 2), (24, 24, 1))
    blocks = (Rep(i, o, s, 1, 1) for i, o, s in sizes)
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


def mobileone() -> nn.Module:
    """MobileOne as it is trained (Vasu et al., arXiv:2206.04040): depthwise and pointwise sums."""
    layers: list[nn.Module] = [Rep(3, 8, 2, 1, 1)]
    for inputs, outputs, stride in ((8, 16, 2), (16, 16, 1), (16, 24, 2)):
        layers += [Rep(inputs, inputs, stride, 3, inputs), ConvNormAct(inputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))
