"""Runs one matrix kernel on the software Metal device in every order and layout, the same bits."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from tests.softmetal import metal
from tests.softmetal.programs import Kernels

CODES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2, torch.int64: 4, torch.int32: 5}
# Of sums in float32 over operands of about 1, then rounded to the dtype.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SCHEDULES = list(zip(metal.ORDERS, (0, 1, 0, 1, 0), strict=True))  # with layouts of matrices
FAMILIES = ["metal:apple7", "metal:apple6"]  # with matrices of SIMD groups, and without


def family_of(target: str) -> int:
    """The number of a target's GPU family."""
    return int(target.removeprefix("metal:apple"))


@pytest.fixture(params=FAMILIES)
def kernels(request: pytest.FixtureRequest, device: metal.Device) -> Kernels:
    """Kernels of a GPU family, on a device that is no newer."""
    metal.set_option("FAMILY", family_of(request.param))
    return Kernels(device, request.param)


def results_of(
    kernels: Kernels,
    stem: str,
    operands: Sequence[torch.Tensor],
    y: torch.Tensor,
    **params: object,
) -> torch.Tensor:
    """Returns y, last of the operands, as a kernel leaves it in every schedule."""
    operands = [t if t.numel() else t.new_zeros(1) for t in operands]  # Metal has no empty buffers
    results = []
    for order, layout in SCHEDULES:
        metal.set_option("ORDER", order)
        metal.set_option("MATRIX_LAYOUT", layout)
        given = [t.clone() for t in (*operands, y)]
        kernels.call(stem, given, **params)
        results.append(given[-1])
    bits = [r.view(torch.uint8) for r in results]
    assert all(torch.equal(bits[0], other) for other in bits[1:]), "the order matters"
    return results[0]


def close(got: torch.Tensor, want: torch.Tensor, size: float = 1.0) -> None:
    """Compares with what was computed in float64; `size` is about the sums' magnitude."""
    limit = TOLERANCE[got.dtype]
    torch.testing.assert_close(
        got.double(), want.double(), rtol=limit, atol=limit * size, equal_nan=True
    )


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """Numbers about 1 of a dtype; small integers of an integer one."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return made.to(dtype) if dtype.is_floating_point else (made * 5).to(dtype)
