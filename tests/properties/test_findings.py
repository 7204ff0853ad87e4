"""What random graphs and PyTorch's samples have found, as the smallest calls that showed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import npusim


class Called(nn.Module):
    """A function of tensors as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.eval()

    def forward(self, *tensors: Tensor) -> Any:
        return self.function(*tensors)


def _data(*shape: int) -> Tensor:
    return torch.linspace(-2, 2, int(torch.Size(shape).numel())).reshape(shape)


FINDINGS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...]]] = {
    "any over an empty list of dimensions reduces nothing": (
        lambda x: torch.any(x, ()),
        (_data(3, 5) > 0,),
    ),
    "a window of an empty tensor has no place in memory": (
        lambda x: x[:, 1:2].sum(1) + 1,
        (torch.zeros(0, 2),),
    ),
    "an empty input may have any strides": (
        lambda x: x.sum(0),
        (torch.zeros(0, 3).as_strided((0, 3), (1, 7)),),
    ),
    "windows of a scalar": (lambda x: x.unfold(0, 1, 1), (torch.tensor(3.0),)),
    "the norm of order 0 counts": (
        lambda x: torch.linalg.vector_norm(x, 0, 1),
        (_data(3, 4).round(),),
    ),
    "an unbatched convolution with a computed weight": (
        lambda x, w: torch.conv1d(x, w * 2, None, 1, 1),
        (_data(3, 9), _data(4, 3, 3)),
    ),
    "a convolution over no channels gives none": (
        lambda x, w, b: torch.conv1d(x, w, b),
        (torch.zeros(2, 0, 3), torch.zeros(4, 0, 1), _data(4)),
    ),
    "a stored weight over no channels gives none either": (
        lambda x: torch.conv1d(x, torch.zeros(4, 0, 1), torch.ones(4)),
        (torch.zeros(2, 0, 3),),
    ),
    "a product of two scalars of 16 bits and more": (
        lambda x, y: x * y,
        (torch.tensor(0.3337, dtype=torch.float16), torch.tensor(2051)),
    ),
    "a quotient of two scalars of 16 bits and more": (
        lambda x, y: x / y,
        (torch.tensor(0.3337, dtype=torch.bfloat16), torch.tensor(261)),
    ),
    "what no element needs may decide the shape": (
        lambda x, y: torch.exp(torch.fmax(torch.isnan(x), y)),
        (torch.ones(3, 4, dtype=torch.bool), torch.ones(3, 1, dtype=torch.bool)),
    ),
    "an empty tensor, unshuffled": (
        lambda x: torch.nn.functional.pixel_unshuffle(x, 2),
        (torch.zeros(0, 0, 0),),
    ),
    "scatter_reduce by mean, without what is there": (
        lambda x, i, s: torch.scatter_reduce(x, 0, i, s, "mean", include_self=False),
        (_data(4), torch.tensor([0, 0, 2]), _data(3)),
    ),
    "a scalar as the target of a scatter": (
        lambda x, i, s: torch.scatter_add(x, 0, i, s),
        (torch.tensor(1.0), torch.tensor(0), torch.tensor(2.0)),
    ),
}


@pytest.mark.parametrize("finding", FINDINGS)
def test_finding(finding: str) -> None:
    function, tensors = FINDINGS[finding]
    model = Called(function)
    session = npusim.load(npusim.compile(npusim.extract_ir(model, tensors)))
    (result,) = session(*tensors)
    torch.testing.assert_close(result, model(*tensors))
