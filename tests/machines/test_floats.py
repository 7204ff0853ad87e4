"""Floats on described machines: sums of float32, within the bound that these have in any order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import npusim
from npusim.targets import TargetConfig, override

Run = Callable[..., torch.Tensor]
U32 = 2.0**-24  # half a unit in the last place, of what is 1
HALF = {torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
TINY = {torch.float32: 2.0**-149, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}
DTYPES = {
    "npu-edge-32x32": (torch.float32, torch.float16, torch.bfloat16),
    "tpu-v3": (torch.bfloat16,),
}
OPS: dict[str, tuple[Run, tuple[int, ...], tuple[int, ...]]] = {
    "linear": (F.linear, (7, 300), (19, 300)),
    "matmul": (lambda x, w: x @ w.mT, (2, 7, 130), (2, 19, 130)),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1), (2, 12, 9, 7), (24, 12, 3, 3)),
    "grouped": (lambda x, w: F.conv2d(x, w, groups=2), (1, 12, 9, 7), (24, 6, 3, 3)),
    "depthwise": (lambda x, w: F.conv2d(x, w, padding=1, groups=12), (1, 12, 9, 7), (12, 1, 3, 3)),
}


class Product(nn.Module):
    """One product with a weight, or of two inputs."""

    def __init__(self, of: Run, weight: torch.Tensor, *, given: bool) -> None:
        super().__init__()
        self.of = of
        self.weight = None if given else nn.Parameter(weight, requires_grad=False)

    def forward(self, x: torch.Tensor, w: torch.Tensor | None = None) -> torch.Tensor:
        held = self.weight if w is None else w
        assert held is not None
        return self.of(x, held)


def ran(kind: str, x: torch.Tensor, w: torch.Tensor, target: TargetConfig) -> torch.Tensor:
    given = kind == "matmul"
    model = Product(OPS[kind][0], w, given=given).eval()
    args = (x, w) if given else (x,)
    program = npusim.compile(npusim.extract_ir(model, args), target)
    assert program.simulation
    (y,) = npusim.load(program, {} if given else model.state_dict())(*args)
    assert isinstance(y, torch.Tensor)
    return y


def bound(
    kind: str, x: torch.Tensor, w: torch.Tensor
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """The exact result, and how far a sum of float32 in any order, rounded once, lies from it.

    k products, each rounded or not, and k - 1 additions: |error| <= g * sum |x||w| with
    g = k u / (1 - k u), u = 2**-24 (Higham, Accuracy and Stability, 3.1); then the dtype's
    rounding of the result.
    """
    of = OPS[kind][0]
    exact, sizes = of(x.double(), w.double()), of(x.double().abs(), w.double().abs())
    k = w.shape[-1] if kind in ("linear", "matmul") else w[0].numel()
    gamma = k * U32 / (1 - k * U32)
    summed = gamma * sizes
    rounded = HALF[x.dtype] * (exact.abs() + summed) + TINY[x.dtype]
    return exact.numpy(), (summed + rounded).numpy()


CASES = [
    *(
        (machine, dtype, kind)
        for machine, dtypes in DTYPES.items()
        for dtype in dtypes
        for kind in OPS
    )
]


@pytest.mark.parametrize(("machine", "dtype", "kind"), CASES, ids=str)
def test_sums_are_within_their_bound(machine: str, dtype: torch.dtype, kind: str) -> None:
    generator = torch.Generator().manual_seed(5)
    _, x_shape, w_shape = OPS[kind]
    x = torch.randn(x_shape, generator=generator).to(dtype)
    w = torch.randn(w_shape, generator=generator).to(dtype)
    y = ran(kind, x, w, TargetConfig.named(machine))
    assert y.dtype == dtype
    exact, far = bound(kind, x, w)
    assert (np.abs(y.double().numpy() - exact) <= far).all()


@pytest.mark.parametrize("kind", OPS)
def test_small_integers_are_exact_in_all_tiles(kind: str) -> None:
    """Sums that float32 holds have no order; a machine of small memories cuts them into tiles."""
    whole = TargetConfig.named("npu-edge-32x32")
    tiled = override(
        whole,
        ["sram.l1.kib=12", "sram.l1.align_bytes=8", "acc.kib=0.5", "mxu.rows=4", "mxu.cols=4",
         "constraints.tile_multiple={m = 1, n = 4, k = 4}"],
    )  # fmt: skip
    generator = torch.Generator().manual_seed(6)
    _, x_shape, w_shape = OPS[kind]
    x, w = (torch.randint(-8, 9, s, generator=generator).half() for s in (x_shape, w_shape))
    exact = OPS[kind][0](x.double(), w.double()).half()
    for target in (whole, tiled):
        torch.testing.assert_close(ran(kind, x, w, target), exact, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ('mxu.sums={float16 = "float16"}', 'products of float16 are added up in "float32"'),
        ('mxu.sums={int8 = "float32"}', 'products of int8 are added up in "int32"'),
        ("requantize.rounding=up", "rounding"),
    ],
)
def test_arithmetic_that_nobody_computes_is_refused(setting: str, said: str) -> None:
    with pytest.raises(npusim.Error, match=said):
        override(TargetConfig.named("npu-edge-32x32"), [setting])


def test_float32_scales_are_rounded_half_to_even() -> None:
    with pytest.raises(npusim.Error, match="products of float32 are rounded 'half_even'"):
        override(TargetConfig.named("gemmini-8"), ["requantize.rounding=floor"])
