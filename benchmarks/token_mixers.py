"""Networks for benchmarks that multiply along tokens or along time, written from their papers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Along(nn.Module):
    """Layers over the second-to-last dimension, between two transpositions."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, tokens, channels] to [N, tokens after, channels]."""
        y: Tensor = self.layers(x.transpose(1, 2)).transpose(1, 2)
        return y


def _mlp(inputs: int, hidden: int, act: type[nn.Module] = nn.GELU) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), act(), nn.Linear(hidden, inputs))


class MixerBlock(nn.Module):
    """MLP-Mixer's (Tolstikhin et al., arXiv:2105.01601)."""

    def __init__(self, tokens: int, channels: int) -> None:
        super().__init__()
        self.tokens = nn.Sequential(nn.LayerNorm(channels), Along(_mlp(tokens, channels // 2)))
        self.channels = nn.Sequential(nn.LayerNorm(channels), _mlp(channels, 4 * channels))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, tokens, channels] to the same."""
        x = x + self.tokens(x)
        y: Tensor = x + self.channels(x)
        return y


class ResidualBlock(nn.Module):
    """ResMLP's (Touvron et al., arXiv:2105.03404): affine maps in place of norms, layer scales."""

    def __init__(self, tokens: int, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Parameter(torch.ones(2, channels)) for _ in range(2))
        self.scales = nn.Parameter(torch.full((2, channels), 0.1))
        self.tokens, self.channels = Along(nn.Linear(tokens, tokens)), _mlp(channels, 4 * channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, tokens, channels] to the same."""
        x = x + self.scales[0] * self.tokens(self.first[0] * x + self.first[1])
        y: Tensor = x + self.scales[1] * self.channels(self.second[0] * x + self.second[1])
        return y


class GatedBlock(nn.Module):
    """gMLP's (Liu et al., arXiv:2105.08050): half of the channels gate the others by token."""

    def __init__(self, tokens: int, channels: int) -> None:
        super().__init__()
        self.norm, self.enter = nn.LayerNorm(channels), nn.Linear(channels, 6 * channels)
        self.gate_norm, self.gate = nn.LayerNorm(3 * channels), Along(nn.Linear(tokens, tokens))
        self.leave = nn.Linear(3 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, tokens, channels] to the same."""
        kept, gating = functional.gelu(self.enter(self.norm(x))).chunk(2, -1)
        y: Tensor = x + self.leave(kept * self.gate(self.gate_norm(gating)))
        return y


class Patches(nn.Module):
    """Patches of 16 × 16 of an image as tokens, blocks, and a classifier of their mean."""

    def __init__(self, block: Callable[[int, int], nn.Module], channels: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 16, 16)
        self.blocks = nn.Sequential(*(block(196, channels) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(channels), nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, 224, 224] to logits [N, 1000]."""
        y: Tensor = self.head(self.norm(self.blocks(self.stem(x).flatten(2).mT)).mean(1))
        return y


class TimeMixer(nn.Module):
    """TSMixer (Chen et al., arXiv:2303.06053): a forecast of series from their own past."""

    def __init__(self, steps: int, series: int, ahead: int, depth: int) -> None:
        super().__init__()
        self.times = nn.ModuleList(
            Along(nn.Sequential(nn.Linear(steps, steps), nn.ReLU())) for _ in range(depth)
        )
        self.channels = nn.ModuleList(_mlp(series, 64, nn.ReLU) for _ in range(depth))
        self.ahead = Along(nn.Linear(steps, ahead))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, steps, series] to [N, ahead, series]."""
        for times, channels in zip(self.times, self.channels, strict=True):
            x = x + times(x)
            x = x + channels(x)
        y: Tensor = self.ahead(x)
        return y


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mixer_b16": (lambda: Patches(MixerBlock, 768, 12), (3, 224, 224)),
    "resmlp_s24": (lambda: Patches(ResidualBlock, 384, 24), (3, 224, 224)),
    "gmlp_s16": (lambda: Patches(GatedBlock, 256, 30), (3, 224, 224)),
    "tsmixer": (lambda: TimeMixer(512, 320, 96, 4), (512, 320)),
}


def build(name: str, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a network of NETWORKS in evaluation mode and its input, seeded."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    return make().eval(), (torch.randn(batch, *shape),)
