"""More image and speech models for benchmarks, written from their papers: what `tests.models` has
for tests are others.

`build(name, batch)` gives a model with seeded weights, in evaluation mode, and its inputs; names
are those of `tests.models`, of `ARCHITECTURES`, of `transformers_models`, `library_models`,
`small_networks`, `token_mixers`, `other_networks` and `survey_networks`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests import models
from tests.models.layers import ConvNormAct, SqueezeExcitation
from tests.models.weights import calibrate, randomize
from torch import Tensor, nn
from torch.nn import functional

from benchmarks import (
    library_models,
    other_networks,
    small_networks,
    survey_networks,
    token_mixers,
    transformers_models,
)
from benchmarks.diffusion import Autoencoder, DiffusionUNet


class GroupedBlock(nn.Module):
    """A bottleneck whose 3 × 3 convolution has groups: ResNeXt's (Xie et al., arXiv:1611.05431),
    and with a squeeze RegNet-Y's (Radosavovic et al., arXiv:2003.13678)."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, each: int, stride: int, squeeze: float
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = [
            ConvNormAct(inputs, hidden, 1),
            ConvNormAct(hidden, hidden, 3, stride, hidden // each),
        ]
        if squeeze:
            layers.append(SqueezeExcitation(hidden, int(inputs * squeeze), nn.ReLU, nn.Sigmoid))
        self.body = nn.Sequential(*layers, ConvNormAct(hidden, outputs, 1, activation=None))
        same = stride == 1 and inputs == outputs
        self.shortcut = (
            nn.Identity() if same else ConvNormAct(inputs, outputs, 1, stride, activation=None)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, inputs, H, W] to [N, outputs, H/stride, W/stride]."""
        return functional.relu(self.body(x) + self.shortcut(x))


class GroupedNet(nn.Module):
    """Stages of grouped blocks behind a stem, and a classifier."""

    def __init__(
        self,
        stem: nn.Module,
        channels: int,
        stages: list[tuple[int, int, int, int, int]],
        squeeze: float,
    ) -> None:
        super().__init__()
        blocks = []
        for depth, hidden, outputs, each, stride in stages:
            for index in range(depth):
                step = 1 if index else stride
                blocks.append(GroupedBlock(channels, hidden, outputs, each, step, squeeze))
                channels = outputs
        self.layers = nn.Sequential(stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(channels, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to logits [N, 1000]."""
        return self.head(self.layers(x))


def resnext50() -> nn.Module:
    """ResNeXt-50, 32 groups of 4 channels and more."""
    stem = nn.Sequential(ConvNormAct(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))
    stages = [
        (depth, 128 << i, 256 << i, 4 << i, 1 + (i > 0)) for i, depth in enumerate((3, 4, 6, 3))
    ]
    return GroupedNet(stem, 64, stages, 0)


def regnet_y() -> nn.Module:
    """RegNetY-1.6GF."""
    widths = ((2, 48), (6, 120), (17, 336), (2, 888))
    return GroupedNet(ConvNormAct(3, 32, 3, 2), 32, [(d, w, w, 24, 2) for d, w in widths], 0.25)


class UNet(nn.Module):
    """Ronneberger et al., arXiv:1505.04597, padded, with batch norms; 32 to 512 channels."""

    def __init__(self, width: int = 32, depth: int = 4) -> None:
        super().__init__()
        sizes = [width << i for i in range(depth + 1)]
        self.down = nn.ModuleList(
            _double(before, after) for before, after in zip([3, *sizes], sizes, strict=False)
        )
        self.up = nn.ModuleList(nn.ConvTranspose2d(s, s // 2, 2, 2) for s in reversed(sizes[1:]))
        self.join = nn.ModuleList(_double(s, s // 2) for s in reversed(sizes[1:]))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to scores [N, 2, H, W]."""
        kept = []
        for index, layer in enumerate(self.down):
            x = layer(functional.max_pool2d(x, 2) if index else x)
            kept.append(x)
        for up, join, beside in zip(self.up, self.join, kept[-2::-1], strict=True):
            x = join(torch.cat([beside, up(x)], 1))
        return self.head(x)


def _double(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(ConvNormAct(inputs, outputs, 3), ConvNormAct(outputs, outputs, 3))


class CrossStage(nn.Module):
    """A cross-stage partial block (Wang et al., arXiv:1911.11929) that keeps what each of its
    bottlenecks leaves, as one-stage detectors have it."""

    def __init__(self, inputs: int, outputs: int, depth: int, add: bool = True) -> None:
        super().__init__()
        self.half, self.add = outputs // 2, add
        self.enter = _silu(inputs, outputs, 1)
        self.bodies = nn.ModuleList(
            nn.Sequential(_silu(self.half, self.half, 3), _silu(self.half, self.half, 3))
            for _ in range(depth)
        )
        self.leave = _silu((2 + depth) * self.half, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, inputs, H, W] to [N, outputs, H, W]."""
        parts = list(self.enter(x).chunk(2, 1))
        for body in self.bodies:
            y = body(parts[-1])
            parts.append(parts[-1] + y if self.add else y)
        return self.leave(torch.cat(parts, 1))


class Detector(nn.Module):
    """A one-stage detector: a cross-stage backbone, features of three scales joined upwards and
    downwards (Liu et al., arXiv:1803.01534), and a head a scale."""

    def __init__(self, width: int = 32, depth: int = 1) -> None:
        super().__init__()
        c = [width << i for i in range(5)]
        self.stem = nn.Sequential(_silu(3, c[0], 3, 2), _silu(c[0], c[1], 3, 2))
        self.first = CrossStage(c[1], c[1], depth)
        self.second = nn.Sequential(
            _silu(c[1], c[2], 3, 2), CrossStage(c[2], c[2], 2 * depth, True)
        )
        self.third = nn.Sequential(_silu(c[2], c[3], 3, 2), CrossStage(c[3], c[3], 2 * depth, True))
        self.fourth = nn.Sequential(_silu(c[3], c[4], 3, 2), CrossStage(c[4], c[4], depth, True))
        self.squeeze, self.spread = _silu(c[4], c[3], 1), _silu(4 * c[3], c[4], 1)
        self.up3 = CrossStage(c[4] + c[3], c[3], depth, False)
        self.up2 = CrossStage(c[3] + c[2], c[2], depth, False)
        self.to3, self.down3 = _silu(c[2], c[2], 3, 2), CrossStage(c[2] + c[3], c[3], depth, False)
        self.to4, self.down4 = _silu(c[3], c[3], 3, 2), CrossStage(c[3] + c[4], c[4], depth, False)
        self.heads = nn.ModuleList(
            nn.Sequential(_silu(s, 64, 3), _silu(64, 64, 3), nn.Conv2d(64, 144, 1))
            for s in (c[2], c[3], c[4])
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to boxes and classes [N, 144, positions of three scales]."""
        second = self.second(self.first(self.stem(x)))
        third = self.third(second)
        pooled = [self.squeeze(self.fourth(third))]
        for _ in range(3):
            pooled.append(functional.max_pool2d(pooled[-1], 5, 1, 2))
        fourth = self.spread(torch.cat(pooled, 1))
        third = self.up3(torch.cat([functional.interpolate(fourth, scale_factor=2.0), third], 1))
        low = self.up2(torch.cat([functional.interpolate(third, scale_factor=2.0), second], 1))
        middle = self.down3(torch.cat([self.to3(low), third], 1))
        high = self.down4(torch.cat([self.to4(middle), fourth], 1))
        scales = zip(self.heads, (low, middle, high), strict=True)
        return torch.cat([head(s).flatten(2) for head, s in scales], 2)


def _silu(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Module:
    return ConvNormAct(inputs, outputs, kernel, stride, activation=nn.SiLU)


class SpeechEncoder(nn.Module):
    """Whisper's encoder (Radford et al., arXiv:2212.04356), of the base model."""

    def __init__(self, width: int = 512, heads: int = 8, depth: int = 6) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(80, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, 2, 1)
        self.positions = nn.Parameter(torch.zeros(1500, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, 0.0, functional.gelu, batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps spectra [N, 80, 3000] to features [N, 1500, width]."""
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(x))))
        x = x.transpose(1, 2) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class SuperResolution(nn.Module):
    """EDSR (Lim et al., arXiv:1707.02921), the baseline: residual blocks without norms, and pixels
    out of channels."""

    def __init__(self, width: int = 64, depth: int = 16) -> None:
        super().__init__()
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1),
            )
            for _ in range(depth)
        )
        self.tail = nn.Sequential(
            nn.Conv2d(width, 4 * width, 3, padding=1),
            nn.PixelShuffle(2),
            nn.Conv2d(width, 3, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps images [N, 3, H, W] to [N, 3, 2 H, 2 W]."""
        start = x = self.head(x)
        for block in self.blocks:
            x = x + block(x)
        return self.tail(start + x)


class Recurrent(nn.Module):
    """Two recurrent layers over a sequence, and a classifier of its last step."""

    def __init__(self, kind: type[nn.LSTM] | type[nn.GRU], width: int = 256) -> None:
        super().__init__()
        self.layers = kind(80, width, 2, batch_first=True)
        self.head = nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        """Maps features [N, T, 80] to logits [N, 100]."""
        return self.head(self.layers(x)[0][:, -1])


ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "resnext50": (resnext50, (3, 224, 224)),
    "regnet_y": (regnet_y, (3, 224, 224)),
    "unet": (UNet, (3, 256, 256)),
    "detector": (Detector, (3, 640, 640)),
    "speech_encoder": (SpeechEncoder, (80, 3000)),
    "diffusion_unet": (DiffusionUNet, (4, 64, 64)),
    "autoencoder": (Autoencoder, (4, 32, 32)),
    "super_resolution": (SuperResolution, (3, 128, 128)),
    "lstm": (lambda: Recurrent(nn.LSTM), (50, 80)),
    "gru": (lambda: Recurrent(nn.GRU), (50, 80)),
}


def build(name: str, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a model in evaluation mode and its inputs; equal names give equal numbers."""
    if name in transformers_models.MODELS:
        return transformers_models.build(name, batch)
    if name.partition("/")[0] in library_models.LIBRARIES:
        return library_models.build(name, batch)
    if name in small_networks.NETWORKS:
        return small_networks.build(name, batch)
    if name in token_mixers.NETWORKS:
        return token_mixers.build(name, batch)
    if name in other_networks.NETWORKS:
        return other_networks.build(name, batch)
    if name in survey_networks.NETWORKS:
        return survey_networks.build(name, batch)
    if name not in ARCHITECTURES:
        return models.build(name, batch=batch)
    make, shape = ARCHITECTURES[name]
    generator = torch.Generator().manual_seed(0)
    model = make().eval()
    randomize(model, generator)
    small = (shape[0], 64, 64)
    if any(key.endswith("running_mean") for key in model.state_dict()):
        calibrate(model, [(torch.randn(8, *small, generator=generator),) for _ in range(2)])
    return model, (torch.randn(batch, *shape, generator=generator),)
