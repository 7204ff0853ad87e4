"""The demo's data and model: scikit-learn's handwritten digits and a small residual network.

The digits are 1,797 real scans (UCI ML hand-written digits), 8 × 8 pixels, ten classes. They ship
inside scikit-learn, so nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from npusim.errors import Error

CLASSES = 10
_BATCH = 64


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions with batch norm around a shortcut, as in ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [N, inputs, H, W] to [N, outputs, H/stride, W/stride]."""
        y = functional.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return functional.relu(y + self.shortcut(x))


class DigitsNet(nn.Module):
    """A residual network for 1 × 8 × 8 images."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.block1 = ResidualBlock(width, width, 1)
        self.block2 = ResidualBlock(width, 2 * width, 2)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps images [N, 1, 8, 8] to logits [N, 10]."""
        y = functional.relu(self.norm(self.stem(x)))
        y = self.block2(self.block1(y))
        return self.head(self.pool(y).flatten(1))  # type: ignore[no-any-return]


def network() -> tuple[nn.Module, tuple[torch.Tensor]]:
    """A factory for the command line: `npusim extract npusim.demo.digits:network`."""
    torch.manual_seed(0)
    return DigitsNet().eval(), (torch.rand(1, 1, 8, 8),)


@dataclass(frozen=True)
class Digits:
    """Images float32 [N, 1, 8, 8] in 0 … 1 and labels int64 [N], split for training and test."""

    train_images: np.ndarray
    train_labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def load_digits(test_fraction: float = 0.25) -> Digits:
    """Loads the data and holds a seeded random part of it out for the test."""
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise Error(
            "The demo takes its data from scikit-learn.", hint="pip install 'npusim[demo]'"
        ) from error
    data = datasets.load_digits()
    images = (data.images / 16.0).astype(np.float32)[:, None]
    labels = data.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    test, train = np.split(order, [int(len(order) * test_fraction)])
    return Digits(images[train], labels[train], images[test], labels[test])


def train(
    data: Digits, epochs: int, report: Callable[[str, int, int], None] = lambda *_: None
) -> nn.Module:
    """Trains a DigitsNet with AdamW on a one-cycle schedule; returns it in evaluation mode."""
    torch.manual_seed(0)
    model = DigitsNet().train()
    images, labels = torch.from_numpy(data.train_images), torch.from_numpy(data.train_labels)
    steps = epochs * -(-len(images) // _BATCH)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    done = 0
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(_BATCH):
            loss = functional.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            done += 1
            report("training", done, steps)
    return model.eval()
