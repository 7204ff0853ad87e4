"""Group norms that many blocks share give what PyTorch gives, wherever parts and tiles end."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda.rules import RULES
from npusim.ir.types import DTYPES
from tests.codegen import host

# batch, channels, positions, groups
SHAPES: dict[str, tuple[int, int, int, int]] = {
    "packs across groups": (2, 40, 700, 4),
    "a channel a group": (1, 24, 4201, 24),
    "one group": (2, 24, 207, 1),
    "a part with one position": (1, 96, 1057, 2),
    "odd channels": (2, 15, 901, 3),
    "more groups than threads": (1, 320, 4101, 320),
}
EDGES = {"infinity": float("inf"), "nan": float("nan")}


def _key(shape: tuple[int, int, int, int], dtype: torch.dtype, affine: bool) -> host.Key:
    batch, channels, spatial, groups = shape
    code = DTYPES[str(dtype).removeprefix("torch.")][0]
    strides = (channels * spatial, 1, channels)
    params = {
        "batch": batch,
        "channels": channels,
        "spatial": spatial,
        "groups": groups,
        "x_strides": strides,
        "y_strides": strides,
        "eps": 1e-5,
        "act": 0,
        "has_weight": int(affine),
        "has_bias": int(affine),
        "x_dtype": code,
        "w_dtype": code,
        "y_dtype": code,
    }
    key = ("group_norm", KERNELS["group_norm"].pack(params))
    assert "PARTS" in RULES["group_norm"](KERNELS["group_norm"].unpack(key[1])).defines
    return key


def _run(kernel: host.HostKernel, x: Tensor, norm: nn.GroupNorm | None) -> Tensor:
    """x is [batch, channels, positions]; channels lie side by side in memory."""
    lying = x.transpose(1, 2).contiguous()
    y = torch.full_like(lying, 7)
    vectors = [] if norm is None else [norm.weight.data, norm.bias.data]
    host.call(kernel, [lying, *vectors, y])
    return y.transpose(1, 2)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_shared_groups_agree_with_pytorch(tmp_path: Path) -> None:
    """In all dtypes, with and without factors; and what lies far from zero keeps its distances."""
    first = SHAPES["packs across groups"]
    cases = [(shape, torch.float16, True) for shape in SHAPES.values()]
    cases += [(first, torch.float32, False), (first, torch.bfloat16, True)]
    kernels = host.build([_key(*case) for case in cases], tmp_path)
    for shape, dtype, affine in cases:
        torch.manual_seed(sum(shape))
        batch, channels, spatial, groups = shape
        norm = nn.GroupNorm(groups, channels)
        nn.init.normal_(norm.weight), nn.init.normal_(norm.bias)
        norm = norm.to(dtype)
        x = (torch.randn(batch, channels, spatial) + 300 * torch.randn(batch, channels, 1)).to(
            dtype
        )
        got = _run(kernels[_key(shape, dtype, affine)], x, norm if affine else None)
        vectors = [v.double() for v in (norm.weight, norm.bias)] if affine else [None, None]
        want = nn.functional.group_norm(x.double(), groups, *vectors)
        error = (got.double() - want).abs().max() / want.abs().max()
        assert error < {torch.float32: 1e-4, torch.float16: 1e-3, torch.bfloat16: 8e-3}[dtype]


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("edge", EDGES)
def test_what_is_no_number_stays_in_its_group(edge: str, tmp_path: Path) -> None:
    shape = (2, 40, 700, 4)
    key = _key(shape, torch.float16, False)
    x = torch.randn(shape[:3]).half()
    x[1, 15, 600] = EDGES[edge]
    got = _run(host.build([key], tmp_path)[key], x, None)
    spoilt = torch.zeros(shape[:2], dtype=torch.bool)
    spoilt[1, 10:20] = True
    assert torch.equal(got.isnan().all(-1), spoilt)
    assert torch.equal(got.isnan().any(-1), spoilt)
