"""Small modules that each exercise one thing an extraction must get right, or refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn


class Compute(nn.Module):
    """Runs a function as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, *rest: Any) -> Any:
        """Calls the function."""
        return self.function(x, *rest)


class Tied(nn.Module):
    """Two layers that share a weight, and a third that is shared as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.third = nn.Linear(4, 4)
        self.again = self.third

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 4] to [N, 4]."""
        return self.again(self.second(self.first(x))) + self.third(x)


class Constants(nn.Module):
    """A literal, a tensor attribute, and buffers inside and outside the state_dict."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.register_buffer("mean", torch.arange(4.0))
        self.register_buffer("table", torch.arange(float(size)), persistent=False)
        self.scale = torch.tensor([2.0, 3.0, 4.0, 5.0])

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 4] to [N, 4]."""
        literal = torch.tensor([1.0, -1.0, 1.0, -1.0])
        return (x - self.mean) * self.scale + literal + self.table[:4]


@dataclass
class Result:
    """What `Structured` returns."""

    logits: Tensor
    hidden: list[Tensor]
    nothing: None = None


class Pair(NamedTuple):
    """Two tensors with names."""

    left: Tensor
    right: Tensor


class Structured(nn.Module):
    """Takes nested arguments, returns a dataclass."""

    def forward(self, x: Tensor, options: dict[str, Any], *, scale: float, mask: Any = None) -> Any:
        """Uses two entries of `options`, one of them nested in a list."""
        y = x * scale + options["bias"]
        if mask is not None:
            y = y * mask
        return Result(y, [y + 1, options["more"][0] - y])


class Named(nn.Module):
    """Blocks whose module paths and source lines nodes must carry."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.GELU()), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 4] to [N, 2]."""
        return self.shifted(self.blocks(x))

    def shifted(self, x: Tensor) -> Tensor:
        """Adds one; the line below is what a node's source names."""
        return x + 1  # line of the addition


class Counter(nn.Module):
    """Changes a buffer whenever it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Adds how often it has run."""
        self.count += 1
        return x + self.count
