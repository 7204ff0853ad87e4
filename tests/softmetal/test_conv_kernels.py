"""Convolutions of Metal at the edges of tiles, over weights that its own pack_b lays out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from npusim.abi.scalar import OPCODES
from tests.softmetal.matrix import CODES, close, kernels, random, results_of
from tests.softmetal.programs import Kernels

__all__ = ["kernels"]
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def _three(values: Sequence[int], fill: int) -> list[int]:
    return [fill] * (3 - len(values)) + list(values)


def _strides(x: torch.Tensor) -> list[int]:
    """Batch, channel, depth, height, width."""
    spatial = x.stride()[2:]
    return [x.stride(0), x.stride(1), *_three(spatial, 0)]


def _last(x: torch.Tensor) -> torch.Tensor:
    """The same elements with channels last."""
    dims = list(range(x.dim()))
    there = [0, *dims[2:], 1]
    return x.permute(there).contiguous().permute([0, dims[-1], *dims[1:-1]])


def _conv(
    kernels: Kernels,
    x_shape: Sequence[int],
    w_shape: Sequence[int],
    dtype: torch.dtype = F32,
    *,
    groups: int = 1,
    stride: int = 1,
    pad: int = 0,
    dilation: int = 1,
    transposed: bool = False,
    depthwise: bool = False,
    channels_last: bool = True,
    vectors: int = 0,
    residual: int = 0,
    act: str = "copy",
) -> None:
    rank = len(x_shape) - 2
    x, w = random(*x_shape, dtype=dtype, seed=1), random(*w_shape, dtype=dtype, seed=2)
    functions = torch.nn.functional
    names = [f"conv_transpose{rank}d" if transposed else f"conv{rank}d"]
    how = {"stride": stride, "padding": pad, "dilation": dilation, "groups": groups}
    want = getattr(functions, names[0])(x.double(), w.double(), **how)
    n = want.shape[1]
    y, r = _last(torch.zeros(want.shape, dtype=dtype)), _last(random(*want.shape, dtype=dtype))
    x = _last(x) if channels_last else x
    bias = random(vectors, n, seed=5)
    taps, channels = w[0, 0].numel(), x_shape[1] // groups
    at = [1] * rank
    params = {
        "batch": x_shape[0],
        "in_channels": x_shape[1],
        "out_channels": n,
        "in_size": _three(x_shape[2:], 1),
        "out_size": _three(want.shape[2:], 1),
        "kernel": _three(w_shape[2:], 1),
        "stride": _three([v * stride for v in at], 1),
        "pad": _three([v * pad for v in at], 0),
        "dilation": _three([v * dilation for v in at], 1),
        "x_strides": _strides(x),
        "y_strides": _strides(y),
        "r_strides": _strides(r),
        "x_dtype": CODES[dtype],
        "w_dtype": CODES[dtype],
        "y_dtype": CODES[dtype],
        "r_dtype": CODES[dtype],
        "has_bias": vectors,
        "residual": residual,
        "act": OPCODES[act][0],
        "act_lo": 0.0,
        "act_hi": 0.0,
    }
    if depthwise:
        weights = w.reshape(n, taps).T.contiguous()
    else:
        weights = _packed(kernels, w, groups, n // groups, taps, channels, transposed)
        params |= {"groups": groups, "transposed": int(transposed)}
    memory = [x.as_strided((x.numel(),), (1,)), weights]
    memory += [bias] if vectors else []
    memory += [r.as_strided((r.numel(),), (1,))] if residual else []
    stem = "conv_depthwise" if depthwise else "conv"
    got = results_of(kernels, stem, memory, y.as_strided((y.numel(),), (1,)), **params)
    line = (1, n, *at)
    want *= bias[1].view(line) if vectors > 1 else 1
    want += bias[0].view(line) if vectors else 0
    want += r if residual == 1 else 0
    want = want.relu() if act == "relu" else want
    want += r if residual == 2 else 0
    want += bias[2].view(line) if vectors > 2 else 0
    close(got.as_strided(y.shape, y.stride()), want, 2 * (taps * channels) ** 0.5)


def _packed(
    kernels: Kernels,
    w: torch.Tensor,
    groups: int,
    n: int,
    taps: int,
    channels: int,
    transposed: bool,
) -> torch.Tensor:
    out, into = w.stride(0), w.stride(1)
    packed = torch.full((groups * ((n + 15) // 16) * 16 * taps * channels,), 7.0, dtype=w.dtype)
    return results_of(
        kernels,
        "pack_b",
        [w],
        packed,
        groups=groups,
        n=n,
        taps=taps,
        channels=channels,
        g_stride=(channels if transposed else n) * out,
        n_stride=into if transposed else out,
        t_stride=1,
        c_stride=out if transposed else into,
        x_dtype=CODES[w.dtype],
        y_dtype=CODES[w.dtype],
    )


def test_conv_with_few_channels_and_all_that_follows_sums(kernels: Kernels) -> None:
    _conv(kernels, (2, 3, 7, 9), (33, 3, 3, 3), pad=1, channels_last=False, vectors=3, residual=1)
    _conv(kernels, (1, 5, 9, 8), (7, 5, 2, 3), F16, stride=2, vectors=2, residual=2, act="relu")


def test_conv_with_many_channels(kernels: Kernels) -> None:
    _conv(kernels, (1, 16, 6, 6), (40, 16, 3, 3), BF16, pad=2, dilation=2, vectors=1, act="relu")
    _conv(kernels, (3, 36, 3, 7), (9, 36, 1, 1), F16, stride=2)


def test_conv_in_groups_of_one_and_three_dimensions(kernels: Kernels) -> None:
    _conv(kernels, (2, 6, 11), (8, 3, 4), groups=2, pad=1, vectors=1)
    _conv(kernels, (1, 4, 3, 4, 5), (6, 4, 2, 2, 3), F16, pad=1)


def test_transposed_conv(kernels: Kernels) -> None:
    _conv(kernels, (1, 6, 5, 4), (6, 5, 3, 3), stride=2, pad=1, transposed=True, vectors=1)
    _conv(kernels, (1, 8, 3, 3), (8, 2, 2, 2), groups=2, stride=3, transposed=True)


def test_depthwise_conv(kernels: Kernels) -> None:
    _conv(
        kernels,
        (2, 9, 6, 7),
        (9, 1, 3, 3),
        F16,
        groups=9,
        pad=1,
        depthwise=True,
        vectors=3,
        residual=1,
        act="relu",
    )
    _conv(kernels, (1, 1, 8), (1, 1, 5), groups=1, stride=2, dilation=1, depthwise=True)
