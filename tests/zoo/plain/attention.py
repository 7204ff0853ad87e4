"""Attention on pictures: Swin's shifted windows, CoAtNet, an axial network, a small XCiT."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.models.layers import ConvNormAct
from tests.models.mobilenet import InvertedResidual


class WindowAttention(nn.Module):
    """Attention inside windows, with a bias by relative position; shifted by half a window."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.register_buffer("index", _relative(window), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, H, W, C] to the same shape."""
        n, height, width, channels = x.shape
        w = self.window
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        x = x.view(n, height // w, w, width // w, w, channels).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(-1, w * w, channels)
        q, k, v = (
            self.qkv(x)
            .view(-1, w * w, 3, self.heads, channels // self.heads)
            .permute(2, 0, 3, 1, 4)
        )
        bias = self.bias[self.index.view(-1)].view(w * w, w * w, -1).permute(2, 0, 1)[None]
        if self.shift:
            bias = bias + self._mask(height, width, x).repeat(n, 1, 1)[:, None]
        x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        x = self.out(x.transpose(1, 2).reshape(-1, w * w, channels))
        x = x.view(n, height // w, width // w, w, w, channels).permute(0, 1, 3, 2, 4, 5)
        x = x.reshape(n, height, width, channels)
        return x.roll((self.shift, self.shift), (1, 2)) if self.shift else x

    def _mask(self, height: int, width: int, x: Tensor) -> Tensor:
        """Returns [windows, w², w²], -inf between what the roll brought together."""
        w, regions = self.window, x.new_zeros(height, width)
        cuts = (slice(0, -w), slice(-w, -self.shift), slice(-self.shift, None))
        for i, rows in enumerate(cuts):
            for j, columns in enumerate(cuts):
                regions[rows, columns] = 3 * i + j
        tiles = regions.view(height // w, w, width // w, w).permute(0, 2, 1, 3).reshape(-1, w * w)
        apart = tiles[:, None] != tiles[:, :, None]
        return torch.zeros(apart.shape).masked_fill(apart, float("-inf"))


def _relative(window: int) -> Tensor:
    """Returns [w², w²], the number of each pair's difference of positions."""
    axes = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
    positions = torch.stack(axes).flatten(1)
    apart = (positions[:, :, None] - positions[:, None]) + window - 1
    return apart[0] * (2 * window - 1) + apart[1]


class SwinBlock(nn.Module):
    def __init__(self, width: int, shift: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WindowAttention(width, 2, 4, shift)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Merge(nn.Module):
    """Four neighbours become one vector of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * width), nn.Linear(4 * width, 2 * width, False)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x[:, i::2, j::2] for j in (0, 1) for i in (0, 1)]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class Swin(nn.Module):
    """Swin Transformer (Liu et al., arXiv:2103.14030), two stages on 32 x 32."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 16, 4, 4)
        self.blocks = nn.Sequential(
            *(SwinBlock(16, 0), SwinBlock(16, 2), Merge(16), SwinBlock(32, 0))
        )
        self.norm, self.classify = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(self.embed(x).permute(0, 2, 3, 1))
        return self.classify(self.norm(x).mean((1, 2)))


class RelativeAttention(nn.Module):
    """Attention over all positions of a small map, with a bias by relative position."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.norm, self.window = nn.LayerNorm(channels), WindowAttention(channels, 2, size, 0)

    def forward(self, x: Tensor) -> Tensor:
        x = x.permute(0, 2, 3, 1)
        return (x + self.window(self.norm(x))).permute(0, 3, 1, 2)


def coatnet() -> nn.Module:
    """CoAtNet (Dai et al., arXiv:2106.04803): convolutions first, attention last; 64 x 64."""
    return nn.Sequential(
        *(ConvNormAct(3, 16, 3, 2), InvertedResidual(16, 16, 2, 4), InvertedResidual(16, 16, 2, 4)),
        *(RelativeAttention(16, 8), nn.MaxPool2d(2), RelativeAttention(16, 4)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )


class CrossCovariance(nn.Module):
    """XCiT's attention between channels instead of positions (arXiv:2106.09681)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.temperature = nn.Parameter(torch.ones(2, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        n, positions, width = x.shape
        q, k, v = self.qkv(x).view(n, positions, 3, 2, width // 2).permute(2, 0, 3, 4, 1).unbind(0)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        mixed = (scores * self.temperature).softmax(-1) @ v
        return x + self.out(mixed.permute(0, 3, 1, 2).reshape(n, positions, width))


class XCiT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 8, 8)
        self.blocks = nn.Sequential(CrossCovariance(32), nn.LayerNorm(32), CrossCovariance(32))
        self.classify = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.blocks(self.embed(x).flatten(2).transpose(1, 2)).mean(1))
