"""Reductions of tensors without dimensions, over the dimension that PyTorch lets them have."""

from __future__ import annotations

import pytest
import torch

import npusim


class _Reduced(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        values, places = x.max(0)
        return [x.sum(0), x.mean(-1), x.amax(0), x.cumsum(0), x.logsumexp(0), values, places,
                *x.cummax(-1), *x.cummin(0), x.softmax(-1), x.sum((0,), keepdim=True)]  # fmt: skip


@pytest.mark.parametrize("value", [3.5, -0.0, float("nan"), float("-inf")])
def test_a_number_alone(value: float) -> None:
    x = torch.tensor(value)
    results = npusim.load(npusim.compile(npusim.extract_ir(_Reduced().eval(), (x,))))(x)
    for got, want in zip(results, _Reduced()(x), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), want, equal_nan=True)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_running_extremes_of_nothing(shape: tuple[int, ...]) -> None:
    class Extremes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [*x.cummax(0), *x.cummin(1)]

    x = torch.zeros(shape)
    results = npusim.load(npusim.compile(npusim.extract_ir(Extremes().eval(), (x,))))(x)
    for got, want in zip(results, Extremes()(x), strict=True):
        assert torch.equal(torch.as_tensor(got), want)


def test_running_extremes_of_nan_and_of_equals() -> None:
    class Extremes(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [*x.cummax(1), *x.cummin(1), *x.nan_to_num(7.0).long().cummax(0)]

    nan = float("nan")
    x = torch.tensor([[1.0, 1.0, 0.0, nan, 5.0, nan], [-2.0, -3.0, -3.0, 4.0, 4.0, nan]])
    results = npusim.load(npusim.compile(npusim.extract_ir(Extremes().eval(), (x,))))(x)
    for got, want in zip(results, Extremes()(x), strict=True):
        torch.testing.assert_close(torch.as_tensor(got), want, equal_nan=True, rtol=0, atol=0)
