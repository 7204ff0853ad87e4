"""A multilayer perceptron: so small that what is measured is the cost of a call."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor, nn


class MLP(nn.Sequential):
    """Linear layers with ReLU between them."""

    def __init__(self, sizes: Sequence[int] = (16, 16, 16)) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        super().__init__(*layers[:-1])

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, sizes[0]] to [N, sizes[-1]]."""
        return super().forward(x)
