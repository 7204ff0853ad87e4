"""Products over codes that are expanded first: which those are, and what all devices compute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from npusim.abi.kernels import KERNELS
from npusim.abi.quantization import Quantization
from npusim.codegen.cuda import expanded_codes, nvrtc, tma_matmul
from npusim.codegen.cuda.choices import default_choice, sized_choice
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.variants import variants
from npusim.codegen.wanted import Recipe
from npusim.targets import TargetConfig
from tests.codegen import host
from tests.codegen.ptxas import SPILLED, spilled
from tests.codegen.test_quantized_products import Product, run

_INT8, _INT4 = Quantization("int8"), Quantization("int4-asymmetric", 32)
_HOPPER = TargetConfig.named("cuda:sm_90a")


def _choice(product: Product) -> str:
    return default_choice(*product.key, _HOPPER).variant


def _fields(product: Product) -> dict[str, object]:
    stem, params = product.key
    return KERNELS[stem].unpack(params)


def test_many_rows_pay_for_an_expansion_and_few_do_not() -> None:
    def many(m: int) -> Product:
        return Product(_INT8, m, 1536, (8960, 8960), gated=True)

    assert not _choice(many(128)).startswith("expanded")
    assert _choice(many(4096)).startswith("expanded") and _choice(many(4096)) in variants(
        *many(4096).key
    )
    assert not _choice(Product(_INT8, 4096, 508, (64,)))  # TMA cannot read x


def test_memory_for_an_expansion_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = _fields(Product(_INT8, 4096, 1536, (8960, 8960), gated=True))
    assert expanded_codes.tiles(fields, 1)
    fit = replace(expanded_codes._FIT, most_expanded_bytes=2 * 17920 * 1536)
    monkeypatch.setattr(expanded_codes, "_FIT", fit)  # the scales do not fit
    assert not expanded_codes.tiles(fields, 1)


def test_bits_that_are_kept_for_any_rows_are_not_by_an_expansion() -> None:
    stem, params = Product(_INT8, 4096, 1536, (8960, 8960), gated=True).key
    choice = sized_choice(stem, params, _HOPPER, None, Recipe(0, "none", False, "always"))
    assert not choice.variant.startswith("expanded")


def test_the_matrix_is_one_segment_in_scratch_memory() -> None:
    product = Product(_INT8, 512, 1544, (96, 64, 40), epilogue=True)
    fields = _fields(product)
    config = expanded_codes.expanded(fields, expanded_codes.tiles(fields, 1)[0])
    x, w = config.maps
    assert (w.rows, w.columns, w.stride, w.operand) == (200, 1544, 2 * 1664, 7)
    assert x.operand == 0 and config.scratch == 200 * 1664 * 2 + 200 * 4
    assert config.defines["ARGUMENTS"] == 8


@pytest.mark.parametrize("how", [_INT8, _INT4], ids=str)
def test_tiles_compile_without_spilling(how: Quantization, compiler: nvrtc.Nvrtc) -> None:
    for product in (
        Product(how, 4096, 1536, (8960, 8960), gated=True),
        Product(how, 1024, 8960, (1536,), torch.float16, epilogue=True),
    ):
        name = expanded_codes.name_of(expanded_codes.tiles(_fields(product), 1)[0])
        source, _, options = specialise(*product.key, 0b1110, name)
        options = ("--gpu-architecture=sm_90a", *options, "--ptxas-options=-v")
        log = compiler.compile(source, options, name)[1]
        assert spilled(log) <= SPILLED and "C75" not in log, (name, log)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("how", [_INT8, _INT4, Quantization("fp8")], ids=str)
def test_devices_without_tma_expand_and_multiply(
    how: Quantization, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = torch.Generator().manual_seed(4)
    tile = next(t for t in tma_matmul.TILES if (t.rows, t.columns, t.split_k) == (64, 64, 1))
    monkeypatch.setattr(tma_matmul, "TILES", (tile,))
    for i, product in enumerate(
        (
            Product(how, 70, 264, (40, 40), gated=True, epilogue=True),
            Product(how, 66, 520, (64, 24), torch.float16, epilogue=True),
        )
    ):
        folder = tmp_path / str(i)
        folder.mkdir()
        kernels = host.build(product.quantize_keys, folder)
        (tmp_path / f"{i}p").mkdir()
        kernels |= host.build([product.key], tmp_path / f"{i}p", expanded_codes.name_of(tile))
        x = torch.randn(product.m, product.k + 8, generator=generator).to(product.dtype)
        run(product, kernels, x, 4e-3)
