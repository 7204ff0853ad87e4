"""Products by quantized weights on the software Metal device."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import npusim
from npusim.abi.quantization import FORMATS, Quantization, dequantize, quantize, quantized_bytes
from npusim.abi.scalar import OPCODES
from npusim.targets import TargetConfig
from tests.softmetal import metal
from tests.softmetal.matrix import CODES, close, kernels, random, results_of
from tests.softmetal.programs import Kernels, run_program

__all__ = ["kernels"]


@pytest.mark.parametrize("scheme", ["int8", "fp8", "int4-g32", "int4-g64-asymmetric"])
@pytest.mark.parametrize(
    ("m", "rows", "k", "dtype", "gated"),
    [
        (1, [9], 130, torch.float16, False),
        (3, [5, 4, 1], 31, torch.float32, False),
        (9, [7, 30], 129, torch.bfloat16, False),
        (33, [40, 8], 65, torch.float32, True),
        (2, [5, 3], 2100, torch.float16, True),
        (9, [7], 513, torch.float16, False),
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


@pytest.mark.parametrize("scheme", ["int8", "fp8", "int4-g32", "int4-g64-asymmetric"])
@pytest.mark.parametrize(
    ("rows", "k", "dtype"),
    [(1, 1, torch.float32), (9, 131, torch.float16), (3, 256, torch.bfloat16)],
)
def test_quantize_writes_what_its_reference_does(
    kernels: Kernels, scheme: str, rows: int, k: int, dtype: torch.dtype
) -> None:
    """Elements differ by a step of their scale where sums in another order choose another one."""
    how = Quantization.parse(scheme)
    assert how is not None
    w = random(rows, k + 1, dtype=dtype, seed=3)
    w[0, : k // 2] = 0
    room = torch.zeros(quantized_bytes(how, rows, k), dtype=torch.uint8)
    got = results_of(
        kernels,
        "quantize",
        [w],
        room,
        rows=rows,
        k=k,
        ldw=k + 1,
        group=how.group,
        format=FORMATS[how.format],
        x_dtype=CODES[dtype],
    )
    want = dequantize(quantize(w[:, :k], how), how, rows, k)
    ours = dequantize(got, how, rows, k)
    error = [(w[:, :k].float() - v).square().sum() for v in (ours, want)]
    assert error[0] <= error[1] * 1.01 + 1e-9
    assert (ours - want).abs().max() <= (1e-6 if how.bytes_a_code else 0.01)


def test_a_model_compiled_with_quantized_weights(device: metal.Device) -> None:
    """Passes, init that quantizes, and products by what it wrote."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(128, 64), torch.nn.ReLU(), torch.nn.Linear(64, 80)
    ).eval()
    x = torch.randn(3, 128)
    target = replace(TargetConfig.named("metal"), weight_quantization="int8")
    program = npusim.compile(npusim.extract_ir(model, (x,)), target)
    assert "quantized_linear" in {kernel.name for kernel in program.kernels}
    weights = {
        k: v.detach().reshape(-1).view(torch.uint8).numpy() for k, v in model.state_dict().items()
    }
    data = x.reshape(-1).view(torch.uint8).numpy()
    (got,) = run_program(Kernels(device), program, [data], weights)
    want = model(x).detach()
    found = torch.from_numpy(got).view(torch.float32)[: want.numel()].reshape(want.shape)
    assert (found - want).norm() < 0.02 * want.norm()
