"""The first deep networks: LeNet-5, AlexNet, network in network, SqueezeNet, GoogLeNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.models.layers import ConvNormAct


def lenet() -> nn.Module:
    """LeNet-5 (LeCun et al., 1998) on one channel of 32 x 32."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2)),
        *(nn.Conv2d(16, 120, 5), nn.Tanh(), nn.Flatten()),
        *(nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, 10)),
    )


def alexnet(width: int = 8) -> nn.Module:
    """AlexNet (Krizhevsky et al., 2012), with its local response normalization."""
    return nn.Sequential(
        *(nn.Conv2d(3, width, 11, 4, 2), nn.ReLU(inplace=True), nn.LocalResponseNorm(5)),
        nn.MaxPool2d(3, 2),
        *(nn.Conv2d(width, 2 * width, 5, padding=2, groups=2), nn.ReLU(inplace=True)),
        *(nn.LocalResponseNorm(5), nn.MaxPool2d(3, 2)),
        *(nn.Conv2d(2 * width, 3 * width, 3, padding=1), nn.ReLU(inplace=True)),
        *(nn.AdaptiveAvgPool2d((2, 2)), nn.Flatten(), nn.Dropout()),
        *(nn.Linear(12 * width, 32), nn.ReLU(inplace=True), nn.Linear(32, 10)),
    )


def network_in_network() -> nn.Module:
    """Convolutions of size one between the others (Lin et al., arXiv:1312.4400)."""

    def block(inputs: int, outputs: int, kernel: int) -> nn.Module:
        sizes = ((inputs, kernel), (outputs, 1), (outputs, 1))
        layers = (nn.Conv2d(i, outputs, k, padding=k // 2) for i, k in sizes)
        return nn.Sequential(*(m for layer in layers for m in (layer, nn.ReLU())))

    return nn.Sequential(
        *(block(3, 16, 5), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(block(16, 24, 5), nn.AvgPool2d(3, 2, ceil_mode=True)),
        *(block(24, 10, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


class Fire(nn.Module):
    """SqueezeNet's block: a narrow layer, then two wide ones side by side."""

    def __init__(self, inputs: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeezed, 1)
        self.expand1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand3 = nn.Conv2d(squeezed, expanded, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.squeeze(x))
        return torch.cat([torch.relu(self.expand1(x)), torch.relu(self.expand3(x))], 1)


def squeezenet() -> nn.Module:
    """SqueezeNet 1.1 (Iandola et al., arXiv:1602.07360)."""
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(Fire(16, 4, 12), Fire(24, 4, 12), nn.MaxPool2d(3, 2, ceil_mode=True)),
        *(Fire(24, 6, 16), Fire(32, 6, 16), nn.Conv2d(32, 10, 1), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )


class Inception(nn.Module):
    """GoogLeNet's block: four ways side by side."""

    def __init__(self, inputs: int, one: int, three: int, five: int, pooled: int) -> None:
        super().__init__()
        self.ways = nn.ModuleList(
            [
                ConvNormAct(inputs, one, 1),
                nn.Sequential(
                    ConvNormAct(inputs, three // 2, 1), ConvNormAct(three // 2, three, 3)
                ),
                nn.Sequential(ConvNormAct(inputs, five // 2, 1), ConvNormAct(five // 2, five, 5)),
                nn.Sequential(nn.MaxPool2d(3, 1, 1), ConvNormAct(inputs, pooled, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([way(x) for way in self.ways], 1)


def googlenet() -> nn.Module:
    """GoogLeNet (Szegedy et al., arXiv:1409.4842) with batch norm."""
    return nn.Sequential(
        *(ConvNormAct(3, 16, 7, 2), nn.MaxPool2d(3, 2, ceil_mode=True), ConvNormAct(16, 24, 3)),
        *(Inception(24, 8, 16, 4, 4), Inception(32, 12, 20, 8, 8)),
        *(nn.MaxPool2d(3, 2, ceil_mode=True), Inception(48, 16, 24, 12, 12)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10)),
    )
