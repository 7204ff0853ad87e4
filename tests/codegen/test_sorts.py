"""Sorts of long lanes are stable ones: NaN the largest, -0 equal to 0, wherever tiles end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import nvrtc
from npusim.codegen.cuda.sorts import sort
from npusim.ir.types import DTYPES
from tests.codegen import host
from tests.codegen.test_kernels import check_spilling

NAN, INF = float("nan"), float("inf")
BITONIC, ROUNDS, DIGITS, WARPS = range(4)


def _params(x: Tensor, k: int, descending: int) -> dict[str, int]:
    outer, size, inner = x.shape
    code = DTYPES[str(x.dtype).removeprefix("torch.")][0]
    given = {"outer": outer, "size": size, "inner": inner, "k": k}
    return {**given, "descending": descending, "dtype": code}


def _key(x: Tensor, k: int, descending: int) -> host.Key:
    return ("sort", KERNELS["sort"].pack(_params(x, k, descending)))


def _numbers(dtype: torch.dtype, *shape: int) -> Tensor:
    """Few different ones, so that many are equal, with all that have no plain order."""
    generator = torch.Generator().manual_seed(sum(shape))
    x = torch.randint(-90, 90, shape, generator=generator)
    if not dtype.is_floating_point:
        return x.to(dtype) * (1 if torch.iinfo(dtype).bits == 8 else 2**24 - 1)
    x = (x / 8).to(dtype)
    for at, value in enumerate((NAN, -0.0, 0.0, INF, -INF, torch.finfo(dtype).tiny / 4, -NAN)):
        x.flatten()[at * 7 :: 97] = value
    return x


_ROWS = [
    (torch.float32, (1, 4097, 2), 5, 1, ROUNDS),  # the last tile has one element
    (torch.float16, (2, 2060, 1), 512, 0, ROUNDS),  # and fewer than k
    (torch.int8, (1, 70000, 1), 300, 1, ROUNDS),  # three rounds
    (torch.float32, (2, 2049, 1), 2049, 0, DIGITS),
    (torch.bfloat16, (1, 5000, 3), 5000, 1, DIGITS),
    (torch.uint8, (9, 2052, 2), 1000, 1, DIGITS),  # many lanes
    (torch.int64, (1, 4096, 1), 600, 1, DIGITS),
    (torch.float64, (1, 2100, 1), 2100, 1, DIGITS),
    (torch.float32, (1, 300, 3), 300, 1, BITONIC),
    (torch.int32, (1, 2048, 1), 7, 0, BITONIC),
    (torch.float16, (265, 130, 2), 20, 1, WARPS),  # as many lanes as warps
    (torch.int64, (529, 128, 1), 32, 0, WARPS),
    (torch.uint8, (528, 259, 1), 1, 0, WARPS),
]


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_long_lanes_are_in_a_stable_order(tmp_path: Path) -> None:
    given = [
        (_numbers(dtype, *shape), k, descending, way) for dtype, shape, k, descending, way in _ROWS
    ]
    keys = [_key(*row[:3]) for row in given]
    kernels = host.build(keys, tmp_path)
    for key, (x, k, descending, way) in zip(keys, given, strict=True):
        kernel = kernels[key]
        assert kernel.config.defines["WAY"] == way
        values = torch.empty(x.shape[0], k, x.shape[2], dtype=x.dtype)
        indices = torch.empty(values.shape, dtype=torch.int64)
        host.call(kernel, [x, values, indices])
        want = torch.sort(x, dim=1, descending=bool(descending), stable=True).indices[:, :k]
        assert torch.equal(indices, want), (x.dtype, x.shape, k)
        bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.itemsize]
        assert torch.equal(values.view(bits), x.view(bits).gather(1, want))


def test_sorts_compile_without_spilling(compiler: nvrtc.Nvrtc) -> None:
    shapes = ((torch.float32, 9000, 50), (torch.float32, 9000, 9000), (torch.float64, 9000, 9000))
    keys = [_key(torch.empty(1, size, 1, dtype=dtype), k, 1) for dtype, size, k in shapes]
    check_spilling(keys, "sm_90a", compiler)


@pytest.mark.parametrize(
    ("size", "k", "tiles"), [(32000, 100, [16, 1]), (262144, 100, [128, 7, 1])]
)
def test_rounds_have_fewer_tiles(size: int, k: int, tiles: list[int]) -> None:
    config = sort(_params(torch.empty(8, size, 1), k, 1))
    assert [launch.grid[0] for launch in config.launches] == [8 * n for n in tiles]
