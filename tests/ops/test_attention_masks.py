"""Attention of many rows under masks of bools that show all, some and none of a block's keys."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

import npusim

_KEYS = 300  # more than two blocks of keys, the last one cut


class Masked(torch.nn.Module):
    """Attention as the operator has it."""

    def __init__(self, scale: float | None) -> None:
        super().__init__()
        self.scale = scale

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Maps [1, 2, 70, 24] and [1, 2, 300, 24] twice to [1, 2, 70, 24]."""
        return functional.scaled_dot_product_attention(q, k, v, mask, scale=self.scale)


def masks() -> dict[str, torch.Tensor]:
    """Returns masks [70, 300]: of padding that ends a block and not, of one key, of nothing."""
    shown = torch.ones(70, _KEYS, dtype=torch.bool)
    found = {"all": shown, "padded": shown.clone(), "one hidden": shown.clone()}
    found["padded"][:, 256:] = False
    found["one hidden"][69, 299] = False
    found["first of a row"] = shown.clone()
    found["first of a row"][17, 0] = False
    found["a row without keys"] = shown.clone()
    found["a row without keys"][33] = False
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [None, 1.5, -0.25])
def test_what_a_mask_hides_is_not_seen(dtype: torch.dtype, scale: float | None) -> None:
    generator = torch.Generator().manual_seed(7)
    q, k, v = (torch.randn(1, 2, n, 24, generator=generator).to(dtype) for n in (70, _KEYS, _KEYS))
    v[:, :, 299] = 100  # what is hidden would be seen
    k[:, :, 299] = q[:, :, 69:70].mean(2)
    example = (q, k, v, masks()["all"])
    session = npusim.load(npusim.compile((Masked(scale).eval(), example)), threads=1)
    for name, mask in masks().items():
        wide = (x.double() for x in (q, k, v))
        expected = functional.scaled_dot_product_attention(*wide, mask, scale=scale)
        (found,) = session(q, k, v, mask)
        tolerance = 2e-6 if dtype is torch.float32 else 1e-2
        largest = expected.abs().max()
        assert (found.double() - expected).abs().max() <= tolerance * largest, name
        if name == "a row without keys":
            assert not found[:, :, 33].any()


def test_scores_beyond_float32_are_not_taken_for_hidden_ones() -> None:
    q, k, v = (torch.full((1, 2, n, 24), 1e20).bfloat16() for n in (70, _KEYS, _KEYS))
    example = (q, k, v, masks()["all"])
    session = npusim.load(npusim.compile((Masked(None).eval(), example)), threads=1)
    assert session(*example)[0].isnan().all()
