"""Reductions that read once what PyTorch reads twice have its results, of any numbers."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

from npusim.abi.kernels import KERNELS
from npusim.ir.types import DTYPES
from tests.codegen import host

NAN, INF = float("nan"), float("inf")
VAR, LOG_SUM_EXP = 9, 14


def _key(x: Tensor, op: int) -> host.Key:
    """Of columns."""
    elements, outputs = x.shape
    code = DTYPES[str(x.dtype).removeprefix("torch.")][0]
    given = {"op": op, "x_dtype": code, "y_dtype": code, "correction": 1.0, "rank": 1}
    given |= {"shape": [outputs], "x_strides": [1], "y_strides": [1], "reduced_rank": 1}
    params = {**given, "reduced": [elements], "reduced_strides": [outputs]}
    return ("reduce", KERNELS["reduce"].pack(params))


def _columns(elements: int, dtype: torch.dtype) -> Tensor:
    x = torch.randn(elements, 9, generator=torch.Generator().manual_seed(1), dtype=dtype)
    x[:, 0], x[:, 1], x[:, 2] = -INF, 77.7, torch.linspace(-60, 60, elements)
    x[elements // 2, 3], x[elements // 3, 4], x[elements - 1, 5] = NAN, INF, -INF
    x[0, 6] = 1e5  # far from all others, the one from which distances are taken
    x[1:, 7], x[:, 8] = -INF, 1e4 + x[:, 8]
    return x


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_variances_and_exponentials_are_those_of_pytorch(tmp_path: Path) -> None:
    sizes = ((1, torch.float32), (70, torch.float64), (9000, torch.float32), (9000, torch.float64))
    given = [torch.empty(0, 3), *(_columns(*size) for size in sizes)]
    chosen = [(x, op) for x in given for op in (VAR, LOG_SUM_EXP)]
    keys = [_key(*row) for row in chosen]
    kernels = host.build(keys, tmp_path)
    assert {len(kernel.config.launches) for kernel in kernels.values()} == {1, 2}
    for key, (x, op) in zip(keys, chosen, strict=True):
        wide = x.double()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch's of the variance of one
            want = wide.var(0) if op == VAR else wide.logsumexp(0)
        y = torch.empty(x.shape[1], dtype=x.dtype)
        host.call(kernels[key], [x, y])
        error = 1e-10 if x.dtype == torch.float64 else 1e-6
        torch.testing.assert_close(y, want.to(x.dtype), rtol=error, atol=0, equal_nan=True)
