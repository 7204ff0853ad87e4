"""Small networks for benchmarks: recurrent ones, and convolutions over one and three dimensions."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Recurrent(nn.Module):
    """A recurrent layer over a sequence, and a linear of its last row."""

    def __init__(self, layer: nn.RNNBase, classes: int) -> None:
        super().__init__()
        self.layer, self.head = layer, nn.Linear(layer.hidden_size, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, length, inputs] to [N, classes]."""
        scores: Tensor = self.head(self.layer(x)[0][:, -1])
        return scores


def _waves() -> nn.Module:
    """Convolutions over a wave, as speech encoders begin with."""
    return nn.Sequential(
        *(nn.Conv1d(1, 64, 10, 5), nn.GELU(), nn.Conv1d(64, 128, 8, 4, 2), nn.GELU()),
        *(nn.Conv1d(128, 128, 3, 2, 1), nn.GELU(), nn.Conv1d(128, 256, 3, 2, 1), nn.GELU()),
    )


def _volumes() -> nn.Module:
    """Convolutions over volumes, as networks of videos have them."""
    return nn.Sequential(
        *(nn.Conv3d(3, 32, 3, (1, 2, 2), 1), nn.ReLU(), nn.Conv3d(32, 64, 3, 2, 1), nn.ReLU()),
        *(nn.Conv3d(64, 64, 3, 1, 1), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten()),
    )


def _upwards() -> nn.Module:
    """Transposed convolutions, as generators of images have them."""
    return nn.Sequential(
        *(nn.ConvTranspose2d(128, 256, 4, 1, 0), nn.BatchNorm2d(256), nn.ReLU()),
        *(nn.ConvTranspose2d(256, 128, 4, 2, 1), nn.BatchNorm2d(128), nn.ReLU()),
        *(nn.ConvTranspose2d(128, 64, 4, 2, 1), nn.BatchNorm2d(64), nn.ReLU()),
        *(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh()),
    )


def _digits() -> nn.Module:
    """LeCun et al.'s LeNet-5, with ReLU."""
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU())


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm": (lambda: Recurrent(nn.LSTM(64, 128, 2, batch_first=True), 10), (50, 64)),
    "gru": (lambda: Recurrent(nn.GRU(64, 256, 1, batch_first=True), 10), (50, 64)),
    "rnn": (lambda: Recurrent(nn.RNN(64, 256, 1, batch_first=True), 10), (50, 64)),
    "lstm_wide": (lambda: Recurrent(nn.LSTM(64, 512, 1, batch_first=True), 10), (50, 64)),
    "waves": (_waves, (1, 16_000)),
    "volumes": (_volumes, (3, 8, 64, 64)),
    "upwards": (_upwards, (128, 1, 1)),
    "digits": (_digits, (1, 28, 28)),
    "mlp_784": (_wide, (784,)),
}


def build(name: str, batch: int = 1) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a network of NETWORKS in evaluation mode and its input, seeded."""
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    return make().eval(), (torch.randn(batch, *shape),)
