"""Token mixers other than attention: MLP-Mixer, ResMLP, gMLP, ConvMixer, PoolFormer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, PATCHES = 32, 16


class Patches(nn.Module):
    """Non-overlapping patches of 8 x 8 as vectors [N, PATCHES, WIDTH]."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, WIDTH, 8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.project(x).flatten(2).transpose(1, 2)


class Head(nn.Module):
    """The mean over positions, classified."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.classify = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.norm(x).mean(1))


def _mlp(width: int, hidden: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class MixerBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.tokens, self.channels = _mlp(PATCHES, 24), _mlp(WIDTH, 48)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).mT).mT
        return x + self.channels(self.norm2(x))


def mlp_mixer() -> nn.Module:
    """MLP-Mixer (Tolstikhin et al., arXiv:2105.01601)."""
    return nn.Sequential(Patches(), MixerBlock(), MixerBlock(), Head())


class Affine(nn.Module):
    """ResMLP's substitute for a norm: a scale and a shift."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.shift = nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x, self.scale)


class ResidualMLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = Affine(), Affine()
        self.tokens, self.channels = nn.Linear(PATCHES, PATCHES), _mlp(WIDTH, 48)
        self.scale = nn.Parameter(torch.full((2, WIDTH), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.scale[0] * self.tokens(self.before(x).transpose(1, 2)).transpose(1, 2)
        return x + self.scale[1] * self.channels(self.after(x))


def resmlp() -> nn.Module:
    """ResMLP (Touvron et al., arXiv:2105.03404)."""
    return nn.Sequential(Patches(), ResidualMLP(), ResidualMLP(), Head())


class GatedMLP(nn.Module):
    """gMLP's block: half of the channels gate the others along the positions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.grow, self.shrink = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 64),
            nn.Linear(32, WIDTH),
        )
        self.gate_norm = nn.LayerNorm(32)
        self.along = nn.Conv1d(PATCHES, PATCHES, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept, gate = nn.functional.gelu(self.grow(self.norm(x))).chunk(2, dim=-1)
        return x + self.shrink(kept * self.along(self.gate_norm(gate)))


def gmlp() -> nn.Module:
    """gMLP (Liu et al., arXiv:2105.08050)."""
    return nn.Sequential(Patches(), GatedMLP(), GatedMLP(), Head())


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x)


def convmixer() -> nn.Module:
    """ConvMixer (Trockman and Kolter, arXiv:2201.09792): depthwise "same", then pointwise."""
    blocks: list[nn.Module] = []
    for _ in range(2):
        spatial = nn.Conv2d(WIDTH, WIDTH, 5, groups=WIDTH, padding="same")
        blocks += [Residual(spatial, nn.GELU(), nn.BatchNorm2d(WIDTH))]
        blocks += [nn.Conv2d(WIDTH, WIDTH, 1), nn.GELU(), nn.BatchNorm2d(WIDTH)]
    stem = (nn.Conv2d(3, WIDTH, 4, 4), nn.GELU(), nn.BatchNorm2d(WIDTH))
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10)
    )


class Pool(nn.Module):
    """PoolFormer's mixer: the difference from the mean of the neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.pool(x) - x


def poolformer() -> nn.Module:
    """PoolFormer (Yu et al., arXiv:2111.11418)."""
    blocks: list[nn.Module] = []
    for _ in range(2):
        mlp = (nn.Conv2d(WIDTH, 48, 1), nn.GELU(), nn.Conv2d(48, WIDTH, 1))
        blocks += [Residual(nn.GroupNorm(1, WIDTH), Pool())]
        blocks += [Residual(nn.GroupNorm(1, WIDTH), *mlp)]
    return nn.Sequential(nn.Conv2d(3, WIDTH, 7, 4, 2), *blocks, nn.Flatten(2), Transposed(), Head())


class Transposed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)
