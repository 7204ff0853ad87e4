"""Residual networks after ResNet: wider, grouped, gated, pre-activated, with attention."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from tests.models.layers import ConvNormAct, SqueezeExcitation

Gate = Callable[[int], nn.Module]


class Block(nn.Module):
    """A bottleneck; `gate` scales what the block adds."""

    def __init__(
        self, inputs: int, outputs: int, middle: int, stride: int, groups: int, gate: Gate | None
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            ConvNormAct(inputs, middle, 1),
            ConvNormAct(middle, middle, 3, stride, groups),
            ConvNormAct(middle, outputs, 1, activation=None),
            *([gate(outputs)] if gate else []),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else ConvNormAct(inputs, outputs, 1, stride, activation=None)

    def forward(self, x: Tensor) -> Tensor:
        short = x if self.shortcut is None else self.shortcut(x)
        return torch.relu(self.layers(x) + short)


def _network(middle: float, groups: int = 1, gate: Gate | None = None) -> nn.Module:
    widths = (16, 24, 32)
    layers: list[nn.Module] = [ConvNormAct(3, 16, 3, 2)]
    for index, outputs in enumerate(widths):
        inputs = widths[max(index - 1, 0)]
        for first in (True, False):
            stride = 2 if first and index else 1
            layers.append(
                Block(
                    inputs if first else outputs,
                    outputs,
                    int(outputs * middle),
                    stride,
                    groups,
                    gate,
                )
            )
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))


def resnext() -> nn.Module:
    """ResNeXt (Xie et al., arXiv:1611.05431): grouped convolutions in the bottleneck."""
    return _network(0.5, groups=4)


def wide_resnet() -> nn.Module:
    """A wide residual network (Zagoruyko and Komodakis, arXiv:1605.07146)."""
    return _network(2.0)


def regnet_y() -> nn.Module:
    """RegNetY (Radosavovic et al., arXiv:2003.13678): group width fixed, a gate in each block."""
    return _network(1.0, groups=2, gate=_squeeze)


def se_resnet() -> nn.Module:
    """ResNet with squeeze and excitation (Hu et al., arXiv:1709.01507)."""
    return _network(0.5, gate=_squeeze)


def eca_resnet() -> nn.Module:
    """ResNet with efficient channel attention (Wang et al., arXiv:1910.03151)."""
    return _network(0.5, gate=lambda channels: ChannelAttention())


def cbam_resnet() -> nn.Module:
    """ResNet with channel and spatial attention (Woo et al., arXiv:1807.06521)."""
    return _network(0.5, gate=lambda c: nn.Sequential(BothPools(c), SpatialAttention()))


def _squeeze(channels: int) -> nn.Module:
    return SqueezeExcitation(channels, channels // 4, nn.ReLU, nn.Sigmoid)


class ChannelAttention(nn.Module):
    """A gate for each channel from the means of its neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(1, 1, 3, padding=1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean((2, 3)).unsqueeze(1)
        return x * self.conv(means).transpose(1, 2).unsqueeze(-1).sigmoid()


class BothPools(nn.Module):
    """A gate for each channel from its mean and its maximum."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(channels, channels // 2), nn.ReLU(), nn.Linear(channels // 2, channels)
        )

    def forward(self, x: Tensor) -> Tensor:
        gate = self.layers(x.mean((2, 3))) + self.layers(x.amax((2, 3)))
        return x * gate.sigmoid()[:, :, None, None]


class SpatialAttention(nn.Module):
    """A gate for each position from the mean and the maximum of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 1, 7, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True).values], 1)
        return x * self.conv(pooled).sigmoid()


class PreActivation(nn.Module):
    """Norm and activation before each convolution (He et al., arXiv:1603.05027)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.BatchNorm2d(inputs), nn.BatchNorm2d(outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = torch.relu(self.norm1(x))
        return self.conv2(torch.relu(self.norm2(self.conv1(active)))) + self.shortcut(active)


def preact_resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        *(PreActivation(16, 16, 1), PreActivation(16, 24, 2), PreActivation(24, 32, 2)),
        *(nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        nn.Linear(32, 10),
    )
