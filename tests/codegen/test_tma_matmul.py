"""Linears whose operands Hopper loads by TMA: which tiles fit, and what all devices compute."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import nvrtc, tma_matmul
from npusim.codegen.cuda.choices import default_choice
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.tma_matmul import ClusterTile
from npusim.codegen.cuda.variants import variants
from npusim.codegen.launch_config import TensorMap
from npusim.targets import TargetConfig
from tests.codegen import host
from tests.codegen.cases import norm_between
from tests.codegen.test_matmul_rules import _full, _linear

_SILU = 34
_QKV = {"segments": 3, "rows": (1536, 256, 256, 0), "ldw": (1536, 1536, 1536, 0), "has_bias": 1}
_GATED = {"gated": 1, "act": _SILU, "segments": 2}


def _gated(m: int, n: int, k: int) -> dict[str, Any]:
    return _linear(m, n, k, rows=(n, n, 0, 0), ldw=(k, k, 0, 0), **_GATED)


def test_tma_loads_of_a_tile_lie_in_one_segment_of_the_weights() -> None:
    tile = ClusterTile(128, 96, 1, 1, 1, 3)
    assert tma_matmul.fits(_linear(128, 2048, 1536, **_QKV), ClusterTile(128, 64, 1, 1, 1, 3))
    assert not tma_matmul.fits(_linear(128, 2048, 1536, **_QKV), ClusterTile(128, 192, 1, 1, 1, 3))
    assert tma_matmul.fits(_gated(128, 1000, 512), tile)  # the last tile passes the end of a part
    assert not tma_matmul.fits(_gated(128, 1000, 512) | {"rows": (1500, 500, 0, 0)}, tile)
    assert not tma_matmul.fits(
        _linear(128, 96, 510, ldx=510, ldw=(510, 0, 0, 0)), tile
    )  # odd lines
    assert not tma_matmul.fits(_linear(128, 96, 512, dtype=0), tile)


def test_maps_describe_operands_and_the_tiles_that_blocks_multicast() -> None:
    config = tma_matmul.tma_matmul(_gated(300, 1000, 512), ClusterTile(128, 160, 2, 4, 1, 3))
    x, gate, up = config.maps
    assert x == TensorMap(operand=0, rows=300, columns=512, stride=1024, box=32)
    assert gate == TensorMap(operand=1, rows=1000, columns=512, stride=1024, box=80)
    assert up == TensorMap(operand=2, rows=1000, columns=512, stride=1024, box=80)
    assert config.launches[0].grid == (4, 16, 1)  # whole clusters


def test_the_architecture_with_tma_uses_it_by_default() -> None:
    params = KERNELS["linear"].pack(_gated(128, 8960, 1536))
    hopper = default_choice("linear", params, TargetConfig.named("cuda:sm_90a"))
    assert hopper.variant in variants("linear", params)
    assert not default_choice("linear", params, TargetConfig.named("cuda:sm_80")).variant
    one = KERNELS["linear"].pack(_linear(1, 8960, 1536))
    assert not default_choice("linear", one, TargetConfig.named("cuda:sm_90a")).variant


def test_tma_tiles_compile_without_spilling(compiler: nvrtc.Nvrtc) -> None:
    cases = [_linear(128, 2048, 1536, **_QKV), _gated(128, 8960, 1536), _gated(1024, 8960, 1536)]
    cases += [_linear(m, 1536, 8960, residual=1) for m in (40, 128, 1024)]
    for params in cases:
        packed = KERNELS["linear"].pack(params)
        (name, *_) = variants("linear", packed)
        source, _, options = specialise("linear", packed, 0b1110, name)
        options = ("--gpu-architecture=sm_90a", *options, "--ptxas-options=-v")
        log = compiler.compile(source, options, name)[1]
        assert not re.search(r"[1-9]\d* bytes spill|C75\d\d", log), (name, log)


def _before_norm(m: int, n: int, k: int) -> dict[str, Any]:
    slots = -(-n // 128) * 2
    return _full("linear_before_norm", _linear(m, n, k, residual=1) | {"slots": slots})


def _after_norm(before: dict[str, Any], linear: dict[str, Any]) -> dict[str, Any]:
    more = {"slots": before["slots"], "norm_eps": 1e-6}
    return _full("linear_behind_norm", linear | more)


def test_a_tile_before_a_norm_has_a_slot() -> None:
    few = ClusterTile(128, 32, 1, 1, 2, 8)
    assert tma_matmul.fits(_linear(128, 1536, 1536), few)
    assert not tma_matmul.fits(_before_norm(128, 1536, 1536), few)


def test_products_around_a_norm_compile_without_spilling(compiler: nvrtc.Nvrtc) -> None:
    for m in (128, 1024):
        before = _before_norm(m, 1536, 8960)
        cases = [("linear_before_norm", p) for p in (before, _before_norm(m, 1536, 1536))]
        qkv, gated = _linear(m, 2048, 1536, **_QKV), _gated(m, 8960, 1536)
        cases += [("linear_behind_norm", _after_norm(before, p)) for p in (qkv, gated)]
        for stem, params in cases:
            packed = KERNELS[stem].pack(params)
            name = default_choice(stem, packed, TargetConfig.named("cuda:sm_90a")).variant
            source, _, options = specialise(stem, packed, 0b110, name)
            options = ("--gpu-architecture=sm_90a", *options, "--ptxas-options=-v")
            log = compiler.compile(source, options, name)[1]
            assert not re.search(r"[1-9]\d* bytes spill|C75\d\d", log), (stem, name, log)


def check_norm_between(m: int, folder: Path, variant_of: Callable[[host.Key], str]) -> None:
    """Holds a residual product, a norm and a gated product of m rows to PyTorch.

    Args:
        folder: where kernels are compiled for this processor.
        variant_of: the name of a kernel's launch configuration.
    """

    def built(stem: str, p: dict[str, Any]) -> host.HostKernel:
        key = stem, KERNELS[stem].pack(p)
        (folder / stem).mkdir()
        return host.build([key], folder / stem, variant_of(key))[key]

    generator = torch.Generator().manual_seed(5)
    n, k, inner = 200, 136, 104
    shapes = ((m, k), (n, k), (n,), (m, n), (inner, n), (inner, n))
    x, w, norm, r, gate, up = (torch.randn(s, generator=generator).bfloat16() for s in shapes)
    before = _before_norm(m, n, k)
    behind = _after_norm(before, _gated(m, inner, n))
    first, second = built("linear_before_norm", before), built("linear_behind_norm", behind)
    y, scaled = (torch.full((m, n), torch.nan).bfloat16() for _ in range(2))
    squares = torch.full((before["slots"], m), torch.nan)
    host.call(first, [x, w, norm, r, y, scaled, squares])
    assert _error(y, x.float() @ w.float().T + r.float()) < 4e-3
    assert torch.equal(scaled, y * norm)
    torch.testing.assert_close(squares.sum(0), y.float().square().sum(-1))
    z = torch.full((m, inner), torch.nan).bfloat16()
    host.call(second, [scaled, gate, up, squares, z])
    normed = torch.rms_norm(y.float(), (n,), norm.float(), 1e-6)
    want = torch.nn.functional.silu(normed @ gate.float().T) * (normed @ up.float().T)
    assert _error(z, want) < 5e-3


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("tile", [None, ClusterTile(128, 112, 1, 1, 1, 3)], ids=str)
def test_devices_without_tma_split_a_norm_too(
    tile: ClusterTile | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tma_matmul, "TILES", (tile,))
    check_norm_between(150, tmp_path, lambda key: tile.name if tile else "")


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
def test_a_norm_between_products_of_a_model(tmp_path: Path) -> None:
    model, given, program = norm_between()
    stems = [program.kernels[c.kernel].name for c in program.methods[0].commands]
    assert stems == ["linear_before_norm", "linear_behind_norm", "linear"]
    kernels = host.build(host.keys_of([program]), tmp_path)
    weights = {name: t.detach() for name, t in model.state_dict().items()}
    data = {name: t.view(torch.int16).numpy().tobytes() for name, t in weights.items()}
    inputs = [t.view(torch.int16).numpy().tobytes() for t in given]
    (result,) = host.run_program(program, kernels, inputs, data)
    found = torch.frombuffer(bytearray(result), dtype=torch.bfloat16).reshape(2, 20, 80)
    with torch.no_grad():
        want = model.double()(*(t.double() for t in given))
    assert _error(found, want) < 5e-3


def _error(found: torch.Tensor, want: torch.Tensor) -> float:
    return float((found.float() - want).norm() / want.norm())


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize(
    "tile", [ClusterTile(128, 96, 1, 1, 4, 3), ClusterTile(64, 160, 2, 2, 1, 3)]
)
def test_devices_without_tma_compute_the_same(
    tile: ClusterTile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tma_matmul, "TILES", (tile,))
    generator = torch.Generator().manual_seed(4)
    m, n, k = 150, 200, 520
    x, gate, up, r = (
        torch.randn(s, generator=generator).bfloat16() for s in ((m, k), (n, k), (n, k), (m, n))
    )
    products = [x.float() @ w.float().T / k for w in (gate, up)]
    gate, up = gate / k, up / k
    cases = [
        (_gated(m, n, k), [x, gate, up], torch.nn.functional.silu(products[0]) * products[1]),
        (_linear(m, n, k, residual=1), [x, gate, r], products[0] + r.float()),
    ]
    keys = [("linear", KERNELS["linear"].pack(params)) for params, _, _ in cases]
    kernels = host.build(keys, tmp_path, tile.name)
    for key, (_, given, want) in zip(keys, cases, strict=True):
        y = torch.full((m, n), torch.nan).bfloat16()
        host.call(kernels[key], [*given, y])
        error = (y.float() - want).norm() / want.norm()
        assert error < 1e-2, (tile.name, float(error))
