"""Convolutions on CUDA: which path and tiles the rule chooses, and what all paths compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import convolutions, nvrtc
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.paths import KernelPath
from tests.codegen import host
from tests.codegen.ptxas import spilled

_FLOAT16, _RELU = 1, 31
_TILES, _PATCHES, _PLAIN = KernelPath.TILE_MMA, KernelPath.PATCH, KernelPath.TILE_FLOAT


def _strides(shape: tuple[int, ...], channels_last: bool) -> tuple[int, ...]:
    _, c, h, w = shape
    return (c * h * w, 1, 0, w * c, c) if channels_last else (c * h * w, h * w, 0, w, 1)


def _conv(
    x: tuple[int, int, int, int], out_channels: int, kernel: int, *, stride: int = 1, pad: int = 0,
    groups: int = 1, residual: int = 0, channels_last: bool = True, vectors: int = 1,
) -> dict[str, Any]:  # fmt: skip
    batch, channels, height, width = x
    size = [(s + 2 * pad - kernel) // stride + 1 for s in (height, width)]
    y = _strides((batch, out_channels, *size), True)
    given = {
        "batch": batch, "in_channels": channels, "out_channels": out_channels,
        "in_size": (1, height, width), "out_size": (1, *size), "kernel": (1, kernel, kernel),
        "stride": (1, stride, stride), "pad": (0, pad, pad), "dilation": (1, 1, 1),
        "x_strides": _strides(x, channels_last), "y_strides": y, "r_strides": y, "groups": groups,
        "x_dtype": _FLOAT16, "w_dtype": _FLOAT16, "y_dtype": _FLOAT16, "r_dtype": _FLOAT16,
        "has_bias": vectors, "residual": residual, "act": _RELU,
    }  # fmt: skip
    fields = KERNELS["conv"].fields
    return {n: given.get(n, (0,) * count if count > 1 else 0) for n, _, count in fields}


def test_few_channels_are_gathered_in_patches_and_eights_of_them_in_tiles() -> None:
    def path(params: dict[str, Any]) -> int:
        return convolutions.conv(params).defines["PATH"]

    assert path(_conv((1, 3, 224, 224), 64, 7, stride=2, pad=3, channels_last=False)) == _PATCHES
    assert path(_conv((1, 64, 56, 56), 64, 3, pad=1)) == _TILES
    assert path({**_conv((1, 64, 56, 56), 64, 3, pad=1), "x_dtype": 0, "w_dtype": 0}) == _PLAIN
    assert path(_conv((1, 12, 20, 20), 12, 3, groups=4)) == _PLAIN
    assert path(_conv((1, 3, 320, 320), 64, 32, stride=32, channels_last=False)) == _PLAIN


def test_long_sums_of_few_tiles_are_shared_by_a_cluster() -> None:
    few = convolutions.conv(_conv((1, 512, 7, 7), 512, 3, pad=1))
    (launch,) = few.launches
    assert few.defines["SPLIT"] > 1
    assert launch.grid[2] == few.defines["SPLIT"]
    assert few.scratch == 0
    assert convolutions.conv(_conv((64, 512, 7, 7), 512, 3, pad=1)).defines["SPLIT"] == 1


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_convolutions_compile_without_spilling(arch: str, compiler: nvrtc.Nvrtc) -> None:
    cases = [
        _conv((64, 3, 224, 224), 64, 7, stride=2, pad=3, channels_last=False),
        _conv((8, 3, 56, 56), 24, 7, pad=3, channels_last=False),  # lines of a piece each
        _conv((64, 64, 56, 56), 256, 1, residual=1),
        _conv((64, 256, 14, 14), 256, 3, pad=1),
        _conv((1, 512, 7, 7), 512, 3, pad=1, residual=1),
        _conv((1, 256, 14, 14), 1024, 1, residual=1),
    ]
    cases += [{**params, "has_bias": 2} for params in cases]
    cases.append(_conv((8, 3, 14, 14), 64, 7, stride=2, pad=3, channels_last=False))  # one tile
    for params in cases:
        source, config, options = specialise("conv", KERNELS["conv"].pack(params))
        options = (f"--gpu-architecture={arch}", *options, "--ptxas-options=-v")
        log = compiler.compile(source, options, "conv")[1]
        assert spilled(log) == 0, log
        assert all(launch.shared <= 99 << 10 for launch in config.launches)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_all_paths_compute_what_pytorch_does(tmp_path: Path) -> None:
    cases = [
        _conv((2, 3, 25, 37), 24, 7, stride=2, pad=3, channels_last=False, residual=1, vectors=2),
        _conv((1, 5, 9, 18), 72, 3, pad=1, vectors=3),  # odd strides of taps
        _conv((1, 1, 32, 32), 8, 16, stride=16, channels_last=False),
        _conv((1, 64, 9, 7), 40, 3, stride=2, pad=1, residual=2),  # chunks that are not whole tiles
        _conv((1, 64, 12, 12), 36, 1, residual=1, vectors=3),  # the last eight columns are four
        _conv((1, 48, 6, 6), 48, 3, pad=1, groups=2, residual=1, vectors=2),
        _conv((1, 512, 3, 3), 64, 3, pad=1, residual=1),  # a cluster, which a host does not have
        _conv((1, 64, 40, 40), 128, 1, residual=1, vectors=2),
        _conv((1, 12, 9, 9), 30, 3, groups=3, residual=2, vectors=3),  # a strip a thread
        _conv((1, 9, 9, 9), 30, 3, groups=3, residual=2, vectors=3),  # by multiply-adds
    ]
    kernels = host.build([_key(p) for p in cases] + [_pack(p) for p in cases], tmp_path)
    paths = {kernels[_key(p)].config.defines["PATH"] for p in cases}
    assert paths == {_TILES, _PATCHES, _PLAIN, KernelPath.STRIP}
    for params in cases:
        _check(params, kernels)


def _key(params: dict[str, Any]) -> host.Key:
    return "conv", KERNELS["conv"].pack(params)


def _pack(params: dict[str, Any]) -> host.Key:
    """Returns the command that packs a weight [out, in/groups, h, w]."""
    groups, taps = params["groups"], params["kernel"][1] * params["kernel"][2]
    n, channels = params["out_channels"] // groups, params["in_channels"] // groups
    fields = {
        "groups": groups, "n": n, "taps": taps, "channels": channels, "c_stride": taps,
        "g_stride": n * channels * taps, "n_stride": channels * taps, "t_stride": 1,
        "x_dtype": _FLOAT16, "y_dtype": _FLOAT16,
    }  # fmt: skip
    return "pack_b", KERNELS["pack_b"].pack(fields)


def _check(params: dict[str, Any], kernels: dict[host.Key, host.HostKernel]) -> None:
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator).half()

    groups, (_, high, wide) = params["groups"], params["kernel"]
    n, channels = params["out_channels"], params["in_channels"]
    x = random(params["batch"], channels, *params["in_size"][1:])
    w = random(n, channels // groups, high, wide) / (channels // groups * high * wide) ** 0.5
    vectors, shape = params["has_bias"], (params["batch"], n, *params["out_size"][1:])
    bias = torch.randn(vectors, n, generator=generator)
    added, factor, offset = bias[[0, min(1, vectors - 1), vectors - 1], :, None, None]
    residual = random(*shape).contiguous(memory_format=torch.channels_last)
    options = {"stride": params["stride"][1], "padding": params["pad"][1], "groups": groups}
    want = F.conv2d(x.float(), w.float(), **options)
    want = (want * factor if vectors > 1 else want) + added
    if params["residual"] == 1:
        want = want + residual.float()
    want = want.relu()
    if params["residual"] == 2:
        want = want + residual.float()
    want = want + offset if vectors > 2 else want

    rows = groups * (-(-n // groups // 16) * 16)
    packed = torch.full((rows, w[0].numel()), torch.nan, dtype=torch.float16)
    host.call(kernels[_pack(params)], [w.contiguous(), packed])
    if params["x_strides"][1] == 1:
        x = x.contiguous(memory_format=torch.channels_last)
    y = torch.full(shape, torch.nan).half().contiguous(memory_format=torch.channels_last)
    extra = [residual] if params["residual"] else []
    host.call(kernels[_key(params)], [x, packed, bias, *extra, y])
    error = (y.float() - want).abs().max() / want.abs().max()
    assert error < 2e-3, (params, float(error))


@pytest.mark.parametrize(
    "positions, columns, k, sliced", [(1568, 728, 728, False), (49, 512, 4608, True)]
)
def test_slices_are_for_processors_without_tiles(
    positions: int, columns: int, k: int, sliced: bool
) -> None:
    """Each wave of clusters exchanges its sums: tiles that fill the device are not cut."""
    _, split = convolutions.best_tile(positions, columns, k)
    assert (split > 1) == sliced
