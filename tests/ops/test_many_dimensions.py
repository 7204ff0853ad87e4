"""Tensors of more dimensions than a kernel takes, as orders of nested windows give them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import npusim
from npusim.errors import UnsupportedOpError
from tests.frontends.modules import Compute

ORDER = (9, 4, 7, 2, 5, 0, 3, 8, 1, 6)  # no two that follow each other merge
SHAPE = (2,) * 10


def mixed(x: Tensor) -> Tensor:
    return x.permute(ORDER)


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "copied": lambda x: mixed(x).reshape(-1),
    "computed": lambda x: (mixed(x).exp() + x).reshape(32, -1),
    "in place": lambda x: (mixed(x.exp()) + 1).permute(ORDER) * 2,
    "repeated": lambda x: x[:, :1, :, :1].expand(SHAPE).permute(ORDER).reshape(-1),
    "filled": lambda x: x.new_zeros(SHAPE).permute(ORDER).fill_(3.0) + mixed(x),
    "summed": lambda x: mixed(x).sum((1, 8)),
    "positions": lambda x: mixed(x).argmax(2),
    "normed": lambda x: torch.softmax(mixed(x), 3),
    "joined": lambda x: torch.cat([mixed(x), mixed(x) * 2], 4),
    "padded": lambda x: torch.nn.functional.pad(mixed(x), (1, 1, 0, 1)),
    "products": lambda x: mixed(x) @ mixed(x).transpose(-1, -2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_ten_dimensions(name: str) -> None:
    function = FUNCTIONS[name]
    x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    graph = npusim.extract_ir(Compute(function).eval(), (x,))
    assert not npusim.check(graph).others
    session = npusim.load(npusim.compile(graph), weights={}, threads=1)
    torch.testing.assert_close(session(x)[0], function(x))


def test_more_parts_than_a_program_has_commands_for() -> None:
    shape = (2,) * 22
    with pytest.raises(UnsupportedOpError, match="dimensions that do not merge"):
        x = torch.empty(shape, device="meta")
        model = Compute(lambda x: x.permute(*range(0, 22, 2), *range(1, 22, 2)).exp().flatten())
        npusim.compile(npusim.extract_ir(model.eval(), (x,)))


def test_a_kernel_without_room_is_named() -> None:
    x = torch.randn((2,) * 20)
    model = Compute(lambda x: x.amax(tuple(range(0, 20, 2))))
    with pytest.raises(UnsupportedOpError, match=r"aten\.amax.*\n*.*room for 8 values"):
        npusim.compile(npusim.extract_ir(model.eval(), (x,)))
