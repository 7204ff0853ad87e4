"""A row of a product has the same bits whatever other rows there are, for every kind of weights.

Steps that serve many requests rest on it: a request is computed alone, among others, in chunks and
again, and must say the same.
"""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import npusim
from npusim._runtime import isa_names
from npusim.runtime.session import Session

MOST = 150
# Alone, the tiles of each instruction set, what counts as few and one more, blocks and one more.
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 24, 47, 48, 49, 97, 132, 133, MOST)
WEIGHTS = {
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "float16": ("float16", None),
    "int8": ("bfloat16", "int8"),
    "int4-g32": ("bfloat16", "int4-g32"),
    "int4-g64-asymmetric": ("float32", "int4-g64-asymmetric"),
    "int4-g128": ("float16", "int4-g128"),
}
DEPTHS = (40, 1536, 2100, 4300)  # within a block of K, one whole, parts of two and three


class Products(nn.Module):
    """A product, and a gated one behind it, over rows of K."""

    def __init__(self, k: int) -> None:
        super().__init__()
        self.only = nn.Linear(k, 37)
        self.gate, self.up = nn.Linear(k, 35, bias=False), nn.Linear(k, 35, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.only(x), nn.functional.silu(self.gate(x)) * self.up(x)


class Experts(nn.Module):
    """Rows of x [m, 72], grouped by `offsets`, by matrices stored as [out, in] or [in, out]."""

    def __init__(self, dtype: torch.dtype, turned: bool) -> None:
        super().__init__()
        shape = (4, 33, 600) if turned else (4, 600, 33)
        self.weight, self.turned = nn.Parameter(torch.randn(shape).to(dtype) / 8), turned

    def forward(self, x: Tensor, offsets: Tensor) -> Tensor:
        weight = self.weight.transpose(1, 2) if self.turned else self.weight
        return torch.ops.transformers.grouped_mm_fallback(x, weight, offsets)


def sessions(model: nn.Module, args: tuple[Tensor, ...], quantize: str | None) -> list[Session]:
    """Returns the model with a choice of rows, on every instruction set that runs here."""
    shapes = ({0: Dim("rows", max=MOST)}, *(None for _ in args[1:]))
    graph = npusim.extract_ir(model, args, dynamic_shapes=shapes)
    program = npusim.compile(graph, quantize=quantize)
    found = []
    for isa in isa_names():
        device = npusim.Device("cpu", threads=2, isa=isa)
        found.append(npusim.load(program, weights=model.state_dict(), device=device))
    return found


@pytest.mark.parametrize("k", DEPTHS)
@pytest.mark.parametrize("weights", WEIGHTS)
def test_rows_do_not_depend_on_how_many_there_are(weights: str, k: int) -> None:
    dtype, quantize = WEIGHTS[weights]
    torch.manual_seed(k)
    model = Products(k).to(getattr(torch, dtype)).eval()
    x = torch.randn(MOST, k).to(getattr(torch, dtype))
    for session in sessions(model, (x[:7],), quantize):
        whole = [y.clone() for y in session(x)]
        for count in COUNTS:
            start = (MOST - count) // 2  # another place among them, too
            for y, expected in zip(session(x[start : start + count]), whole, strict=True):
                assert torch.equal(y, expected[start : start + count]), (count, session)


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_of_experts_do_not_depend_on_how_many_there_are(dtype: str, turned: bool) -> None:
    pytest.importorskip("transformers.integrations.moe")  # defines its operator
    torch.manual_seed(2)
    model = Experts(getattr(torch, dtype), turned).eval()
    x = torch.randn(MOST, 600).to(getattr(torch, dtype))
    every = torch.tensor([0, 0, MOST, MOST], dtype=torch.int32)
    for session in sessions(model, (x[:7], every), None):
        (whole,) = session(x, every)
        whole = whole.clone()
        for count, before in itertools.product(COUNTS[:-1], (0, 1, 11)):
            rows = x[: before + count]
            ends = torch.tensor([before, before, *2 * [before + count]], dtype=torch.int32)
            (y,) = session(rows, ends)
            assert torch.equal(y[before:], whole[before : before + count]), (count, before)
