"""MobileNetV2 (arXiv:1801.04381) and V3-Large (arXiv:1905.02244); keys as torchvision's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.models.layers import ConvNormAct, SqueezeExcitation, round_channels


class InvertedResidual(nn.Module):
    """V2's block: expand, filter each channel, project without an activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers.append(ConvNormAct(inputs, hidden, 1, activation=nn.ReLU6))
        layers += [
            ConvNormAct(hidden, hidden, 3, stride, hidden, nn.ReLU6),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        ]
        self.conv = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, inputs, H, W] to [N, outputs, H/stride, W/stride]."""
        return x + self.conv(x) if self.residual else self.conv(x)


class MobileNetV2(nn.Module):
    """Depthwise separable, inverted residuals."""

    # expansion, channels, blocks, stride of the first
    STAGES = (
        *((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2)),
        *((6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)),
    )

    def __init__(self, width: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        channels = round_channels(32 * width)
        layers: list[nn.Module] = [ConvNormAct(3, channels, 3, 2, activation=nn.ReLU6)]
        for expand, outputs, count, stride in self.STAGES:
            outputs = round_channels(outputs * width)
            for index in range(count):
                step = stride if index == 0 else 1
                layers.append(InvertedResidual(channels, outputs, step, expand))
                channels = outputs
        last = round_channels(1280 * max(1.0, width))
        layers.append(ConvNormAct(channels, last, 1, activation=nn.ReLU6))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to logits [N, classes]."""
        x = nn.functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


class GatedResidual(nn.Module):
    """V3's block: V2's with squeeze-and-excitation and a hard swish where they pay."""

    def __init__(
        self,
        inputs: int,
        hidden: int,
        outputs: int,
        kernel: int,
        stride: int,
        *,
        gated: bool,
        swish: bool,
    ) -> None:
        super().__init__()
        act, eps = nn.Hardswish if swish else nn.ReLU, 1e-3
        layers: list[nn.Module] = []
        if hidden != inputs:
            layers.append(ConvNormAct(inputs, hidden, 1, activation=act, eps=eps))
        layers.append(ConvNormAct(hidden, hidden, kernel, stride, hidden, act, eps))
        if gated:
            squeezed = round_channels(hidden // 4)
            layers.append(SqueezeExcitation(hidden, squeezed, nn.ReLU, nn.Hardsigmoid))
        layers.append(ConvNormAct(hidden, outputs, 1, activation=None, eps=eps))
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, inputs, H, W] to [N, outputs, H/stride, W/stride]."""
        return x + self.block(x) if self.residual else self.block(x)


class MobileNetV3Large(nn.Module):
    """The architecture found by search, at its large size."""

    # kernel, hidden channels, channels, gated, hard swish, stride
    BLOCKS = (
        (3, 16, 16, False, False, 1),
        (3, 64, 24, False, False, 2),
        (3, 72, 24, False, False, 1),
        (5, 72, 40, True, False, 2),
        (5, 120, 40, True, False, 1),
        (5, 120, 40, True, False, 1),
        (3, 240, 80, False, True, 2),
        (3, 200, 80, False, True, 1),
        (3, 184, 80, False, True, 1),
        (3, 184, 80, False, True, 1),
        (3, 480, 112, True, True, 1),
        (3, 672, 112, True, True, 1),
        (5, 672, 160, True, True, 2),
        (5, 960, 160, True, True, 1),
        (5, 960, 160, True, True, 1),
    )

    def __init__(self, width: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        channels, eps = round_channels(16 * width), 1e-3
        layers: list[nn.Module] = [ConvNormAct(3, channels, 3, 2, activation=nn.Hardswish, eps=eps)]
        for kernel, hidden, outputs, gated, swish, stride in self.BLOCKS:
            hidden, outputs = round_channels(hidden * width), round_channels(outputs * width)
            layers.append(
                GatedResidual(channels, hidden, outputs, kernel, stride, gated=gated, swish=swish)
            )
            channels = outputs
        last = 6 * channels
        layers.append(ConvNormAct(channels, last, 1, activation=nn.Hardswish, eps=eps))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        hidden = round_channels(1280 * width)
        self.classifier = nn.Sequential(
            *(nn.Linear(last, hidden), nn.Hardswish(inplace=True)),
            *(nn.Dropout(0.2), nn.Linear(hidden, classes)),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
