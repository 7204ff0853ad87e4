"""Attention of float32 on the tensor cores: as exact as multiply-adds, at edge values too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import attention_rules
from npusim.codegen.cuda.paths import KernelPath
from tests.codegen import host
from tests.codegen.test_matmul_rules import _full

_FLOAT32, _BATCH = 0, 2
_LARGEST = float(torch.finfo(torch.float32).max)

pytestmark = pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")


def _attention(
    heads: tuple[int, int], rows: tuple[int, int], dims: tuple[int, int], **more: Any
) -> dict[str, Any]:
    """Dense operands, but queries of neighbouring heads lie beside each other."""
    (many, few), (m, n), (d, v) = heads, rows, dims
    given = {
        "batch": _BATCH, "heads": many, "kv_heads": few, "q_len": m, "kv_len": n, "head_dim": d,
        "v_dim": v, "q_strides": (m * many * d, d, many * d), "k_strides": (few * n * d, n * d, d),
        "v_strides": (few * n * v, n * v, v), "y_strides": (many * m * v, m * v, v),
        "dtype": _FLOAT32, "scale": d**-0.5, **more,
    }  # fmt: skip
    if "has_mask" in more:
        given = {"mask_dtype": _FLOAT32, "mask_strides": (m * n, 0, n, 1), **given}
    return _full("attention", given)


_CASES = {
    "tiles cut": _attention((2, 2), (70, 197), (64, 64)),
    "groups, causal": _attention((4, 2), (33, 100), (32, 32), causal=1, causal_offset=67),
    "no fours": _attention((3, 1), (9, 70), (23, 37)),
    "masked": _attention((2, 1), (20, 90), (48, 80), has_mask=1),
    "wide heads, window": _attention((1, 1), (40, 90), (128, 96), causal=1, window=30),
    "widest heads": _attention((1, 1), (20, 40), (256, 200)),
    "keys split": _attention((1, 1), (5, 400), (64, 64)),
    "one mask for all rows": _attention(
        (2, 2), (20, 70), (32, 32), has_mask=1, mask_strides=(20 * 70, 0, 0, 1)
    ),
    "capped": _attention((1, 1), (40, 70), (64, 64), softcap=2.0),
}


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[host.Key, host.HostKernel]:
    keys = [("attention", KERNELS["attention"].pack(p)) for p in _CASES.values()]
    return host.build(keys, tmp_path_factory.mktemp("kernels"))


def _operands(p: dict[str, Any]) -> list[Tensor]:
    """q, k, v as [batch, heads, rows, dim], and the mask of a batch item where there is one."""
    m, n, d = p["q_len"], p["kv_len"], p["head_dim"]
    torch.manual_seed(n)
    q = torch.randn(_BATCH, m, p["heads"], d).transpose(1, 2)
    k, v = (torch.randn(_BATCH, p["kv_heads"], n, e) for e in (d, p["v_dim"]))
    masks = [torch.randn(_BATCH, 1, m, n)] if p["has_mask"] else []
    if p["has_mask"] and p["mask_strides"][2] == 0:
        masks[0][:] = masks[0][:, :, :1]
    return [q, k, v, *masks]


def _run(name: str, operands: list[Tensor], kernels: dict[host.Key, host.HostKernel]) -> Tensor:
    p = _CASES[name]
    assert attention_rules.attention(p).defines["PATH"] == KernelPath.TILE_FLOAT
    q, *others = operands
    y = torch.full((_BATCH, p["heads"], p["q_len"], p["v_dim"]), torch.nan)
    laid = [q.transpose(1, 2).contiguous(), *others, y]
    host.call(kernels["attention", KERNELS["attention"].pack(p)], laid)
    return y


def _reference(p: dict[str, Any], operands: list[Tensor], dtype: torch.dtype) -> Tensor:
    q, k, v, *mask = (t.to(dtype) for t in operands)
    k, v = (t.repeat_interleave(p["heads"] // p["kv_heads"], 1) for t in (k, v))
    scores = q @ k.mT * p["scale"]
    if p["softcap"]:
        scores = p["softcap"] * torch.tanh(scores / p["softcap"])
    i, j = torch.arange(p["q_len"])[:, None] + p["causal_offset"], torch.arange(p["kv_len"])
    hidden = (j > i if p["causal"] else j < 0) | ((j <= i - p["window"]) & (p["window"] > 0))
    scores = (scores + mask[0] if mask else scores).masked_fill(hidden, -torch.inf)
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    return torch.where(blind, 0.0, torch.softmax(scores, -1) @ v)


@pytest.mark.parametrize("name", _CASES)
def test_errors_are_those_of_float32(name: str, kernels: dict[host.Key, host.HostKernel]) -> None:
    p, operands = _CASES[name], _operands(_CASES[name])
    exact = _reference(p, operands, torch.float64)
    error = (_run(name, operands, kernels).double() - exact).abs().max()
    plain = (_reference(p, operands, torch.float32).double() - exact).abs().max()
    assert error <= plain


def test_rows_without_keys_are_zero_and_what_has_no_parts_is_added_up_as_it_is(
    kernels: dict[host.Key, host.HostKernel],
) -> None:
    """Infinities, NaN and what bfloat16 has no number for reach the rows that see them alone."""
    p, (q, k, v, mask) = _CASES["masked"], _operands(_CASES["masked"])
    k[:, :, :, 0] = k[:, :, :, 0].clamp(-0.5, 0.5)
    finite = _run("masked", [q, k, v, mask], kernels)
    mask[:, :, 3] = -torch.inf  # no keys
    mask[:, :, 4] = -_LARGEST  # all alike
    mask[:, :, 5, 60], mask[:, :, 6, 60] = torch.nan, torch.inf
    q[0, 0, 7], q[0, 1, 8, 0] = torch.nan, torch.inf
    q[0, 0, 9, 0] = _LARGEST
    v[1, 0, 70, 2], v[1, 0, 71, 3] = torch.inf, _LARGEST
    mask[1, :, 10:, 70:72] = -torch.inf
    y = _run("masked", [q, k, v, mask], kernels)
    want = _reference(p, [q, k, v, mask], torch.float32)
    assert (y[:, :, 3] == 0).all() and torch.equal(y[0, 0, 12:], finite[0, 0, 12:])
    want[1, :, 10:, 2] = y[1, :, 10:, 2]  # PyTorch multiplies infinity by nothing
    torch.testing.assert_close(y, want, rtol=1e-5, atol=2e-6, equal_nan=True)
    assert y[1, :, [0, 9], 2].isinf().all() and y[1, :, 0, 3].isfinite().all()


def test_operands_off_16_bytes_have_the_same_bits(
    kernels: dict[host.Key, host.HostKernel],
) -> None:
    q, k, v = _operands(_CASES["tiles cut"])
    moved = [torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape) for t in (k, v)]
    want = _run("tiles cut", [q, k, v], kernels)
    assert torch.equal(_run("tiles cut", [q, *moved], kernels), want)
