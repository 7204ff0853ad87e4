"""DenseNet (Huang et al., arXiv:1608.06993); state_dict keys as torchvision's."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class DenseLayer(nn.Module):
    """Adds `growth` channels computed from all channels before it."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(4 * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Maps the features so far, concatenated, to [N, growth, H, W]."""
        x = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu2(self.norm2(x)))


class DenseBlock(nn.ModuleDict):
    """Layers that each see the results of all layers before them."""

    def __init__(self, inputs: int, growth: int, depth: int) -> None:
        super().__init__()
        for i in range(depth):
            self[f"denselayer{i + 1}"] = DenseLayer(inputs + i * growth, growth)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, inputs, H, W] to [N, inputs + depth·growth, H, W]."""
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


class DenseNet(nn.Module):
    """Dense blocks with halving transitions between them."""

    def __init__(
        self,
        depths: Sequence[int] = (6, 12, 24, 16),
        growth: int = 32,
        channels: int = 64,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv0=nn.Conv2d(3, channels, 7, 2, 3, bias=False),
            norm0=nn.BatchNorm2d(channels),
            relu0=nn.ReLU(inplace=True),
            pool0=nn.MaxPool2d(3, 2, 1),
        )
        for i, depth in enumerate(depths, 1):
            layers[f"denseblock{i}"] = DenseBlock(channels, growth, depth)
            channels += depth * growth
            if i < len(depths):
                layers[f"transition{i}"] = _transition(channels)
                channels //= 2
        layers["norm5"] = nn.BatchNorm2d(channels)
        self.features = nn.Sequential(layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to logits [N, classes]."""
        x = functional.relu(self.features(x), inplace=True)
        return self.classifier(torch.flatten(functional.adaptive_avg_pool2d(x, (1, 1)), 1))


def _transition(channels: int) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            norm=nn.BatchNorm2d(channels),
            relu=nn.ReLU(inplace=True),
            conv=nn.Conv2d(channels, channels // 2, 1, bias=False),
            pool=nn.AvgPool2d(2, 2),
        )
    )
