"""Tiles of float32 on the tensor cores: as exact as multiply-adds, or more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import convolutions, matmul_rules
from npusim.codegen.cuda.paths import KernelPath
from tests.codegen import host
from tests.codegen.test_convolutions import _conv
from tests.codegen.test_matmul_rules import _full, _linear

_FLOAT32, _SILU = 0, 34
_LARGEST = float(torch.finfo(torch.float32).max)
_LEFT = 2.0**-23  # of the sum of magnitudes: what is left out, and the roundings of a few sums

pytestmark = pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")


def _matmul(m: int, n: int, k: int, a: tuple[int, int], b: tuple[int, int]) -> dict[str, Any]:
    given = {
        "m": m, "n": n, "k": k, "batch": (1,) * 6, "a_m": a[0], "a_k": a[1], "b_k": b[0],
        "b_n": b[1], "y_m": n, "dtype": _FLOAT32, "alpha": 0.5,
    }  # fmt: skip
    return _full("matmul", given)


def _key(stem: str, params: dict[str, Any]) -> host.Key:
    return stem, KERNELS[stem].pack(params)


def _close(got: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> None:
    """Holds a product to the error that its terms' magnitudes allow."""
    exact, magnitudes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    error = (got.double() - scale * exact).abs() - _LEFT * scale * magnitudes
    assert error.max() <= 0, float(error.max())


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[host.Key, host.HostKernel]:
    keys = [_key("linear", _linear(*shape, _FLOAT32)) for shape in _SHAPES]
    keys += [_key("linear", _GATED), *(_key("matmul", given) for given in _STRIDES)]
    keys += [_key("conv", given) for given in _CONVOLUTIONS]
    return host.build(keys, tmp_path_factory.mktemp("kernels"))


_SHAPES = [(9, 7, 5), (70, 33, 64), (65, 130, 83), (64, 64, 256)]
_GATED = _linear(33, 40, 48, _FLOAT32, gated=1, act=_SILU)
_STRIDES = [
    _matmul(40, 36, 24, (24, 1), (36, 1)),  # b as it is
    _matmul(40, 36, 24, (24, 1), (1, 24)),  # b turned
    _matmul(37, 35, 23, (1, 37), (1, 23)),  # both turned, nothing on 16 bytes
    _matmul(12, 9, 17, (34, 2), (27, 3)),  # neither's neighbours beside each other
]
_FLOATS = {"x_dtype": 0, "w_dtype": 0, "y_dtype": 0, "r_dtype": 0, "act": 0, "has_bias": 0}
_CONVOLUTIONS = [
    {**_conv((2, 16, 7, 6), 24, 3, pad=1), **_FLOATS},
    {**_conv((1, 3, 9, 9), 20, 3, stride=2, pad=1, channels_last=False), **_FLOATS},
    {**_conv((1, 24, 5, 5), 16, 3, groups=2), **_FLOATS},
]


@pytest.mark.parametrize("m, n, k", _SHAPES)
def test_products_leave_out_less_than_rounding_does(
    m: int, n: int, k: int, kernels: dict[host.Key, host.HostKernel]
) -> None:
    params = _linear(m, n, k, _FLOAT32)
    assert matmul_rules.linear(params).defines["PATH"] == KernelPath.TILE_FLOAT
    torch.manual_seed(m)
    x, w = torch.randn(m, k), torch.randn(n, k) * 2.0 ** torch.randint(-20, 20, (n, 1))
    y = torch.full((m, n), torch.nan)
    host.call(kernels[_key("linear", params)], [x, w, y])
    _close(y, x, w.T)


def test_one_factor_of_one_gives_the_other_back(
    kernels: dict[host.Key, host.HostKernel],
) -> None:
    """Three parts have all bits of a number, down to where the last one ends."""
    m, n, k = 64, 64, 256
    torch.manual_seed(0)
    w = torch.randn(n, k) * 2.0 ** torch.randint(-90, 120, (n, k))
    x = F.one_hot(torch.arange(m) * 3, k).float()
    y = torch.full((m, n), torch.nan)
    host.call(kernels[_key("linear", _linear(m, n, k, _FLOAT32))], [x, w, y])
    assert torch.equal(y, w[:, torch.arange(m) * 3].T)


def test_what_has_no_parts_is_added_up_as_it_is(
    kernels: dict[host.Key, host.HostKernel],
) -> None:
    """Infinities, NaN and what bfloat16 has no number for reach their rows and columns alone."""
    m, n, k = 70, 33, 64
    torch.manual_seed(0)
    x, w = torch.randn(m, k), torch.randn(n, k)
    x[3, 5], x[69, 63], x[20, 0], w[32, 1] = torch.inf, torch.nan, _LARGEST, -torch.inf
    w[:, 0] = w[:, 0].clamp(-0.5, 0.5)
    w[7, 5] = 0.0  # times infinity: NaN
    y = torch.full((m, n), 7.0)
    host.call(kernels[_key("linear", _linear(m, n, k, _FLOAT32))], [x, w, y])
    want = x @ w.T
    assert want.isnan().sum() > n and want.isinf().sum() > m
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_gated_products_have_both_sums_in_a_lane(
    kernels: dict[host.Key, host.HostKernel],
) -> None:
    torch.manual_seed(1)
    x, w = torch.randn(33, 48), torch.randn(80, 48)
    y = torch.full((33, 40), torch.nan)
    host.call(kernels[_key("linear", _GATED)], [x, w, y])
    want = F.silu(x @ w[:40].T) * (x @ w[40:].T)
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("params", _STRIDES)
def test_operands_of_any_strides_are_multiplied(
    params: dict[str, Any], kernels: dict[host.Key, host.HostKernel]
) -> None:
    m, n, k = params["m"], params["n"], params["k"]
    assert matmul_rules.matmul(params).defines["PATH"] == KernelPath.TILE_FLOAT
    torch.manual_seed(m)
    a = torch.randn(m * params["a_m"] + k * params["a_k"])
    b = torch.randn(k * params["b_k"] + n * params["b_n"])
    y = torch.full((m, n), torch.nan)
    host.call(kernels[_key("matmul", params)], [a, b, y])
    lines = a.as_strided((m, k), (params["a_m"], params["a_k"]))
    _close(y, lines, b.as_strided((k, n), (params["b_k"], params["b_n"])), 0.5)


@pytest.mark.parametrize("params", _CONVOLUTIONS)
def test_convolutions_find_fours_of_channels_or_single_ones(
    params: dict[str, Any], kernels: dict[host.Key, host.HostKernel]
) -> None:
    assert convolutions.conv(params).defines["PATH"] == KernelPath.TILE_FLOAT
    groups, (_, high, wide) = params["groups"], params["kernel"]
    n, channels = params["out_channels"], params["in_channels"] // groups
    torch.manual_seed(n)
    x = torch.randn(params["batch"], groups * channels, *params["in_size"][1:])
    w = torch.randn(n, channels, high, wide)
    each, panels = n // groups, -(-n // groups // 16) * 16
    rows = torch.zeros(groups, panels, high * wide * channels)  # as pack_b has them
    rows[:, :each] = w.permute(0, 2, 3, 1).reshape(groups, each, -1)
    if channels % 8:
        rows = rows.reshape(groups, panels // 16, 16, -1).transpose(-1, -2).contiguous()
    options = {"stride": params["stride"][1], "padding": params["pad"][1], "groups": groups}
    want = F.conv2d(x, w, **options)
    y = torch.full_like(want, torch.nan).contiguous(memory_format=torch.channels_last)
    if params["x_strides"][1] == 1:
        x = x.contiguous(memory_format=torch.channels_last)
    host.call(kernels[_key("conv", params)], [x, rows, y])
    torch.testing.assert_close(y, want, rtol=1e-5, atol=1e-5)
