"""VGG (Simonyan & Zisserman, arXiv:1409.1556), with or without batch norm; torchvision's keys."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Convolutions a stage; each stage ends in a pooling.
VGG11 = (1, 1, 2, 2, 2)
VGG16 = (2, 2, 3, 3, 3)


class VGG(nn.Module):
    """3 × 3 convolutions, poolings and three linear layers."""

    def __init__(
        self,
        depths: Sequence[int],
        *,
        norm: bool,
        width: int = 64,
        hidden: int = 4096,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage, depth in enumerate(depths):
            outputs = width << min(stage, 3)
            for _ in range(depth):
                layers.append(nn.Conv2d(channels, outputs, 3, padding=1))
                layers += [nn.BatchNorm2d(outputs)] if norm else []
                layers.append(nn.ReLU(inplace=True))
                channels = outputs
            layers.append(nn.MaxPool2d(2, 2))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            *(nn.Linear(channels * 49, hidden), nn.ReLU(inplace=True), nn.Dropout()),
            *(nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Dropout()),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))
