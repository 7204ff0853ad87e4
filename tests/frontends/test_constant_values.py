"""Branches on values that constants decide are taken; others are refused as ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.errors import ExportError
from tests.frontends.modules import Compute

CAUSAL = nn.Transformer.generate_square_subsequent_mask


def agrees(model: nn.Module, *args: Tensor) -> None:
    model.eval()
    with torch.no_grad():
        wanted = model(*args)
    graph = npusim.extract_ir(model, args)
    session = npusim.load(npusim.compile(graph), weights=model.state_dict(), threads=1)
    torch.testing.assert_close(session(*args)[0], wanted)


class Translator(nn.Module):
    """nn.Transformer, which compares the mask that it is given with a causal one."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Transformer(16, 2, 1, 1, 24, batch_first=True)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Maps [N, S, 16] and [N, T, 16] to [N, T, 16]."""
        found: Tensor = self.body(x, y, tgt_mask=CAUSAL(y.shape[1]))
        return found


def test_the_masks_of_a_transformer() -> None:
    torch.manual_seed(0)
    agrees(Translator(), torch.randn(2, 7, 16), torch.randn(2, 5, 16))


def built(x: Tensor) -> Tensor:
    mask = torch.zeros(4, 4)
    mask[0, 1:] = 1.0
    mask.view(-1)[4:].fill_(2.0)  # by another name
    if mask.sum() == 27:
        return x + mask
    return x - mask


def numbers(x: Tensor) -> Tensor:
    sizes = torch.arange(1, 4).cumsum(0)
    parts = x.flatten()[: int(sizes[-1])].split([1, 2, 3])
    scale = float(torch.linspace(0, 1, 5)[2]) + sizes.tolist()[1]
    return parts[2] * scale * (2 if torch.equal(sizes, torch.tensor([1, 3, 6])) else 3)


@pytest.mark.parametrize("function", [built, numbers])
def test_values_that_constants_decide(function: Callable[[Tensor], Tensor]) -> None:
    agrees(Compute(function), torch.randn(4, 4))


def of_an_input(x: Tensor) -> Tensor:
    mask = torch.zeros(4, 4)
    mask[0] = x[0]
    return x if mask.any() else -x


def of_chance(x: Tensor) -> Tensor:
    return x if torch.rand(2).sum() > 1 else -x


def of_nothing(x: Tensor) -> Tensor:
    return x if torch.empty(2, 2).sum() > 1 else -x


@pytest.mark.parametrize("function", [of_an_input, of_chance, of_nothing])
def test_values_that_constants_do_not_decide(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ExportError, match=r"depends on the values of tensors|Tensor\.item"):
        npusim.extract_ir(Compute(function).eval(), (torch.randn(4, 4),))


def test_a_weight_decides_nothing() -> None:
    model = nn.Linear(4, 4)
    asking = Compute(lambda x: x if model.weight.sum() > 0 else -x)
    asking.layer = model
    with pytest.raises(ExportError, match="depends on the values of tensors"):
        npusim.extract_ir(asking.eval(), (torch.randn(4, 4),))


class Chooses(nn.Module):
    """A layer that looks at its mask."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Maps [N, 4] to [N, 4]."""
        found: Tensor = self.layer(x)
        return found * 2 if mask.any() else found


class Layers(nn.Module):
    """Equal layers over masks that differ in what they hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Chooses() for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [N, 4] to [N, 4]."""
        for index, layer in enumerate(self.layers):
            x = layer(x, torch.full((4,), float(index == 3)))
        return x


def test_equal_layers_with_masks_that_differ() -> None:
    torch.manual_seed(0)
    agrees(Layers(), torch.randn(3, 4))
