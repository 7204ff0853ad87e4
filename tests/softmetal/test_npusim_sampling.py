"""Metal chooses the tokens that every other device chooses: the kernel, and its numbers of 64 bits.

The references are NumPy's float64, and the evaluator of `npu.sample`, which sorts where the kernel
selects.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from npusim.codegen.source import inlined
from npusim.ir.types import DTYPES
from npusim.ops.sampling import reference_sample
from tests.softmetal import metal
from tests.softmetal.programs import KernelFailure, Kernels

ARITHMETIC = """
#include "kernels/metal/common/scalar.h"
#include "kernels/metal/sampling/binary64.h"
using namespace npusim;
kernel void arithmetic(device const uint64_t* a [[buffer(0)]],
                       device const uint64_t* b [[buffer(1)]],
                       device uint64_t* y [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  const Binary64 p = binary64(a[i]), q = binary64(b[i]);
  device uint64_t* to = y + i * 8;
  to[0] = (p * q).bits;
  to[1] = (p / q).bits;
  to[2] = as_type<uint>(static_cast<float>(p));
  to[3] = Binary64(a[i]).bits;
  to[4] = Binary64(static_cast<int64_t>(a[i])).bits;
  to[5] = (p < q) | (p > q) << 1 | (p >= q) << 2 | (p != q) << 3;
  to[6] = p.magnitude() < 0x43f0000000000000UL ? static_cast<uint64_t>(binary64(p.magnitude())) : 0;
  to[7] = Binary64(static_cast<int32_t>(a[i])).bits;
}
"""


def edges() -> NDArray[np.float64]:
    """Zeros, ends of ranges, halves of units, infinities and NaN."""
    whole = [
        0.0,
        1.0,
        3.0,
        2.0**24 + 1,
        2.0**53 - 1,
        2.0**63,
        2.0**64 - 2048,
        np.inf,
        np.nan,
        5e-324,
    ]
    whole += [2.2250738585072014e-308, 1.7976931348623157e308, 2.0**-1022 - 5e-324]
    whole += [2.0**-149, 2.0**-150, 3 * 2.0**-150, 2.0**-126, 2.0**-127 + 2.0**-149]
    whole += [
        3.4028235677973366e38,
        3.4028234663852886e38,
        1 + 2.0**-24,
        1 + 3 * 2.0**-24,
        1 + 2.0**-24 + 2.0**-52,
        0.1,
    ]
    return np.array([*whole, *(-x for x in whole)])


def same(got: NDArray[np.uint64], want: NDArray[np.uint64]) -> None:
    """Compares bits; one NaN is as good as another."""
    nan = np.isnan(want.view(np.float64))
    assert np.array_equal(nan, np.isnan(got.view(np.float64)))
    assert np.array_equal(got[~nan], want[~nan])


def test_numbers_of_64_bits_are_those_of_ieee(device: metal.Device) -> None:
    random = np.random.default_rng(1)
    some = edges()
    a, b = (x.reshape(-1) for x in np.meshgrid(some, some))
    bits = random.integers(0, 2**64, (2, 4000), dtype=np.uint64, endpoint=False)
    near = (bits[1] % np.uint64(64)) + np.float64(1).view(np.uint64) - np.uint64(32)
    a = np.concatenate(
        [a, bits[0].view(np.float64), bits[0].view(np.float64), near.view(np.float64)]
    )
    b = np.concatenate(
        [b, bits[1].view(np.float64), near.view(np.float64), bits[1].view(np.float64)]
    )
    y = device.buffer(np.zeros(8 * a.size, np.uint64))
    text = "#include <metal_stdlib>\n" + inlined(ARITHMETIC, set(), "metal")
    given = [device.buffer(a), device.buffer(b), y]
    device.run(device.kernel(text, "arithmetic"), given, (a.size,), (64,))
    got = y.array(np.uint64).reshape(-1, 8)
    with np.errstate(all="ignore"):
        same(got[:, 0], (a * b).view(np.uint64))
        same(got[:, 1], (a / b).view(np.uint64))
        single = a.astype(np.float32)
        assert np.array_equal(got[:, 2].astype(np.uint32).view(np.float32), single, equal_nan=True)
        truncated = np.where(np.abs(a) < 2.0**64, np.abs(a), 0).astype(np.uint64)
    raw = a.view(np.uint64)
    same(got[:, 3], raw.astype(np.float64).view(np.uint64))
    same(got[:, 4], raw.view(np.int64).astype(np.float64).view(np.uint64))
    orders = (a < b) * 1 + (a > b) * 2 + (a >= b) * 4 + (a != b) * 8
    assert np.array_equal(got[:, 5], orders.astype(np.uint64))
    assert np.array_equal(got[:, 6], truncated)
    same(got[:, 7], raw.astype(np.int32).astype(np.float64).view(np.uint64))


# temperature, top k, top p, min p, repetition penalty
OPTIONS = [
    (0.0, 0.0, 1.0, 0.0, 1.0),
    (0.0, 0.0, 1.0, 0.0, 4.0),
    (0.8, 0.0, 1.0, 0.0, 1.0),
    (1.0, 40.0, 1.0, 0.0, 1.0),
    (1.0, 1.0, 1.0, 0.0, 1.0),
    (1.0, 0.0, 0.9, 0.0, 1.0),
    (1.0, 0.0, 1e-300, 0.0, 1.0),
    (1.0, 0.0, 0.0, 0.0, 1.0),
    (1.0, 0.0, 1.0, 0.05, 1.0),
    (1.0, 0.0, 1.0, 7.0, 1.0),
    (0.7, 300.0, 0.8, 0.001, 1.3),
    (1e30, 0.0, 0.3, 0.0, 1.0),
    (1e30, 7.0, 1.0, 0.0, 1e-30),
    (1e-320, 9.9, 0.5, 0.0, 1e38),
    (float("inf"), 1e300, float("nan"), float("nan"), 0.5),
    (float("nan"), -3.0, -1.0, -1.0, -2.0),
]


def scores_of(kind: str, size: int, dtype: str) -> torch.Tensor:
    """Scores that are spread, equal, rounded to few values, or no numbers."""
    generator = torch.Generator().manual_seed(size)
    x = torch.randn(size, generator=generator) * 3
    if kind == "tied":
        x = x.round()
    if kind == "equal":
        x = torch.ones(size)
    if kind == "odd":
        x[::3], x[1::5] = -torch.inf, torch.nan
        x[size // 2] = 3e38
        x[size // 3] = torch.finfo(torch.float32).tiny
    if kind == "infinite":
        x[2::7] = torch.inf
    return torch.full((size,), -torch.inf) if kind == "none" else x.to(getattr(torch, dtype))


def choose(
    kernels: Kernels, logits: torch.Tensor, options: tuple[float, ...], seed: int, length: int
) -> None:
    """Compares one step with the evaluator's."""
    history = torch.randint(
        -2, logits.numel() + 2, (64,), generator=torch.Generator().manual_seed(5)
    )
    state = [torch.tensor([seed]), torch.tensor([length]), torch.tensor([[3 % logits.numel()]])]
    given = [logits.clone(), torch.tensor(options, dtype=torch.float64), *state, history.clone()]
    want = reference_sample(*(x.clone() for x in given))
    chosen = torch.tensor([-7])
    params = {"size": logits.numel(), "capacity": 64, "dtype": DTYPES[str(logits.dtype)[6:]][0]}
    kernels.call("sample", [*given, chosen], **params)
    assert (chosen.item(), given[4].item()) == (want[0].item(), want[1].item()), (options, seed)
    assert given[5].equal(want[2])


@pytest.mark.parametrize(
    ("kind", "size", "dtype"),
    [
        ("spread", 3000, "float32"),
        ("tied", 1025, "float16"),
        ("odd", 999, "float32"),
        ("infinite", 33, "bfloat16"),
        ("spread", 1, "float32"),
        ("none", 32, "float32"),
    ],
)
def test_the_kernel_chooses_what_the_evaluator_does(
    device: metal.Device, kind: str, size: int, dtype: str
) -> None:
    kernels, logits = Kernels(device), scores_of(kind, size, dtype)
    for place, options in enumerate(OPTIONS):
        metal.set_option("ORDER", metal.ORDERS[place % 5])
        for seed in (place * 7919 - 5, 2**62 + place):
            choose(kernels, logits, options, seed, 1 + place * 4)


@pytest.mark.parametrize(("kind", "options"), [("tied", 10), ("equal", 11)])
def test_of_many_tokens_no_sum_wraps(device: metal.Device, kind: str, options: int) -> None:
    """More tokens than a sum of 32 bits takes, where all have the greatest weight."""
    choose(Kernels(device), scores_of(kind, 66_560, "float32"), OPTIONS[options], 11, 64)


def test_a_length_outside_of_the_history_is_reported(device: metal.Device) -> None:
    for length in (0, 65, -1):
        token, chosen = torch.tensor([[3]]), torch.tensor([-7])
        rest = [torch.zeros(5, dtype=torch.float64), torch.tensor([1]), torch.tensor([length])]
        operands = [torch.zeros(32), *rest, token, torch.zeros(64, dtype=torch.int64), chosen]
        with pytest.raises(KernelFailure) as failure:
            Kernels(device).call("sample", operands, size=32, capacity=64, dtype=0)
        assert failure.value.args == (1, length, 64)
