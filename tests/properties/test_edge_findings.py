"""What edge values have found, as the smallest calls that show it, equal to PyTorch bit for bit but
for the sign of 0 where a bound of 0 meets it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import npusim
from tests.properties.test_findings import Called

INF, NAN = math.inf, math.nan
_ALL = (0.0, -0.0, 1e-45, -1e-12, 1e-12, 1.0, -1.0, 3.4e38, -3.4e38, INF, -INF, NAN)


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    high = x.bfloat16()
    return high, (x - high.float()).bfloat16()


CALLS: dict[str, Callable[[Tensor], Any]] = {
    "a clamp beside zero": lambda x: x.clamp(min=1e-12),
    "a logarithm of a clamp": lambda x: x.clamp(min=1e-30).reciprocal(),
    "a maximum with a small number": lambda x: torch.maximum(x, torch.tensor(1e-9)),
    "a choice above a small number": lambda x: torch.where(x > 1e-9, x, 0.0),
    "a choice that drops NaN": lambda x: torch.where(x > 0, x, 0.0),
    "a choice that keeps NaN": lambda x: torch.where(x < 0, 0.0, x),
    "a bound below the largest": lambda x: x.clamp(0, 3e38),
    "zero added to minus zero": lambda x: (x + 0.0).reciprocal(),
    "zero taken from minus zero": lambda x: (x - 0.0).reciprocal(),
    "minus zero added": lambda x: (x + -0.0).reciprocal(),
    "a tensor of zeros added": lambda x: (x + torch.zeros(())).reciprocal(),
    "zeros of both signs": lambda x: x.reciprocal() * torch.tensor([0.0, -0.0]).repeat(6),
    "one half's number": lambda x: x * torch.full((12,), 0.1, dtype=torch.float16).float(),
    "a cast to float16 and back": lambda x: x.half().float() + 1,
    "a cast to bfloat16 and back": lambda x: x.bfloat16().float() * 3,
    "what a cast left over": _halves,
    "integers through bfloat16": lambda x: x.isnan().long().add(257).bfloat16().float() + 1,
    "an empty row under a softmax": lambda x: torch.softmax(x * torch.tensor(INF), 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_edge_values(name: str) -> None:
    function, x = CALLS[name], torch.tensor(_ALL)
    results = _native(function, x)
    expected = function(x)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for actual, wanted in zip(results, expected, strict=True):
        assert actual.dtype == wanted.dtype
        signs = (actual.signbit() == wanted.signbit()) | torch.tensor("bound" in name)
        same = (actual == wanted) & signs
        same |= actual.isnan() & wanted.isnan()
        assert bool(same.all()), f"{x[~same]}: {actual[~same]}, not {wanted[~same]}"


def _native(function: Callable[..., Any], *tensors: Tensor) -> list[Tensor]:
    graph = npusim.extract_ir(Called(function), tensors)
    session = npusim.load(npusim.compile(graph), threads=1)
    return [torch.as_tensor(result) for result in session(*tensors)]


def _softmax(x: Tensor) -> Tensor:
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


def _log_softmax(x: Tensor) -> Tensor:
    return x - x.logsumexp(-1, keepdim=True)


def _norm(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def _normalize(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1)


_ROWS = torch.tensor([[100.0, 1, 2], [-200, -201, -202], [INF, 0, 1], [-INF, 0, 1], [0, 0, 0]])


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (_softmax, _ROWS),
        (_log_softmax, _ROWS),
        (_norm, _ROWS),
        (_norm, (_ROWS * 10).half()),
        (_normalize, _ROWS),
    ],
)
def test_rows_that_overflow_or_vanish(function: Callable[[Tensor], Tensor], x: Tensor) -> None:
    (actual,) = _native(function, x)
    tolerance = 1e-3 if x.dtype == torch.float16 else 1e-6
    torch.testing.assert_close(actual, function(x), equal_nan=True, rtol=tolerance, atol=tolerance)


def test_a_small_factor_leaves_float16_weights_alone() -> None:
    layer = torch.nn.Linear(8, 4, dtype=torch.float16)
    x = torch.randn(2, 8, dtype=torch.float16) * 100
    graph = npusim.extract_ir(torch.nn.Sequential(layer, _Times(1e-4)).eval(), (x,))
    state = {f"0.{k}": v for k, v in layer.state_dict().items()}
    (actual,) = npusim.load(npusim.compile(graph), state, threads=1)(x)
    expected = layer(x).float() * 1e-4
    torch.testing.assert_close(torch.as_tensor(actual).float(), expected, rtol=2e-2, atol=1e-7)


class _Times(torch.nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor
