"""What latent diffusion (Rombach et al., arXiv:2112.10752) runs, for benchmarks: for a step a U-Net
of group norms, time embeddings and attention, for an image the decoder of its autoencoder.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions behind group norms, and a vector that is added between them."""

    def __init__(self, inputs: int, outputs: int, embedding: int = 0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(32, inputs), nn.GroupNorm(32, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.embed = nn.Linear(embedding, outputs) if embedding else None
        self.shortcut = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor | None = None) -> Tensor:
        """Maps [N, inputs, H, W], and [N, embedding], to [N, outputs, H, W]."""
        y = self.conv1(functional.silu(self.norm1(x)))
        if self.embed is not None and time is not None:
            y = y + self.embed(functional.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(functional.silu(self.norm2(y)))


class SpatialTransformer(nn.Module):
    """Attention among the positions, then to a text, then a gated layer of two products."""

    def __init__(self, width: int, heads: int, text: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.GroupNorm(32, width)
        self.enter, self.leave = nn.Conv2d(width, width, 1), nn.Conv2d(width, width, 1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        sources = (width, text)
        self.queries = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in sources)
        self.keys = nn.ModuleList(nn.Linear(s, width, bias=False) for s in sources)
        self.values = nn.ModuleList(nn.Linear(s, width, bias=False) for s in sources)
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in sources)
        self.gated, self.down = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def _attend(self, index: int, x: Tensor, text: Tensor) -> Tensor:
        def split(y: Tensor) -> Tensor:
            return y.unflatten(-1, (self.heads, -1)).transpose(1, 2)

        q, k, v = self.queries[index](x), self.keys[index](text), self.values[index](text)
        y = functional.scaled_dot_product_attention(split(q), split(k), split(v))
        return self.outs[index](y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor, text: Tensor) -> Tensor:
        """Maps [N, width, H, W], and [N, T, text], to [N, width, H, W]."""
        y = self.enter(self.norm(x)).flatten(2).transpose(1, 2)
        z = self.norms[0](y)
        y = y + self._attend(0, z, z)
        y = y + self._attend(1, self.norms[1](y), text)
        up, gate = self.gated(self.norms[2](y)).chunk(2, -1)
        y = y + self.down(up * functional.gelu(gate))
        return x + self.leave(y.transpose(1, 2).unflatten(2, x.shape[2:]))


class DiffusionUNet(nn.Module):
    """Two resolutions of 320 and 640 channels: the upper half of Stable Diffusion's."""

    def __init__(self, width: int = 320, text: int = 768, heads: int = 8) -> None:
        super().__init__()
        sizes = [width, 2 * width]
        self.time = nn.Sequential(
            nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, 4 * width)
        )
        self.at = nn.Parameter(torch.zeros(width))
        self.text = nn.Parameter(torch.zeros(77, text))
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down, self.up = nn.ModuleList(), nn.ModuleList()
        self.shrink, self.grow = nn.ModuleList(), nn.ModuleList()
        kept, now = [width], width
        for level, size in enumerate(sizes):
            for _ in range(2):
                self.down.append(ResidualBlock(now, size, 4 * width))
                self.down.append(SpatialTransformer(size, heads, text))
                now = size
                kept.append(now)
            if level < len(sizes) - 1:
                self.shrink.append(nn.Conv2d(now, now, 3, 2, 1))
                kept.append(now)
        self.middle = ResidualBlock(now, now, 4 * width)
        for level, size in reversed(list(enumerate(sizes))):
            for _ in range(3):
                self.up.append(ResidualBlock(now + kept.pop(), size, 4 * width))
                self.up.append(SpatialTransformer(size, heads, text))
                now = size
            if level:
                self.grow.append(nn.Conv2d(now, now, 3, padding=1))
        self.norm, self.leave = nn.GroupNorm(32, width), nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps latents [N, 4, H, W] to what is to be taken from them, of the same shape."""
        time = self.time(self.at[None])
        text = self.text.expand(x.shape[0], -1, -1)
        x = self.enter(x)
        kept = [x]
        for index in range(0, len(self.down), 2):
            x = self.down[index + 1](self.down[index](x, time), text)
            kept.append(x)
            if index % 4 == 2 and index // 4 < len(self.shrink):
                x = self.shrink[index // 4](x)
                kept.append(x)
        x = self.middle(x, time)
        for index in range(0, len(self.up), 2):
            x = self.up[index](torch.cat([x, kept.pop()], 1), time)
            x = self.up[index + 1](x, text)
            if index % 6 == 4 and index // 6 < len(self.grow):
                x = self.grow[index // 6](functional.interpolate(x, scale_factor=2.0))
        return self.leave(functional.silu(self.norm(x)))


class Autoencoder(nn.Module):
    """The decoder: latents to images of eight times as many pixels a side."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(4, 4 * width, 3, padding=1)]
        now = 4 * width
        for level, size in enumerate((4 * width, 4 * width, 2 * width, width)):
            for _ in range(3):
                layers.append(ResidualBlock(now, size))
                now = size
            if level < 3:
                layers += [nn.Upsample(scale_factor=2.0), nn.Conv2d(now, now, 3, padding=1)]
        ends = (nn.GroupNorm(32, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))
        self.layers = nn.Sequential(*layers, *ends)

    def forward(self, x: Tensor) -> Tensor:
        """Maps latents [N, 4, H, W] to images [N, 3, 8 H, 8 W]."""
        return self.layers(x)
