"""Products of many rows with codes by TMA: which tiles fit, and what all devices compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from npusim.abi.kernels import KERNELS
from npusim.abi.quantization import Quantization
from npusim.codegen.cuda import nvrtc, tma_codes
from npusim.codegen.cuda.choices import default_choice, sized_choice
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.tma_codes import CodeTile
from npusim.codegen.cuda.variants import variants
from npusim.codegen.launch_config import TensorMap
from npusim.codegen.wanted import Recipe
from npusim.targets import TargetConfig
from tests.codegen import host
from tests.codegen.ptxas import SPILLED, spilled
from tests.codegen.test_quantized_products import Product, run

_ONE, _TWO, _WIDE = (
    CodeTile(groups, tokens, 4, 2, 1, 1.0, 1.0, 1.0)
    for groups, tokens in ((1, 64), (2, 64), (2, 128))
)
_INT8, _INT4 = Quantization("int8"), Quantization("int4-asymmetric", 32)


def _fields(product: Product) -> dict[str, object]:
    stem, params = product.key
    return KERNELS[stem].unpack(params)


def test_loads_of_codes_lie_in_one_segment() -> None:
    one, two = _ONE, _TWO
    assert tma_codes.fits(_fields(Product(_INT8, 128, 512, (192, 64, 40))), two)
    assert not tma_codes.fits(_fields(Product(_INT8, 128, 512, (72, 64))), one)
    assert tma_codes.fits(_fields(Product(_INT8, 128, 512, (96, 64))), two)
    gated = Product(_INT8, 128, 512, (1000, 1000), gated=True)
    assert tma_codes.fits(_fields(gated), two) and tma_codes.fits(_fields(gated), one)
    assert not tma_codes.fits(_fields(Product(_INT8, 128, 508, (64,))), one)
    assert not tma_codes.fits(_fields(Product(_INT8, 128, 512, (64,), torch.float32)), one)


@pytest.mark.parametrize("tokens", [8, 64, 128, 256])
@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("blocks", [1, 2, 3, 4])
def test_registers_of_a_processor_are_enough(tokens: int, groups: int, blocks: int) -> None:
    """A thread has at most 255; ptxas takes 24 to 256, in eights, where some are moved."""
    count = CodeTile(groups, tokens, 4, 2, blocks, 1.0, 1.0, 1.0).registers
    assert count == 0 or (count in range(24, 256, 8))
    assert blocks * 128 * (groups * count + (24 if count else 0)) <= 65536


def test_maps_describe_codes_as_halves() -> None:
    for how, row_bytes in ((_INT8, 640), (_INT4, 320)):
        fields = _fields(Product(how, 300, 520, (200, 200), gated=True))
        x, gate, up = tma_codes.tma_codes(fields, _WIDE).maps
        assert x == TensorMap(operand=0, rows=300, columns=520, stride=1056, box=128)
        assert gate == TensorMap(1, 200, row_bytes // 2, row_bytes, 32)
        assert up == TensorMap(2, 200, row_bytes // 2, row_bytes, 32)


def test_the_architecture_with_tma_uses_it_for_many_rows() -> None:
    stem, params = Product(_INT8, 128, 1536, (8960, 8960), gated=True).key
    hopper, older = (TargetConfig.named(f"cuda:{arch}") for arch in ("sm_90a", "sm_80"))
    assert default_choice(stem, params, hopper).variant in variants(stem, params)
    assert not default_choice(stem, params, older).variant
    stem, params = Product(_INT8, 64, 1536, (8960, 8960), gated=True).key
    assert not default_choice(stem, params, hopper).variant


@pytest.mark.parametrize(
    ("how", "k", "dtype"),
    [
        (_INT4, 1536, torch.bfloat16),
        (Quantization("int4", 64), 1536, torch.bfloat16),
        (Quantization("fp8"), 1536, torch.bfloat16),
        (_INT8, 1536, torch.float16),
        (_INT8, 1544, torch.bfloat16),
    ],
    ids=str,
)
def test_all_forms_go_by_them(how: Quantization, k: int, dtype: torch.dtype) -> None:
    stem, params = Product(how, 128, k, (8960, 8960), dtype, gated=True).key
    made = default_choice(stem, params, TargetConfig.named("cuda:sm_90a"))
    assert made.variant in variants(stem, params)


@pytest.mark.parametrize("how", [_INT8, Quantization("int4", 128), _INT4], ids=str)
def test_tiles_compile_without_spilling(how: Quantization, compiler: nvrtc.Nvrtc) -> None:
    hopper, step = TargetConfig.named("cuda:sm_90a"), Recipe(0, "none", False, "auto")
    for product, recipe in (
        (Product(how, 100, 1536, (8960, 8960), gated=True), Recipe(0, "none", False)),
        (Product(how, 300, 8960, (1536,), torch.float16), Recipe(0, "none", False)),
        (Product(how, 8, 1536, (8960, 8960), gated=True), step),
        (Product(how, 128, 8960, (1536,), torch.float16), step),
    ):
        stem, params = product.key
        name = sized_choice(stem, params, hopper, None, recipe).variant
        assert "codes" in name
        source, _, options = specialise(stem, params, 0b1110, name)
        options = ("--gpu-architecture=sm_90a", *options, "--ptxas-options=-v")
        log = compiler.compile(source, options, name)[1]
        assert spilled(log) <= SPILLED and "C75" not in log, (name, log)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("how", [_INT8, _INT4], ids=str)
def test_devices_without_tma_compute_the_same_tiles(
    how: Quantization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(4)
    for split, product in enumerate(
        (
            Product(how, 70, 264, (40, 40), gated=True, epilogue=True),
            Product(how, 66, 520, (64, 24), epilogue=True),
        ),
        1,
    ):
        tile = replace(_TWO, split=split)
        monkeypatch.setattr(tma_codes, "TILES", (tile,))
        folder = tmp_path / str(split)
        folder.mkdir()
        kernels = host.build(product.quantize_keys, folder)
        (tmp_path / f"{split}p").mkdir()
        kernels |= host.build([product.key], tmp_path / f"{split}p", tile.name)
        x = torch.randn(product.m, product.k + 8, generator=generator).to(product.dtype)
        run(product, kernels, x, 4e-3)
