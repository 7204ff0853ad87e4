"""torch.cond: results are those of the branch that the condition says, for all values of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import npusim

from .modules import Compute


class Gated(nn.Module):
    """Layers that run one of two linears each."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.second = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor, up: Tensor) -> Tensor:
        """Maps [N, 4] to [N, 4]."""
        for one, other in zip(self.first, self.second, strict=True):
            x = torch.cond(up, lambda x, f=one: f(x).relu(), lambda x, f=other: f(x), (x,))
        return x


def _nested(x: Tensor, n: Tensor) -> Tensor:
    def many(x: Tensor, n: Tensor) -> Tensor:
        return torch.cond(n > 4, lambda x: x + 1, lambda x: x.clone().mul_(2), (x,))

    return torch.cond(n > 2, many, lambda x, n: x * 0 + n, (x, n))


def _several(x: Tensor, n: Tensor) -> Any:
    # A condition of one element is no reason to give results of one dimension more.
    sums, parts = torch.cond(
        (n > 2).view(1, 1),
        *(lambda x: (x.sum(), x * 2), lambda x: (x.amax(), x.exp())),
        (x,),
    )
    return sums, parts


@pytest.mark.parametrize("function", [_nested, _several])
def test_the_branch_that_the_condition_says(function: Callable[..., Any]) -> None:
    model, x = Compute(function).eval(), torch.randn(3, 4)
    graph = npusim.extract_ir(model, (x, torch.tensor(1)))
    run = npusim.load(npusim.compile(graph), weights={})
    for n in map(torch.tensor, (1, 3, 7)):
        wanted = model(x, n)
        got = run(x, n)
        for a, b in zip(got, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
            torch.testing.assert_close(torch.as_tensor(a), b)


def test_layers_of_branches_at_open_sizes() -> None:
    model = Gated().eval()
    up = torch.tensor(True)
    shapes = {"x": {0: Dim("n", max=8)}, "up": None}
    graph = npusim.extract_ir(model, (torch.randn(3, 4), up), dynamic_shapes=shapes)
    run = npusim.load(npusim.compile(graph), weights=model.state_dict())
    for x in (torch.randn(1, 4), torch.randn(8, 4)):
        for condition in (up, ~up):
            with torch.no_grad():
                torch.testing.assert_close(
                    torch.as_tensor(run(x, condition)[0]), model(x, condition)
                )
