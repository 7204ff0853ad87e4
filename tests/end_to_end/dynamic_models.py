"""Models whose sizes calls choose, with what to call them on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from tests.models.resnet import BasicBlock, ResNet

Arguments = tuple[Tensor, ...]


@dataclass(frozen=True)
class Dynamic:
    """A model, its `dynamic_shapes`, and sizes to call it with: at 1, below the bound, at it.

    Attributes:
        arguments: makes the arguments for one combination of sizes; the first is the example.
        tolerance: relative and absolute.
    """

    model: Callable[[], nn.Module]
    shapes: Any
    arguments: Callable[..., Arguments]
    sizes: tuple[tuple[int, ...], ...]
    tolerance: tuple[float, float] = (1e-4, 1e-5)


class Perceptron(nn.Module):
    """Two linears and a softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8), nn.Softmax(-1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Decoder(nn.Module):
    """A transformer under a causal mask made from the length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.position = nn.Embedding(32, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(32, 50)

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        mask = torch.triu(torch.full((length, length), float("-inf")), 1)
        x = self.embedding(ids) + self.position(torch.arange(length))
        return self.head(self.layers(x, mask=mask, is_causal=True))


class Shapes(nn.Module):
    """Every way a size gets into a graph: views, slices, concatenations, ranges, masks, numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 8)
        self.embedding = nn.Embedding(10, 16)

    def forward(self, x: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        batch, length = ids.shape
        steps = torch.arange(length)
        h = self.embedding(ids) + steps[None, :, None] * 0.1
        flat = h.reshape(batch * length, 16)[1:]
        triangle = torch.ones(length, length).tril()
        lower = steps[:, None] >= steps[None, :]
        scores = (h @ h.transpose(1, 2)).masked_fill(~lower, -1e9).softmax(-1)
        return (
            self.linear(flat),
            triangle,
            scores @ h,
            torch.cat([x, x[:, :4]], 1),
            x.view(batch, -1, 4).sum(1),
            x[:, ::2].flip(1),
            x[:, -3:].mean(1),
            torch.zeros(batch, length, 2) + length,
            x.mean() * length + batch,
            x.cumsum(1).amax(1),
            x.sort(1)[0],
            x.unsqueeze(1).expand(batch, 3, length).reshape(batch * 3, length),
            x.t().contiguous(),
            x.repeat(2, 1),
            nn.functional.pad(x, (1, 2), value=3.0),
            torch.stack([x, x + 1], 2).flatten(1),
            x.argmax(1),
            h.std(1),
            torch.full((batch,), length, dtype=torch.float32),
            length - 1 - steps,
            nn.functional.pad(x, (2, 1), "reflect"),
        )


class Derived(nn.Module):
    """Two inputs whose sizes depend on each other."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, 2).sum(-1) + y[:, 1:]


class Convolutions(nn.Module):
    """An image network for images of any size: strides, padding, pooling, depthwise, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.SiLU(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.Conv2d(16, 32, 1),
            nn.GroupNorm(4, 32),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ConvTranspose2d(32, 8, 2, 2),
        )
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.features(x)
        return x, self.head(x.mean((2, 3)))


class Fractions(nn.Module):
    """Numbers with fractions that are computed from sizes, and sizes that are rounded ones."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        batch, length, _ = x.shape
        return (
            (x * length**-0.5).softmax(-1) - 1 / batch,
            x / torch.sym_sqrt(length) + torch.full((length, 1), 1 / length),
            x.abs() ** (1 / length),
            x.clamp(-1 / length, batch / length),
            x[:, : math.floor(length * 0.3) + 1],
            x[:, : math.ceil(length / 3)],
        )


class Resizes(nn.Module):
    """Images of any size, resized by factors, to fixed sizes and to each other's."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        resize = nn.functional.interpolate
        small = resize(x, scale_factor=0.5)
        places = x.new_full((x.shape[0], 2, 3, 2), 0.3)
        return (
            small,
            resize(small, size=x.shape[2:]),
            resize(x, scale_factor=1.5, mode="bilinear"),
            resize(x, scale_factor=2, mode="bilinear", align_corners=True),
            resize(x, size=(8, 7), mode="bicubic"),
            resize(x, size=(5, 6), mode="nearest-exact"),
            resize(x, size=(6, 20), mode="bilinear", antialias=True),
            resize(small, size=x.shape[2:], mode="bicubic", align_corners=True),
            nn.functional.grid_sample(x, places, align_corners=False),
            nn.functional.adaptive_avg_pool2d(x, (2, 3)),
        )


class Recurrences(nn.Module):
    """Recurrent layers of open length, behind a strided convolution: all their cells, both ways."""

    def __init__(self) -> None:
        super().__init__()
        self.shorter = nn.Conv1d(5, 6, 3, 2, 1)
        self.lstm = nn.LSTM(6, 9, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(18, 8, bidirectional=True)
        self.plain = nn.RNN(16, 3, nonlinearity="relu", bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Maps [N, 5, T]."""
        y, (hidden, cell) = self.lstm(self.shorter(x).relu().transpose(1, 2))
        z, last = self.gru(y.transpose(0, 1))
        return y, hidden, cell, z, last, *self.plain(z)


class Lengths(nn.Module):
    """Sizes computed from others: padded to multiples, halved, pooled, counted."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Maps [N, T, 8]."""
        columns, length = x.transpose(1, 2), x.shape[1]
        pooled = nn.functional.max_pool1d(columns, 3, 2, 1)
        return (
            pooled,
            *nn.functional.max_pool1d(columns, 2, ceil_mode=True, return_indices=True),
            nn.functional.avg_pool1d(pooled, 3, 2, 1, ceil_mode=True).softmax(-1),
            nn.functional.pad(x, (0, 0, 0, -length % 4)).reshape(x.shape[0], -1, 4, 8).mean(2),
            nn.functional.pad(x, (0, 0, 0, (4 - length % 4) % 4)).unflatten(1, (-1, 4)),
            torch.linspace(-1.5, 2, length) + x[..., 0],
            torch.linspace(0, 1, 2 * length + 1, dtype=torch.float64),
            x.median(1).values,
            x.round().mode(1).values,
        )


class Spectra(nn.Module):
    """What speech recognition begins with, of any number of recordings of any length."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(32))
        self.register_buffer("bands", torch.rand(8, 17))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Maps [N, T]: logarithms of bands, as large as the loudest allows, and the sound again."""
        spectrum = torch.stft(x, 32, 8, window=self.window, return_complex=True)
        bands = self.bands @ spectrum[..., :-1].abs() ** 2
        logarithms = bands.clamp(min=1e-10).log10()
        logarithms = torch.maximum(logarithms, logarithms.amax() - 8.0)
        return logarithms, torch.istft(spectrum, 32, 8, window=self.window)


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = BertConfig(**sizes, intermediate_size=64, vocab_size=99, max_position_embeddings=64)
    return BertModel(config)


def _resnet18() -> nn.Module:
    return ResNet(BasicBlock, (2, 2, 2, 2), classes=10)


def _ids(batch: int, length: int, vocabulary: int = 50) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length))


def _tokens(batch: int, length: int) -> Arguments:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length // 2 + 1 :] = 0
    return _ids(batch, length, 99), mask


BATCH, SEQ = Dim("batch", min=1, max=8), Dim("seq", max=32)
LENGTHS = ((2, 7), (8, 32), (1, 1), (2, 1), (1, 2), (3, 17), (7, 31))


class Windows(nn.Module):
    """Attention in windows of 4 × 4, images padded to whole ones, and positions counted down."""

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[-2:]
        x = nn.functional.pad(x, (0, -width % 4, 0, -height % 4))
        batch, channels, rows, columns = x.shape
        y = x.view(batch, channels, rows // 4, 4, columns // 4, 4).permute(0, 2, 4, 3, 5, 1)
        y = y.reshape(-1, 16, channels)
        y = nn.functional.scaled_dot_product_attention(y, y, y)
        y = y.view(batch, rows // 4, columns // 4, 4, 4, channels).permute(0, 5, 1, 3, 2, 4)
        y = y.reshape(batch, channels, rows, columns)[:, :, :height, :width]
        return y + torch.arange(width - 1, -1, -1)


MODELS: dict[str, Dynamic] = {
    "windows": Dynamic(
        Windows,
        ({0: BATCH, 2: Dim("height", max=20), 3: Dim("width", max=24)},),
        lambda batch, height, width: (torch.randn(batch, 3, height, width),),
        ((2, 8, 12), (1, 1, 1), (3, 5, 24), (8, 20, 7)),
    ),
    "perceptron": Dynamic(
        Perceptron,
        {"x": {0: BATCH}},
        lambda batch: (torch.randn(batch, 16),),
        ((4,), (8,), (1,), (2,), (3,), (7,)),
    ),
    "resnet18": Dynamic(
        _resnet18,
        ({0: BATCH},),
        lambda batch: (torch.randn(batch, 3, 40, 40),),
        ((2,), (8,), (1,), (3,)),
        (1e-3, 1e-4),
    ),
    "bert": Dynamic(
        _bert,
        ({0: BATCH, 1: SEQ}, {0: BATCH, 1: SEQ}),
        _tokens,
        LENGTHS,
    ),
    "decoder": Dynamic(
        Decoder,
        ({0: BATCH, 1: SEQ},),
        lambda batch, length: (_ids(batch, length),),
        LENGTHS,
    ),
    "shapes": Dynamic(
        Shapes,
        ({0: BATCH, 1: 4 * SEQ}, {0: BATCH, 1: 4 * SEQ}),
        lambda batch, seq: (torch.randn(batch, 4 * seq), _ids(batch, 4 * seq, 10)),
        LENGTHS,
    ),
    "derived": Dynamic(
        Derived,
        ({0: BATCH, 1: 2 * SEQ}, {0: BATCH, 1: SEQ + 1}),
        lambda batch, seq: (torch.randn(batch, 2 * seq), torch.randn(batch, seq + 1)),
        LENGTHS,
    ),
    "fractions": Dynamic(
        Fractions,
        ({0: BATCH, 1: SEQ},),
        lambda batch, length: (torch.randn(batch, length, 6),),
        LENGTHS,
    ),
    "resizes": Dynamic(
        Resizes,
        ({0: BATCH, 2: Dim("height", min=2, max=16), 3: Dim("width", min=2, max=18)},),
        lambda batch, height, width: (torch.randn(batch, 2, height, width),),
        ((2, 6, 7), (8, 16, 18), (1, 2, 2), (3, 9, 5), (1, 3, 18)),
    ),
    "recurrences": Dynamic(
        Recurrences,
        ({0: BATCH, 2: SEQ},),
        lambda batch, length: (torch.randn(batch, 5, length),),
        ((2, 7), (8, 32), (1, 1), (3, 2), (1, 17)),
    ),
    "lengths": Dynamic(
        Lengths,
        ({0: BATCH, 1: SEQ},),
        lambda batch, length: (torch.randn(batch, length, 8),),
        ((2, 7), (8, 32), (1, 1), (2, 2), (3, 17)),
    ),
    "spectra": Dynamic(
        Spectra,
        ({0: BATCH, 1: Dim("samples", min=32, max=300)},),
        lambda batch, samples: (torch.randn(batch, samples),),
        ((2, 100), (8, 300), (1, 32), (3, 211)),
    ),
    "convolutions": Dynamic(
        Convolutions,
        ({0: BATCH, 2: Dim("height", min=9, max=33), 3: Dim("width", min=9, max=40)},),
        lambda batch, height, width: (torch.randn(batch, 3, height, width),),
        ((2, 16, 24), (8, 33, 40), (1, 9, 9), (3, 10, 39), (1, 32, 11)),
    ),
}
