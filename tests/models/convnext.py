"""ConvNeXt (Liu et al., arXiv:2201.03545); state_dict keys as torchvision's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class LayerNorm2d(nn.LayerNorm):
    """Layer norm over the channels of [N, C, H, W]."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalises every pixel's channels."""
        x = x.permute(0, 2, 3, 1)
        x = functional.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class Permute(nn.Module):
    """Reorders dimensions."""

    def __init__(self, *dims: int) -> None:
        super().__init__()
        self.dims = dims

    def forward(self, x: Tensor) -> Tensor:
        """Returns a permuted view."""
        return torch.permute(x, self.dims)


class Block(nn.Module):
    """A 7 × 7 depthwise convolution and an MLP on every pixel, scaled, around a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv2d(channels, channels, 7, padding=3, groups=channels),
            Permute(0, 2, 3, 1),
            nn.LayerNorm(channels, eps=1e-6),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
            Permute(0, 3, 1, 2),
        )
        self.layer_scale = nn.Parameter(torch.full((channels, 1, 1), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, C, H, W] to the same shape."""
        return x + self.layer_scale * self.block(x)


class ConvNeXt(nn.Module):
    """Four stages of blocks after a patchifying stem."""

    def __init__(
        self,
        depths: Sequence[int] = (3, 3, 9, 3),
        widths: Sequence[int] = (96, 192, 384, 768),
        classes: int = 1000,
    ) -> None:
        super().__init__()
        stem = nn.Sequential(nn.Conv2d(3, widths[0], 4, 4), LayerNorm2d(widths[0], eps=1e-6))
        layers: list[nn.Module] = [stem]
        for i, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            layers.append(nn.Sequential(*(Block(width) for _ in range(depth))))
            if i + 1 < len(depths):
                shrink = nn.Conv2d(width, widths[i + 1], 2, 2)
                layers.append(nn.Sequential(LayerNorm2d(width, eps=1e-6), shrink))
        self.features = nn.Sequential(*layers)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            LayerNorm2d(widths[-1], eps=1e-6), nn.Flatten(1), nn.Linear(widths[-1], classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to logits [N, classes]."""
        return self.classifier(self.avgpool(self.features(x)))
