"""Scans of few long lanes, which blocks share, are those of one block, wherever pieces end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from npusim.abi.kernels import KERNELS
from npusim.ir.types import DTYPES
from tests.codegen import host

NAN, INF = float("nan"), float("inf")
SUM, MAX, LOG_SUM_EXP = 0, 2, 4
_PYTORCH = {SUM: torch.cumsum, LOG_SUM_EXP: torch.logcumsumexp}


def _key(x: Tensor, op: int) -> host.Key:
    outer, size, inner = x.shape
    code = DTYPES[str(x.dtype).removeprefix("torch.")][0]
    given = {"outer": outer, "size": size, "inner": inner, "op": op}
    return ("scan", KERNELS["scan"].pack({**given, "x_dtype": code, "y_dtype": code}))


def _scanned(x: Tensor, op: int) -> Tensor:
    if op == MAX:
        return x.cummax(1).values
    return _PYTORCH[op](x.double() if x.is_floating_point() else x, 1).to(x.dtype)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_pieces_follow_one_another(tmp_path: Path) -> None:
    """The last has one element; y may be x's memory."""
    generator, size = torch.Generator().manual_seed(2), 8193
    x = torch.randn(1, size, 2, generator=generator)
    x[0, 5000, 0], x[0, size - 1, 1] = INF, NAN
    whole = torch.randint(-(2**62), 2**62, (2, size, 1), generator=generator)
    chosen = [(x, SUM), (x, MAX), (x, LOG_SUM_EXP), (whole, SUM)]
    keys = [_key(*row) for row in chosen]
    kernels = host.build(keys, tmp_path)
    for key, (x, op) in zip(keys, chosen, strict=True):
        kernel = kernels[key]
        assert len(kernel.config.launches) == 2
        y = x.clone()
        host.call(kernel, [y, y] if op == MAX else [x, y])
        error = 1e-6 if x.is_floating_point() else 0.0
        torch.testing.assert_close(y, _scanned(x, op), rtol=error, atol=error, equal_nan=True)
