"""EfficientNet-B0 (Tan & Le, arXiv:1905.11946); state_dict keys as torchvision's."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.models.layers import ConvNormAct, SqueezeExcitation, round_channels


class MBConv(nn.Module):
    """Expand, filter each channel, gate, project."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers: list[nn.Module] = []
        if expand != 1:
            layers.append(ConvNormAct(inputs, hidden, 1, activation=nn.SiLU))
        layers += [
            ConvNormAct(hidden, hidden, kernel, stride, hidden, nn.SiLU),
            SqueezeExcitation(hidden, max(1, inputs // 4), nn.SiLU, nn.Sigmoid),
            ConvNormAct(hidden, outputs, 1, activation=None),
        ]
        self.block = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, inputs, H, W] to [N, outputs, H/stride, W/stride]."""
        return self.block(x) + x if self.residual else self.block(x)


class EfficientNet(nn.Module):
    """The B0 network, or a narrower one."""

    # expansion, kernel, stride, channels, blocks
    STAGES = (
        *((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3)),
        *((6, 5, 1, 112, 3), (6, 5, 2, 192, 4), (6, 3, 1, 320, 1)),
    )

    def __init__(self, width: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        channels = round_channels(32 * width)
        stages: list[nn.Module] = [ConvNormAct(3, channels, 3, 2, activation=nn.SiLU)]
        for expand, kernel, stride, outputs, count in self.STAGES:
            outputs, blocks = round_channels(outputs * width), []
            for index in range(count):
                step = stride if index == 0 else 1
                blocks.append(MBConv(channels, outputs, kernel, step, expand))
                channels = outputs
            stages.append(nn.Sequential(*blocks))
        stages.append(ConvNormAct(channels, 4 * channels, 1, activation=nn.SiLU))
        self.features = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(4 * channels, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
