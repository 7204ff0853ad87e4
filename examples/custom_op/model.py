"""A model that calls the operator, as a factory for the command line."""

from __future__ import annotations

import torch
from operators import swiglu
from torch import Tensor, nn


class GatedLayer(nn.Module):
    """Two projections, one of which gates the other."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [n, width] to [n, width]."""
        return swiglu(self.value(x), self.gate(x))


def net() -> tuple[nn.Module, tuple[Tensor]]:
    """Returns the model and example arguments."""
    return GatedLayer().eval(), (torch.rand(4, 32),)
