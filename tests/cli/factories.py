"""Factories the command line is given in these tests, good ones and bad ones."""

from __future__ import annotations

import torch
from torch import nn


class TwoInputs(nn.Module):
    """Adds a linear map of `x` to `y`; returns the sum and its maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        total = self.linear(x) * self.scale + y
        return {"total": total, "largest": total.amax(1)}


class DataDependent(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x


class Inverse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv_ex(torch.linalg.cholesky_ex(x)[0])[0]


class Solved(nn.Module):
    """Between two native layers, what only PyTorch has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv_ex(x @ x.T + torch.eye(2))[0] @ x


class LargeBuffer(nn.Module):
    """A buffer that `state_dict()` leaves out, too large to travel with the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.ones(512, 1024), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table


class Unrepeatable(nn.Module):
    """Computes something else on each call, so that no compiled form can agree with it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.calls += 1
        return self.linear(x) + self.calls


def soft():
    """Exponentials are rounded, by everybody in another way."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Softmax(-1), nn.Linear(16, 4)).eval()
    return model, (torch.randn(2, 8),)


def mlp():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    return model, (torch.randn(2, 8),)


def meta_mlp():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
        return model, (torch.empty(2, 8),)


def two_inputs():
    torch.manual_seed(0)
    return TwoInputs().eval(), (torch.randn(3, 8),), {"y": torch.randn(3, 4)}


def tied():
    torch.manual_seed(0)
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)
    second.weight = first.weight
    return nn.Sequential(first, nn.Tanh(), second).eval(), (torch.randn(2, 8),)


def talkative():
    print("hello from the factory")
    return mlp()


def data_dependent():
    return DataDependent().eval(), (torch.randn(2, 3),)


def unsupported():
    return Inverse().eval(), (torch.eye(4),)


def partly():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 2), Solved(), nn.Linear(2, 4)).eval(), (torch.randn(2, 8),)


def large_buffer():
    return LargeBuffer().eval(), (torch.randn(1024),)


def unrepeatable():
    torch.manual_seed(0)
    return Unrepeatable().eval(), (torch.randn(2, 8),)


def broken():
    raise RuntimeError("no checkpoint here")


def only_a_model():
    return mlp()[0]


not_a_function = 3


def wide_mlp():
    """Layers large enough to be quantized."""
    model = nn.Sequential(nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 64)).eval()
    return model, (torch.randn(5, 96),)
