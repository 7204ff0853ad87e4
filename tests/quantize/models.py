"""Small networks with seeded weights for the tests of quantization, and their calibration data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import npusim
from npusim.ir.graph import Graph


class Residual(nn.Module):
    """Convolutions with batch norms, a pool, a sum, a concatenation, a mean and a linear."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.left = nn.Conv2d(8, 8, 3, padding=1)
        self.right = nn.Conv2d(8, 8, 1)
        self.deep = nn.Conv2d(16, 8, 3, groups=2)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [N, 3, 8, 8] to [N, 5]."""
        x = functional.max_pool2d(functional.relu(self.norm(self.stem(x))), 2)
        y = functional.relu(self.left(x) + x)
        y = torch.cat([y, functional.relu(self.right(x))], dim=1)
        return self.head(self.deep(y).mean(dim=(2, 3)))  # type: ignore[no-any-return]


class Perceptron(nn.Module):
    """Linears with a GELU and a layer norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 24)
        self.norm = nn.LayerNorm(24)
        self.second = nn.Linear(24, 7, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps [N, 12] to [N, 7]."""
        return self.second(self.norm(functional.gelu(self.first(x))))  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Model:
    graph: Graph
    weights: Mapping[str, Any]
    data: dict[str, np.ndarray]


def made(module: nn.Module, *example: torch.Tensor, samples: int = 24, **options: Any) -> Model:
    """Returns a module as a graph with its weights and data for its first input."""
    module.eval()
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.uniform_(-1, 1)
                part.running_var.uniform_(0.5, 2)
    graph = npusim.extract_ir(module, example, **options)
    weights = {key: value.numpy().copy() for key, value in module.state_dict().items()}
    shape = (samples, *example[0].shape[1:])
    data = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    return Model(graph, weights, {graph.inputs[0].name: data})


def residual() -> Model:
    """A `Residual` for one image."""
    torch.manual_seed(1)
    return made(Residual(), torch.zeros(1, 3, 8, 8))


def perceptron() -> Model:
    """A `Perceptron` for two rows."""
    torch.manual_seed(2)
    return made(Perceptron(), torch.zeros(2, 12))


def outputs(graph: Graph, weights: Mapping[str, Any], x: np.ndarray) -> np.ndarray:
    """Returns the first output over all rows of x, in calls of the graph's batch."""
    session = npusim.load(npusim.compile(graph), weights, threads=1)
    batch = graph.inputs[0].type.shape[0]
    calls = [np.ascontiguousarray(x[i : i + batch]) for i in range(0, len(x), batch)]
    return np.concatenate([session(call)[0] for call in calls])
