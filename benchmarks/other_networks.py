"""Networks of other kinds for benchmarks: sequences, graphs, tables, points, waves.

`build(name, batch)` gives a network in evaluation mode, with seeded weights, and its inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

Inputs = Callable[[int], tuple[Tensor, ...]]  # by the batch
Network = tuple[Callable[[], nn.Module], Inputs]


class Tagger(nn.Module):
    """Embeddings, a bidirectional LSTM and scores of each token (Huang et al.,
    arXiv:1508.01991)."""

    def __init__(self, words: int = 20_000, width: int = 128, tags: int = 20) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, tags)

    def forward(self, ids: Tensor) -> Tensor:
        """Maps tokens [N, T] to scores [N, T, tags]."""
        scores: Tensor = self.head(self.layers(self.embedding(ids))[0])
        return scores


class TextReader(nn.Module):
    """CRNN (Shi et al., arXiv:1507.05717): convolutions, then recurrent layers over columns."""

    def __init__(self, recurrent: type[nn.LSTM] | type[nn.GRU] = nn.LSTM) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        sizes = [1, 64, 128, 256, 256, 512, 512]
        pools = {0: (2, 2), 1: (2, 2), 3: (2, 1), 5: (2, 1)}
        for index in range(6):
            layers += [nn.Conv2d(sizes[index], sizes[index + 1], 3, padding=1)]
            layers += [nn.BatchNorm2d(sizes[index + 1]), nn.ReLU()]
            if index in pools:
                layers.append(nn.MaxPool2d(pools[index]))
        self.body = nn.Sequential(*layers, nn.Conv2d(512, 512, 2), nn.ReLU())
        self.layers = recurrent(512, 256, 2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(512, 37)

    def forward(self, x: Tensor) -> Tensor:
        """Maps grey lines [N, 1, 32, W] to scores [N, W/4 - 1, 37]."""
        columns = self.body(x).squeeze(2).transpose(1, 2)
        scores: Tensor = self.head(self.layers(columns)[0])
        return scores


class Dilated(nn.Module):
    """Temporal convolutions (Bai et al., arXiv:1803.01271), dilations doubling."""

    def __init__(self, inputs: int = 32, width: int = 64, depth: int = 6) -> None:
        super().__init__()
        sizes = [inputs] + [width] * depth
        self.first = nn.ModuleList(
            nn.Conv1d(sizes[i], width, 3, dilation=1 << i) for i in range(depth)
        )
        self.second = nn.ModuleList(
            nn.Conv1d(width, width, 3, dilation=1 << i) for i in range(depth)
        )
        self.enter = nn.Conv1d(inputs, width, 1)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Maps series [N, inputs, T] to scores [N, 10]."""
        for index, (first, second) in enumerate(zip(self.first, self.second, strict=True)):
            pad = (2 << index, 0)
            y = functional.relu(first(functional.pad(x, pad)))
            y = functional.relu(second(functional.pad(y, pad)))
            x = functional.relu(y + (x if index else self.enter(x)))
        scores: Tensor = self.head(x[:, :, -1])
        return scores


class Gated(nn.Module):
    """WaveNet's blocks (van den Oord et al., arXiv:1609.03499)."""

    def __init__(self, width: int = 64, depth: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, width, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(width, 2 * width, 3, padding=1 << i, dilation=1 << i) for i in range(depth)
        )
        self.leave = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(depth))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU())
        self.last = nn.Conv1d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Maps waves [N, 1, T] to waves."""
        x, total = self.enter(x), torch.zeros(())
        for gate, leave in zip(self.gates, self.leave, strict=True):
            left, right = gate(x).chunk(2, 1)
            residual, skip = leave(torch.tanh(left) * torch.sigmoid(right)).chunk(2, 1)
            x, total = x + residual, total + skip
        wave: Tensor = self.last(self.head(total))
        return wave


class GraphNet(nn.Module):
    """Graph convolutions (Kipf and Welling, arXiv:1609.02907) over a list of edges: rows are
    gathered, and added where their edge ends."""

    def __init__(self, width: int = 64, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Maps features [nodes, width] and edges [2, E] to features."""
        source, target = edges[0], edges[1]
        for layer in self.layers:
            y = layer(x)
            x = functional.relu(torch.zeros_like(y).index_add(0, target, y[source]) + y)
        return x


class GraphAttention(nn.Module):
    """Graph attention (Veličković et al., arXiv:1710.10903) by a matrix of neighbours."""

    def __init__(self, inputs: int = 64, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        self.enter = nn.Linear(inputs, heads * width)
        self.left = nn.Parameter(torch.randn(heads, width))
        self.right = nn.Parameter(torch.randn(heads, width))

    def forward(self, x: Tensor, near: Tensor) -> Tensor:
        """Maps features [nodes, inputs] and neighbours [nodes, nodes] to features."""
        h = self.enter(x).view(-1, self.heads, self.width)
        scores = (h * self.left).sum(-1).T[:, :, None] + (h * self.right).sum(-1).T[:, None, :]
        scores = functional.leaky_relu(scores, 0.2).masked_fill(near == 0, -1e9)
        y = torch.softmax(scores, -1) @ h.transpose(0, 1)
        return functional.elu(y.transpose(0, 1).flatten(1))


class Recommender(nn.Module):
    """DLRM (Naumov et al., arXiv:1906.00091): bags of embeddings, their products, two MLPs."""

    def __init__(self, tables: int = 26, rows: int = 10_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = _layers(13, 512, 256, width)
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(_layers(pairs + width, 512, 256), nn.Linear(256, 1))
        self.register_buffer("places", torch.tril_indices(tables + 1, tables + 1, -1))

    def forward(self, dense: Tensor, ids: Tensor) -> Tensor:
        """Maps numbers [N, 13] and categories [N, tables] to scores [N, 1]."""
        x = self.bottom(dense)
        rows = [table(ids[:, i]) for i, table in enumerate(self.tables)]
        t = torch.stack([x, *rows], 1)
        pairs = (t @ t.transpose(1, 2))[:, self.places[0], self.places[1]]
        score: Tensor = torch.sigmoid(self.top(torch.cat([x, pairs], 1)))
        return score


class WideDeep(nn.Module):
    """DeepFM (Guo et al., arXiv:1703.04247): pairs by a sum's square, beside an MLP."""

    def __init__(self, fields: int = 39, rows: int = 50_000, width: int = 16) -> None:
        super().__init__()
        self.table, self.single = nn.Embedding(rows, width), nn.Embedding(rows, 1)
        self.deep = nn.Sequential(_layers(fields * width, 400, 400, 400), nn.Linear(400, 1))

    def forward(self, ids: Tensor) -> Tensor:
        """Maps categories [N, fields] to scores [N, 1]."""
        rows = self.table(ids)
        pairs = 0.5 * (rows.sum(1).square() - rows.square().sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.single(ids).sum(1) + pairs + self.deep(rows.flatten(1)))


class Points(nn.Module):
    """PointNet (Qi et al., arXiv:1612.00593), its classifier without the two small nets."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (3, 64, 64, 64, 128, 1024)
        self.body = nn.Sequential(
            *(
                nn.Sequential(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())
                for a, b in itertools.pairwise(sizes)
            )
        )
        self.head = nn.Sequential(_layers(1024, 512, 256), nn.Linear(256, 40))

    def forward(self, x: Tensor) -> Tensor:
        """Maps points [N, 3, P] to scores [N, 40]."""
        scores: Tensor = self.head(self.body(x).amax(2))
        return scores


class Radiance(nn.Module):
    """NeRF (Mildenhall et al., arXiv:2003.08934): sines of positions, eight layers, a skip."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.register_buffer("scales", 2.0 ** torch.arange(10))
        self.first, self.second = _layers(63, *[width] * 5), _layers(width + 63, *[width] * 3)
        self.head = nn.Linear(width, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Maps positions [N, 3] to colours and densities [N, 4]."""
        angles = (x[:, :, None] * self.scales).flatten(1)
        x = torch.cat([x, angles.sin(), angles.cos()], 1)
        out: Tensor = self.head(self.second(torch.cat([self.first(x), x], 1)))
        return out


class KeywordSpotter(nn.Module):
    """Depthwise-separable convolutions over a spectrogram (Zhang et al., arXiv:1711.07128)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(1, width, (10, 4), 2, (5, 1)), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Conv2d(width, width, 3, 1, 1, groups=width), nn.BatchNorm2d(width)]
            layers += [nn.ReLU(), nn.Conv2d(width, width, 1), nn.BatchNorm2d(width), nn.ReLU()]
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(width, 12)

    def forward(self, x: Tensor) -> Tensor:
        """Maps spectrograms [N, 1, 49, 10] to scores [N, 12]."""
        scores: Tensor = self.head(self.body(x))
        return scores


class Separator(nn.Module):
    """Conv-TasNet (Luo and Mesgarani, arXiv:1809.07454): a learned basis, depthwise dilated
    convolutions, masks."""

    def __init__(self, basis: int = 256, width: int = 128, hidden: int = 256) -> None:
        super().__init__()
        self.encode = nn.Conv1d(1, basis, 16, 8, bias=False)
        self.enter = nn.Sequential(nn.GroupNorm(1, basis), nn.Conv1d(basis, width, 1))
        self.blocks = nn.ModuleList(
            nn.Sequential(
                *(nn.Conv1d(width, hidden, 1), nn.PReLU(), nn.GroupNorm(1, hidden)),
                nn.Conv1d(hidden, hidden, 3, padding=1 << i, dilation=1 << i, groups=hidden),
                *(nn.PReLU(), nn.GroupNorm(1, hidden), nn.Conv1d(hidden, width, 1)),
            )
            for i in range(8)
        )
        self.masks = nn.Sequential(nn.PReLU(), nn.Conv1d(width, 2 * basis, 1), nn.Sigmoid())
        self.decode = nn.ConvTranspose1d(basis, 1, 16, 8, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps waves [N, 1, T] to two waves each, [N, 2, T]."""
        rows = self.encode(x)
        y = self.enter(rows)
        for block in self.blocks:
            y = y + block(y)
        masked = self.masks(y).unflatten(1, (2, -1)) * rows[:, None]
        return self.decode(masked.flatten(0, 1)).unflatten(0, (-1, 2)).squeeze(2)


def _layers(*sizes: int) -> nn.Module:
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*(m for a, b in pairs for m in (nn.Linear(a, b), nn.ReLU())))


def _mixer(batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    body = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(body, 2), (torch.randn(batch, 24, 64),)


def _autoencoder() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(64, 32, 3, 2, 1, 1), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 1, 3, 2, 1, 1), nn.Sigmoid()),
    )


def _mel_vocoder() -> nn.Module:
    """Transposed convolutions and residual ones between, as MelGAN's generator."""
    layers: list[nn.Module] = [nn.Conv1d(80, 256, 7, padding=3)]
    for inputs, stride in ((256, 8), (128, 8), (64, 2), (32, 2)):
        outputs = inputs // 2
        layers += [
            nn.LeakyReLU(0.2),
            nn.ConvTranspose1d(inputs, outputs, 2 * stride, stride, stride // 2),
        ]
        for step in (1, 3):
            layers += [
                nn.LeakyReLU(0.2),
                nn.Conv1d(outputs, outputs, 3, padding=step, dilation=step),
            ]
    return nn.Sequential(*layers, nn.LeakyReLU(0.2), nn.Conv1d(16, 1, 7, padding=3), nn.Tanh())


def _controller() -> nn.Module:
    layers = (nn.Linear(48, 256), nn.ELU(), nn.Linear(256, 128), nn.ELU(), nn.Linear(128, 12))
    return nn.Sequential(*layers, nn.Tanh())


def _atari() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()),
        nn.Linear(512, 6),
    )


def draw(*shapes: tuple[int, ...]) -> Inputs:
    """Returns what draws normal inputs of shapes [batch, *shape]."""
    return lambda batch: tuple(torch.randn(batch, *shape) for shape in shapes)


def _graph(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(1000 * batch, 64), torch.randint(1000 * batch, (2, 5000 * batch))


def _neighbours(batch: int) -> tuple[Tensor, ...]:
    return torch.randn(256, 64), (torch.rand(256, 256) < 0.05).float()


NETWORKS: dict[str, Network] = {
    "tagger": (Tagger, lambda n: (torch.randint(20_000, (n, 40)),)),
    "text_reader": (TextReader, draw((1, 32, 128))),
    "text_reader_gru": (lambda: TextReader(nn.GRU), draw((1, 32, 128))),
    "dilated": (Dilated, draw((32, 256))),
    "gated_wave": (Gated, draw((1, 4000))),
    "graph_net": (GraphNet, _graph),
    "graph_attention": (GraphAttention, _neighbours),
    "recommender": (
        Recommender,
        lambda n: (torch.randn(n, 13), torch.randint(10_000, (n, 26))),
    ),
    "deep_fm": (WideDeep, lambda n: (torch.randint(50_000, (n, 39)),)),
    "points": (Points, draw((3, 1024))),
    "radiance": (Radiance, lambda n: (torch.randn(1024 * n, 3),)),
    "keyword_spotter": (KeywordSpotter, draw((1, 49, 10))),
    "separator": (Separator, draw((1, 8000))),
    "encoder_64": (lambda: _mixer(1)[0], lambda n: _mixer(n)[1]),
    "small_autoencoder": (_autoencoder, draw((1, 28, 28))),
    "mel_vocoder": (_mel_vocoder, draw((80, 64))),
    "controller": (_controller, draw((48,))),
    "atari": (_atari, draw((4, 84, 84))),
    "lstm_batch": (
        lambda: nn.Sequential(Rows(nn.LSTM(32, 64, 1, batch_first=True))),
        draw((24, 32)),
    ),
    "gru_batch": (
        lambda: nn.Sequential(Rows(nn.GRU(128, 128, 2, batch_first=True))),
        draw((100, 128)),
    ),
    "lstm_large": (
        lambda: nn.Sequential(Rows(nn.LSTM(256, 512, 2, batch_first=True))),
        draw((30, 256)),
    ),
    "lstm_both": (
        lambda: nn.Sequential(Rows(nn.LSTM(80, 256, 1, batch_first=True, bidirectional=True))),
        draw((100, 80)),
    ),
}


class Rows(nn.Module):
    """The rows that a recurrent layer leaves."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, T, inputs] to [N, T, width]."""
        rows: Tensor = self.layer(x)[0]
        return rows


def build(name: str, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a network of NETWORKS in evaluation mode and its inputs, seeded."""
    return seeded(NETWORKS[name], batch)


def seeded(network: Network, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a network in evaluation mode and its inputs, both drawn with seed 0."""
    torch.manual_seed(0)
    make, inputs = network
    return make().eval(), inputs(batch)
