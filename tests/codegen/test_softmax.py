"""Columns of a softmax that threads share are PyTorch's, wherever the last column of a block is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from npusim.abi.kernels import KERNELS
from npusim.ir.types import DTYPES
from tests.codegen import host

NAN, INF = float("nan"), float("inf")


def _key(x: Tensor, log: int) -> host.Key:
    outer, size, inner = x.shape
    code = DTYPES[str(x.dtype).removeprefix("torch.")][0]
    given = {"outer": outer, "size": size, "inner": inner, "log": log}
    return ("softmax", KERNELS["softmax"].pack({**given, "x_dtype": code, "y_dtype": code}))


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_threads_share_columns(tmp_path: Path) -> None:
    """Columns of infinities and NaN stay apart from their neighbours; y may be x's memory."""
    x = 4 * torch.randn(3, 45, 11, generator=torch.Generator().manual_seed(3))
    x[0, :, 0], x[0, 44, 1], x[1, 7, 10], x[2, :44, 5] = -INF, NAN, INF, -INF
    chosen = [(x, 0), (x, 1), (x.half(), 0), (x.double(), 1), (x[:, :5].contiguous(), 0)]
    keys = [_key(*row) for row in chosen]
    kernels = host.build(keys, tmp_path)
    shared = [kernels[key].config.defines["PARTS"] for key in keys]
    assert min(shared[:4]) > 1 and shared[4] == 1
    for key, (given, log) in zip(keys, chosen, strict=True):
        wide = given.double()
        want = (wide.log_softmax(1) if log else wide.softmax(1)).to(given.dtype)
        y = given.clone()
        host.call(kernels[key], [y, y])
        error = 2e-3 if given.dtype == torch.float16 else 2e-6
        torch.testing.assert_close(y, want, rtol=error, atol=error, equal_nan=True)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_blocks_share_long_columns_and_rows(tmp_path: Path) -> None:
    """A slice of -inf alone adds nothing to its column; the last slice is shorter than others."""
    generator = torch.Generator().manual_seed(4)
    x = 4 * torch.randn(1, 8201, 5, generator=generator)
    x[0, :, 0], x[0, 8200, 1], x[0, 3, 2], x[0, 10:, 3] = -INF, NAN, INF, -INF
    row = 4 * torch.randn(2, 65537, 1, generator=generator)
    row[0, 500:60000] = -INF
    half = torch.randn(2, 4100, 11, generator=generator).half()
    chosen = [(x, 0), (x, 1), (row, 0), (half, 1)]
    keys = [_key(*given) for given in chosen]
    kernels = host.build(keys, tmp_path)
    for key, (given, log) in zip(keys, chosen, strict=True):
        assert len(kernels[key].config.launches) == 2
        wide = given.double()
        want = (wide.log_softmax(1) if log else wide.softmax(1)).to(given.dtype)
        y = given.clone()
        host.call(kernels[key], [y, y])
        error = 2e-3 if given.dtype == torch.float16 else 4e-6
        torch.testing.assert_close(y, want, rtol=error, atol=error, equal_nan=True)
