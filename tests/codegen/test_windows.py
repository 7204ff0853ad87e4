"""Large windows of pooling are shared by threads, and give what one thread alone does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
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


class Resizes(nn.Module):
    """Images in many sizes and modes: some sizes stay, some positions are the last element's."""

    def forward(self, x: Tensor) -> list[Tensor]:
        """x [1, 3, 5, 7]."""
        sizes = ((10, 14), (5, 14), (5, 7), (9, 7), (3, 9), (9, 13), (1, 1))
        resized = [
            F.interpolate(x, size, mode=mode, align_corners=aligned)
            for mode in ("bilinear", "bicubic")
            for aligned in (False, True)
            for size in sizes
        ]
        rows, deep = x[:, :, 0], x.unsqueeze(2).expand(1, 3, 2, 5, 7)
        one = F.interpolate(x[:, :, :1, :1], (4, 4), mode="bilinear")
        lines = [F.interpolate(rows, n, mode="linear", align_corners=True) for n in (7, 14, 13)]
        volumes = [F.interpolate(deep, (d, 5, 9), mode="trilinear") for d in (2, 3)]
        return [*resized, one, *lines, *volumes]


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_infinities_are_resized_as_pytorch_does(tmp_path: Path) -> None:
    """Nothing beside a dimension that stays is read, and zero times infinity is NaN."""
    model = Resizes().eval()
    plain = torch.randn(1, 3, 5, 7, generator=torch.Generator().manual_seed(3))
    program = assemble(run_passes(npusim.extract_ir(model, (plain,)), TARGET), TARGET)
    kernels = host.build(host.keys_of([program]), tmp_path)
    on_cpu = npusim.load(npusim.compile(npusim.extract_ir(model, (plain,))))
    for value in (float("inf"), -float("inf"), float("nan")):
        for place in (0, 6, 17, 52, 104):
            x = plain.clone()
            x.view(-1)[place] = value
            generated = host.run_program(program, kernels, [bytes(x.view(torch.uint8).numpy())])
            for want, data, given in zip(model(x), generated, on_cpu(x), strict=True):
                device = torch.frombuffer(bytearray(data), dtype=torch.float32).view(want.shape)
                for got in (device, torch.as_tensor(given)):
                    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
