"""Products of few rows with codes: what the tensor cores add up, run by a host compiler.

Results are float32, so that what is left is the order of sums: products of codes and 16-bit floats
are exact, and scales are applied in float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from npusim.abi.kernels import KERNELS, MOST_NORMED_CODES
from npusim.abi.quantization import FORMATS, Quantization, dequantize, quantized_bytes
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.cuda.rules import RULES
from tests.codegen import host
from tests.codegen.shapes import full

SCHEMES = tuple(
    Quantization.parse(scheme)
    for scheme in ("int8", "fp8", "int4-g32", "int4-g64", "int4-g128")
) + tuple(
    Quantization.parse(f"int4-g{group}-asymmetric") for group in (32, 64, 128)
)  # fmt: skip
SILU = 34
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}


@dataclass(frozen=True)
class Product:
    """A product over parts of so many rows of codes."""

    how: Quantization
    m: int
    k: int
    rows: tuple[int, ...]
    dtype: torch.dtype = torch.bfloat16
    gated: bool = False
    normed: bool = False
    epilogue: bool = False

    @property
    def n(self) -> int:
        return sum(self.rows) // (2 if self.gated else 1)

    @property
    def key(self) -> host.Key:
        stem = "normed_quantized_linear" if self.normed else "quantized_linear"
        code = DTYPES[self.dtype]
        given = {
            "m": self.m, "n": self.n, "k": self.k, "ldx": self.k + 8, "ldy": self.n,
            "ldr": self.n, "group": self.how.group, "segments": len(self.rows),
            "rows": self.rows + (0,) * (4 - len(self.rows)), "gated": int(self.gated),
            "format": FORMATS[self.how.format], "x_dtype": code, "r_dtype": code,
            "has_bias": int(self.epilogue), "residual": int(self.epilogue and not self.gated),
            "act": SILU * self.gated, "norm_eps": 1e-5,
        }  # fmt: skip
        names = {name for name, _, _ in KERNELS[stem].fields}
        params = full(stem, {k: v for k, v in given.items() if k in names})
        return stem, KERNELS[stem].pack(params)

    @property
    def quantize_keys(self) -> list[host.Key]:
        return [
            ("quantize", KERNELS["quantize"].pack({
                "rows": rows, "k": self.k, "ldw": self.k, "group": self.how.group,
                "format": FORMATS[self.how.format], "x_dtype": DTYPES[self.dtype],
            }))
            for rows in self.rows
        ]  # fmt: skip


def products() -> Iterator[Product]:
    """Yields products of all formats: whole and part blocks of K, one to eight rows of x."""
    for at, how in enumerate(SCHEMES):
        assert how is not None
        yield Product(how, 1, 512, (40,), normed=True)
        yield Product(how, 3, 264, (24, 8, 16), epilogue=True)  # K is padded to 384
        yield (
            Product(how, 8, 1280, (17,), torch.float16),
            Product(how, 1, 2304, (40, 40), gated=True, normed=True, epilogue=True),
            Product(how, 1, 1160, (5,), torch.float16, normed=True),
        )[at % 3]
    asymmetric = SCHEMES[-1]
    assert asymmetric is not None
    yield Product(asymmetric, 1, 640, (2400, 2400), gated=True, normed=True)  # several tiles


def rule_of(product: Product) -> KernelPath:
    stem, params = product.key
    path = RULES[stem](KERNELS[stem].unpack(params)).defines["PATH"]
    assert isinstance(path, KernelPath)
    return path


def run(
    product: Product, kernels: dict[host.Key, host.HostKernel], x: Tensor, off: float = 2e-5
) -> Tensor:
    """Quantizes seeded weights, multiplies, and holds the result to float64.

    Args:
        off: the relative error that it may have.
    """
    generator = torch.Generator().manual_seed(product.k)
    weights, parts = [], []
    for rows, key in zip(product.rows, product.quantize_keys, strict=True):
        w = torch.randn(rows, product.k, generator=generator).to(product.dtype)
        codes = torch.zeros(quantized_bytes(product.how, rows, product.k), dtype=torch.uint8)
        host.call(kernels[key], [w, codes])
        parts.append(codes)
        weights.append(dequantize(codes, product.how, rows, product.k).double())
    norm = (1 + 0.1 * torch.randn(product.k, generator=generator)).to(product.dtype)
    bias = torch.randn(sum(product.rows), generator=generator)
    residual = torch.randn(product.m, product.n, generator=generator).to(product.dtype)
    y = torch.full((product.m, product.n), torch.nan)
    operands = [x, *parts]
    row = x[:, : product.k].double()
    if product.normed:
        operands.append(norm)
        row = row * torch.rsqrt((row * row).mean(-1, keepdim=True) + 1e-5) * norm.double()
    sums = row @ torch.cat(weights).T
    if product.epilogue:
        operands.append(bias)
        sums = sums + bias.double()
        if not product.gated:
            operands.append(residual)
            sums = sums + residual.double()
    if product.gated:
        first, second = sums.chunk(2, -1)
        sums = torch.nn.functional.silu(first) * second
    host.call(kernels[product.key], [*operands, y])
    assert float((y.double() - sums).norm() / sums.norm()) < off, product
    return y


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_codes_are_multiplied_as_what_they_stand_for(tmp_path: Path) -> None:
    chosen = list(products())
    paths = {KernelPath.GEMV_MULTISTAGE, KernelPath.CODES_ROWS}
    assert {rule_of(p) for p in chosen} == paths
    keys = [key for p in chosen for key in (*p.quantize_keys, p.key)]
    kernels = host.build(list(dict.fromkeys(keys)), tmp_path)
    generator = torch.Generator().manual_seed(1)
    for product in chosen:
        x = torch.randn(product.m, product.k + 8, generator=generator).to(product.dtype)
        x[:, product.k :] = torch.nan  # of nobody's row
        run(product, kernels, x)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_a_rows_sums_do_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    """Bit for bit: not on what they hold, nor on which of the rows it is."""
    how = Quantization.parse("int4-g64-asymmetric")
    assert how is not None
    product = Product(how, 5, 1536, (48,))
    kernels = host.build([*product.quantize_keys, product.key], tmp_path)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(5, product.k + 8, generator=generator).to(product.dtype)
    first = run(product, kernels, x)
    again = run(product, kernels, x.flip(0) * torch.tensor([[1.0], [7], [1], [7], [1]]).bfloat16())
    for row in (0, 2, 4):
        assert torch.equal(first[row], again[4 - row])


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("at", range(len(SCHEMES)))
def test_a_rows_sums_do_not_depend_on_how_many_rows_there_are(at: int, tmp_path: Path) -> None:
    """Bit for bit, of 1 to 64 rows: warps share K alike, and add it up in the same order."""
    scheme, dtype = SCHEMES[at], (torch.bfloat16, torch.float16)[at % 2]
    assert scheme is not None
    counts = (1, 3, 9, 64)
    alike = [Product(scheme, m, 904, (24, 16), dtype) for m in counts]
    kernels = host.build([*alike[0].quantize_keys, *(p.key for p in alike)], tmp_path)
    x = torch.randn(64, 904 + 8, generator=torch.Generator().manual_seed(3)).to(dtype)
    all_rows = run(alike[-1], kernels, x)
    for product in alike:
        assert torch.equal(run(product, kernels, x[: product.m].clone()), all_rows[: product.m])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_up_to_64_rows_share_k_as_one_row_does(scheme: Quantization) -> None:
    """Whatever tile there is room for: by another kernel, rows would have other bits."""
    by_rows = {KernelPath.GEMV_MULTISTAGE, KernelPath.CODES_ROWS}
    for k, n in ((128, 1536), (1536, 8960), (8960, 1536), (4096, 28672)):
        for m in range(1, 65):
            assert rule_of(Product(scheme, m, k, (n,))) in by_rows, (m, k, n)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_normed_product_that_a_pass_makes_has_a_kernel(scheme: Quantization) -> None:
    for k in (8, 136, 1536, 8960, MOST_NORMED_CODES):
        for n in (1, 100, 4096, 151936):
            assert rule_of(Product(scheme, 1, k, (n,), normed=True)) == KernelPath.GEMV_MULTISTAGE
            gated = Product(scheme, 1, k, (n, n), gated=True, normed=True)
            assert rule_of(gated) == KernelPath.GEMV_MULTISTAGE
