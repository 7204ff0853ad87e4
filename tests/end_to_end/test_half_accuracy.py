"""Convolutions in 16-bit floats, against float64: nearer to it than PyTorch's are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import npusim
from tests.models import build

# Parts of PyTorch's error; scales multiplied into weights of 16 bits would leave 0.74 to 1.42.
PARTS = {"resnet50": 0.6, "mobilenet_v2": 0.8, "vgg11_bn": 0.93}


def rms_error(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want).square().mean().sqrt() / want.square().mean().sqrt())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", PARTS)
def test_norms_of_halves_are_folded_without_rounding_again(name: str, dtype: torch.dtype) -> None:
    model, (x,) = build(name, small=True, batch=8)
    model, x = model.to(dtype), x.to(dtype)
    with torch.no_grad():
        theirs = model(x)
        session = npusim.load(npusim.compile((model, (x,)), "cpu"), model.state_dict())
        ours = session(x)[0]
        want = model.double()(x.double())
    assert rms_error(ours, want) <= PARTS[name] * rms_error(theirs, want)
