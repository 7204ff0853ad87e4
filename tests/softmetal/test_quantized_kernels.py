"""Products by quantized weights on the software Metal device."""

from __future__ import annotations

import pytest
import torch

from npusim.abi.quantization import FORMATS, Quantization, dequantize, quantize
from npusim.abi.scalar import OPCODES
from tests.softmetal.matrix import CODES, close, kernels, random, results_of
from tests.softmetal.programs import Kernels

__all__ = ["kernels"]


@pytest.mark.parametrize("scheme", ["int8", "int4-g32", "int4-g64-asymmetric"])
@pytest.mark.parametrize(
    ("m", "rows", "k", "dtype", "gated"),
    [
        (1, [9], 130, torch.float16, False),
        (3, [5, 4, 1], 31, torch.float32, False),
        (9, [7, 30], 129, torch.bfloat16, False),
        (33, [40, 8], 65, torch.float32, True),
    ],
)
def test_quantized_linear(
    kernels: Kernels,
    scheme: str,
    m: int,
    rows: list[int],
    k: int,
    dtype: torch.dtype,
    gated: bool,
) -> None:
    how = Quantization.parse(scheme)
    assert how is not None
    n = sum(rows) // (2 if gated else 1)
    x, r = random(m, k + 1, dtype=dtype, seed=1), random(m, n, dtype=dtype, seed=2)
    coded = [quantize(random(count, k, seed=3 + i), how) for i, count in enumerate(rows)]
    bias, y = random(sum(rows), seed=9), torch.zeros(m, n, dtype=dtype)
    got = results_of(
        kernels,
        "quantized_linear",
        [x, *coded, bias, *([] if gated else [r])],
        y,
        m=m,
        n=n,
        k=k,
        ldx=k + 1,
        ldy=n,
        ldr=n,
        group=how.group,
        rows=rows,
        segments=len(rows),
        gated=int(gated),
        format=FORMATS[how.format],
        x_dtype=CODES[dtype],
        y_dtype=CODES[dtype],
        r_dtype=CODES[dtype],
        has_bias=1,
        residual=0 if gated else 2,
        act=OPCODES["relu"][0],
        act_lo=0.0,
        act_hi=0.0,
    )
    w = torch.cat([dequantize(c, how, rows[i], k) for i, c in enumerate(coded)]).double()
    want = x[:, :k].double() @ w.T + bias
    want = want[:, :n].relu() * want[:, n:] if gated else want.relu() + r
    close(got, want, 2 * k**0.5)
