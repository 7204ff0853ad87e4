"""An answer for each pixel: FCN, U-Net, PSPNet, DeepLabV3, HRNet."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.layers import ConvNormAct

CLASSES = 5


def _like(x: Tensor, other: Tensor) -> Tensor:
    return F.interpolate(x, size=other.shape[-2:], mode="bilinear", align_corners=False)


class FCN(nn.Module):
    """A fully convolutional network with skips (Long et al., arXiv:1411.4038)."""

    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(ConvNormAct(i, o, 3), nn.MaxPool2d(2))
            for i, o in ((3, 8), (8, 16), (16, 24))
        )
        self.scores = nn.ModuleList(nn.Conv2d(o, CLASSES, 1) for o in (8, 16, 24))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(CLASSES, CLASSES, 4, 2, 1, bias=False) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        maps = []
        for stage in self.stages:
            x = stage(x)
            maps.append(x)
        total: Tensor | float = 0.0
        for up, score, features in list(zip(self.up, self.scores, maps, strict=True))[::-1]:
            total = up(score(features) + total)
        return total


class UNet(nn.Module):
    """U-Net (Ronneberger et al., arXiv:1505.04597) with padded convolutions."""

    WIDTHS = (8, 16, 24)

    def __init__(self) -> None:
        super().__init__()
        pairs = list(zip((3, *self.WIDTHS), self.WIDTHS, strict=False))
        self.down = nn.ModuleList(self._twice(i, o) for i, o in pairs)
        self.bottom = self._twice(24, 32)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(i, o, 2, 2) for i, o in ((32, 24), (24, 16), (16, 8))
        )
        self.merge = nn.ModuleList(self._twice(2 * o, o) for o in self.WIDTHS[::-1])
        self.classify = nn.Conv2d(8, CLASSES, 1)

    @staticmethod
    def _twice(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(ConvNormAct(inputs, outputs, 3), ConvNormAct(outputs, outputs, 3))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down in self.down:
            skips.append(down(x))
            x = F.max_pool2d(skips[-1], 2)
        x = self.bottom(x)
        for up, merge, skip in zip(self.up, self.merge, skips[::-1], strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        return self.classify(x)


def _backbone() -> nn.Module:
    return nn.Sequential(
        *(ConvNormAct(3, 8, 3, 2), ConvNormAct(8, 16, 3, 2)),
        *(nn.Conv2d(16, 24, 3, padding=2, dilation=2, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
    )


class PSPNet(nn.Module):
    """Pyramid pooling (Zhao et al., arXiv:1612.01105)."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = _backbone()
        self.pools = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(bins), ConvNormAct(24, 6, 1))
            for bins in (1, 2, 3, 6)
        )
        self.classify = nn.Sequential(ConvNormAct(48, 16, 3), nn.Conv2d(16, CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        features = self.backbone(x)
        pooled = [_like(pool(features), features) for pool in self.pools]
        return _like(self.classify(torch.cat([features, *pooled], 1)), x)


class DeepLabV3(nn.Module):
    """Atrous spatial pyramid pooling (Chen et al., arXiv:1706.05587), with V3+'s decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = ConvNormAct(3, 8, 3, 2), _backbone()[1:]
        self.rates = nn.ModuleList(nn.Conv2d(24, 8, 3, padding=r, dilation=r) for r in (1, 2, 4))
        self.pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 8, 1), nn.ReLU())
        self.classify = nn.Sequential(ConvNormAct(40, 16, 3), nn.Conv2d(16, CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        low = self.low(x)
        high = self.high(low)
        parts = [torch.relu(rate(high)) for rate in self.rates]
        parts.append(self.pooled(high).expand(-1, -1, *high.shape[-2:]))
        return _like(self.classify(torch.cat([low, _like(torch.cat(parts, 1), low)], 1)), x)


class HRNet(nn.Module):
    """Two resolutions in parallel that exchange what they see (Wang et al., arXiv:1908.07919)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNormAct(3, 8, 3, 2)
        self.split = ConvNormAct(8, 16, 3, 2)
        self.high = nn.ModuleList(ConvNormAct(8, 8, 3) for _ in range(2))
        self.low = nn.ModuleList(ConvNormAct(16, 16, 3) for _ in range(2))
        self.up = nn.ModuleList(ConvNormAct(16, 8, 1, activation=None) for _ in range(2))
        self.down = nn.ModuleList(ConvNormAct(8, 16, 3, 2, activation=None) for _ in range(2))
        self.classify = nn.Conv2d(24, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.stem(x)
        low = self.split(high)
        for i in range(2):
            high, low = self.high[i](high), self.low[i](low)
            risen = F.interpolate(self.up[i](low), scale_factor=2, mode="nearest")
            high, low = torch.relu(high + risen), torch.relu(low + self.down[i](high))
        return self.classify(torch.cat([high, _like(low, high)], 1))
