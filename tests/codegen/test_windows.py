"""Large windows of pooling are shared by threads, and give what one thread alone does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import npusim
from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda.rules import RULES
from npusim.lowering.assemble import assemble
from npusim.passes.run import run_passes
from tests.codegen import host
from tests.codegen.cases import TARGET

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# pooling, channels, height and width, threads that share a window of 16-bit elements
LAYERS: dict[str, tuple[nn.Module, int, tuple[int, int], int]] = {
    "average of all": (nn.AdaptiveAvgPool2d(1), 16, (9, 8), 32),
    "average of a part": (nn.AdaptiveAvgPool2d((1, 2)), 8, (8, 10), 16),
    "largest of all": (nn.AdaptiveMaxPool2d(1), 24, (7, 7), 16),
    "padded": (nn.AvgPool2d(6, 3, 2), 8, (11, 9), 16),
    "padded, not counted": (nn.AvgPool2d(6, 3, 2, count_include_pad=False), 8, (11, 9), 16),
    "largest of padded": (nn.MaxPool2d(7, 2, 3), 4, (9, 10), 16),
    "dilated": (nn.MaxPool2d(6, 1, 1, 2), 4, (14, 15), 16),
    "odd channels": (nn.AdaptiveAvgPool2d(1), 5, (9, 8), 1),
    "small": (nn.AvgPool2d(2), 8, (8, 8), 1),
}


def _program(layer: nn.Module, x: Tensor) -> npusim.CompiledProgram:
    model = nn.Sequential(nn.ReLU(), layer)
    return assemble(run_passes(npusim.extract_ir(model.eval(), (x,)), TARGET), TARGET)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("name", LAYERS)
def test_windows_are_what_pytorch_has(name: str, tmp_path: Path) -> None:
    """Of integers, whose sums are exact in any order, with NaN and infinities among them."""
    layer, channels, size, parts = LAYERS[name]
    generator = torch.Generator().manual_seed(len(name))
    x = torch.randint(0, 9, (3, channels, *size), generator=generator).float()
    x[0, 0, 3, 4], x[1, 1, 2, 2], x[2, 2, 5, 5] = float("nan"), float("inf"), float("nan")
    programs = {dtype: _program(layer, x.to(dtype)) for dtype in DTYPES}
    keys = host.keys_of(programs.values())
    for stem, params in keys:
        fields = KERNELS[stem].unpack(params)
        if stem == "pool" and fields["x_dtype"]:
            assert RULES[stem](fields).defines["PARTS"] == parts
    kernels = host.build(keys, tmp_path)
    for dtype, program in programs.items():
        given = x.to(dtype)
        (data,) = host.run_program(program, kernels, [bytes(given.view(torch.uint8).numpy())])
        want = layer(given.float()).to(dtype)
        got = torch.frombuffer(bytearray(data), dtype=dtype).reshape(want.shape)
        assert torch.equal(got.isnan(), want.isnan()), dtype
        assert torch.equal(got.nan_to_num(-1), want.nan_to_num(-1)), dtype


RESIZED: dict[str, nn.Module] = {
    "nearest": nn.Upsample(scale_factor=2),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
}


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("name", RESIZED)
def test_channels_are_resized_in_packs(name: str, tmp_path: Path) -> None:
    """Large images, of integers: their quarters' products are exact."""
    model = nn.Sequential(nn.ReLU(), RESIZED[name])
    x = torch.arange(2 * 8 * 130 * 128).remainder(13).reshape(2, 8, 130, 128).float()
    programs = {dtype: _program(model, x.to(dtype)) for dtype in DTYPES}
    keys = host.keys_of(programs.values())
    packs = [RULES[s](KERNELS[s].unpack(p)).defines["CHANNELS"] for s, p in keys if s == "resize"]
    assert sorted(packs) == [4, 8, 8]
    kernels = host.build(keys, tmp_path)
    want = model(x)
    for dtype, program in programs.items():
        given = bytes(x.to(dtype).view(torch.uint8).numpy())
        (data,) = host.run_program(program, kernels, [given])
        got = torch.frombuffer(bytearray(data), dtype=dtype).reshape(want.shape)
        assert torch.equal(got, want.to(dtype)), dtype
