"""What a convolution pads with is multiplied like what it reads: the same bits as for an input that
has the padding in it, on each instruction set, weights that are not finite and signed zeros too.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import npusim
from npusim._runtime import isa_names

# Kernel, padding and dilation of each dimension, and the input's size: windows most of which lie
# outside, taps that whole lines and planes miss, few channels and many.
CASES = {
    "dilated": (nn.Conv2d(24, 70, 3, padding=6, dilation=6), (2, 24, 9, 11)),
    "ordinary": (nn.Conv2d(40, 33, 3, padding=1, stride=2), (1, 40, 13, 7)),
    "deep": (nn.Conv2d(1100, 20, 3, padding=4, dilation=4, bias=False), (1, 1100, 5, 6)),
    "grouped": (nn.Conv2d(32, 96, 5, padding=2, groups=2), (1, 32, 6, 6)),
    "few in groups": (nn.Conv2d(48, 48, 3, padding=1, groups=12), (2, 48, 9, 11)),
    "few, dilated": (nn.Conv2d(40, 40, 3, padding=4, dilation=4, groups=10), (1, 40, 5, 13)),
    "odd": (nn.Conv2d(9, 16, 3, padding=3, dilation=3), (1, 9, 5, 16)),
    "volume": (nn.Conv3d(16, 48, 3, padding=1), (1, 16, 2, 5, 7)),
}


def bits(found: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Returns where NaN is, and the bits of everything else."""
    nan = found.isnan()
    kind = torch.int32 if found.dtype == torch.float32 else torch.int16
    return nan.numpy(), found.masked_fill(nan, 0).view(kind).numpy()


RUNS = [(name, dtype) for name in CASES for dtype in (torch.float32, torch.bfloat16)]
RUNS.append(("ordinary", torch.float16))


@pytest.mark.parametrize(("name", "dtype"), RUNS)
def test_padding_is_multiplied_as_zeros_are(name: str, dtype: torch.dtype) -> None:
    layer, shape = CASES[name]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
        first = layer.weight[3:5].flatten(2)
        first[0, 1, 0], first[1, 2, -1] = float("inf"), float("nan")
        layer.weight[7:9] = -1e-30  # products of these round to zeros with a sign
    x = torch.randn(shape, generator=generator)
    x[:, :, 0] = 1e-30
    layer, x = layer.to(dtype), x.to(dtype)
    amounts = [each for n in reversed(layer.padding) for each in (n, n)]
    padded = functional.pad(x, amounts)
    kind = type(layer)
    bare = kind(
        *(layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride),
        dilation=layer.dilation,
        groups=layer.groups,
        bias=layer.bias is not None,
        dtype=dtype,
    )
    bare.load_state_dict(layer.state_dict())
    runs = [
        (npusim.compile((model.eval(), (given,))), model.state_dict(), given)
        for model, given in ((layer, x), (bare, padded))
    ]
    for isa in isa_names():
        device = npusim.Device("cpu", threads=1, isa=isa)
        got, wanted = (npusim.load(*run[:2], device)(run[2])[0] for run in runs)
        for found, expected in zip(bits(got), bits(wanted), strict=True):
            assert np.array_equal(found, expected), isa
        assert bits(got)[0].any()
