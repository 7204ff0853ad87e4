"""Attention whose keys and values Hopper loads by TMA: which tiles fit, and what all compute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import nvrtc, tma_attention
from npusim.codegen.cuda.choices import default_choice
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.tma_attention import TILES, AttentionTile, fits, key_map
from npusim.codegen.cuda.variants import variants
from npusim.codegen.launch_config import TensorMap
from npusim.selftest.single_op import assert_close
from npusim.targets import TargetConfig
from tests.codegen import host
from tests.codegen.ptxas import SPILLED, spilled
from tests.codegen.test_matmul_rules import _full

_BFLOAT16, _FLOAT16 = 2, 1


def _attention(
    q_len: int, kv_len: int, dim: int, *, heads: int = 4, kv_heads: int = 2, **more: Any
) -> dict[str, Any]:
    v_dim = more.get("v_dim", dim)

    def strides(heads: int, rows: int, size: int) -> tuple[int, int, int]:
        return (heads * rows * size, rows * size, size)

    given = {
        "batch": 1, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len,
        "head_dim": dim, "v_dim": dim, "q_strides": strides(heads, q_len, dim),
        "k_strides": strides(kv_heads, kv_len, dim), "v_strides": strides(kv_heads, kv_len, v_dim),
        "y_strides": strides(heads, q_len, v_dim), "dtype": _BFLOAT16, "scale": dim**-0.5,
    }  # fmt: skip
    return _full("attention", given | more)


def _map(p: dict[str, Any], *strides: int) -> TensorMap | None:
    return key_map(1, p | {"k_strides": strides}, "k_strides", 64, 128)


def test_keys_of_all_heads_are_one_matrix() -> None:
    p = _attention(100, 200, 64, kv_heads=4) | {"batch": 3}
    heads_apart = _map(p, 4 * 200 * 64, 200 * 64, 64)
    assert heads_apart == TensorMap(1, rows=3 * 4 * 200, columns=64, stride=128, box=128)
    merged = _map(p, 200 * 768, 64, 768)  # a row holds queries, keys and values of all heads
    assert merged == TensorMap(1, rows=3 * 200, columns=256, stride=1536, box=128)
    batch_inside = _map(p, 256, 64, 768)
    assert batch_inside == TensorMap(1, rows=200, columns=768, stride=1536, box=128)
    shared = _map(p, 200 * 64, 0, 64)
    assert shared == TensorMap(1, rows=600, columns=64, stride=128, box=128)
    padded = _map(p, 4 * 201 * 64, 201 * 64, 64)
    assert padded == TensorMap(1, rows=2 * 804 + 3 * 201 + 200, columns=64, stride=128, box=128)


def test_keys_that_are_no_matrix_are_left_to_other_paths() -> None:
    p = _attention(100, 200, 64, kv_heads=4) | {"batch": 3}
    assert _map(p, 4 * 200 * 64, 200 * 64, 0) is None  # one key, again and again
    assert _map(p, 200 * 68, 200 * 17, 68) is None  # rows off 16 bytes
    assert _map(p, 200 * 256, 64, 128) is None  # heads that pass the end of a row
    assert _map(p, 4 * 200 * 64 + 8, 200 * 64, 64) is None
    for bad in ({"head_dim": 36}, {"v_dim": 24}, {"dtype": 0}, {"q_strides": (0, 6400, 68)}):
        assert not any(fits(p | bad, tile) for tile in TILES), bad
    assert not any(fits(p | {"q_len": 0}, tile) for tile in TILES)
    assert not any(fits(p | {"kv_len": 0}, tile) for tile in TILES)
    assert fits(p, AttentionTile(128, 128))
    assert not fits(_attention(100, 200, 256), AttentionTile(128, 128))  # of shared memory


def test_many_rows_on_hopper_go_by_tma() -> None:
    hopper, ampere = (TargetConfig.named(f"cuda:{arch}") for arch in ("sm_90a", "sm_80"))
    many = KERNELS["attention"].pack(_attention(4096, 4096, 128, heads=32, kv_heads=8, causal=1))
    assert default_choice("attention", many, hopper).variant in {tile.name for tile in TILES}
    assert not default_choice("attention", many, ampere).variant
    few = KERNELS["attention"].pack(_attention(16, 4096, 128, causal=1, has_position=1))
    assert default_choice("attention", few, hopper).variant not in {tile.name for tile in TILES}


_SHAPES = [
    _attention(1024, 4096, 128, heads=12, causal=1, has_position=1),
    _attention(197, 197, 64, heads=12, kv_heads=12, dtype=_FLOAT16),
    _attention(1500, 1500, 64, heads=8, kv_heads=8, has_mask=1, mask_dtype=9),
    _attention(333, 500, 80),
    _attention(4096, 4096, 40, heads=8, kv_heads=8, dtype=_FLOAT16),
    _attention(729, 729, 72, heads=16, kv_heads=16),
    _attention(333, 500, 96, causal=1, window=99),
    _attention(1024, 4096, 256, heads=8, kv_heads=4, causal=1, has_position=1),
    _attention(333, 500, 128, softcap=20.0, has_mask=1, mask_dtype=0),
]


def test_tma_tiles_compile_without_spilling(compiler: nvrtc.Nvrtc) -> None:
    for params in _SHAPES:
        packed = KERNELS["attention"].pack(params)
        name = max(
            (tile for tile in TILES if fits(params, tile)), key=lambda tile: tile.rows * tile.keys
        ).name
        source, _, options = specialise("attention", packed, 0, name)
        options = ("--gpu-architecture=sm_90a", *options, "--ptxas-options=-v")
        log = compiler.compile(source, options, name)[1]
        assert spilled(log) <= SPILLED and not re.search(r"C75\d\d", log), (name, params, log)


@pytest.mark.skipif(host.COMPILER is None, reason="no C++ compiler to run kernels with")
@pytest.mark.parametrize("position", [0, 77])
def test_devices_without_tma_compute_the_same(
    position: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tile = AttentionTile(128, 64)
    monkeypatch.setattr(tma_attention, "TILES", (tile,))
    q_len, kv_len, dim = 150, 260, 64
    p = _attention(q_len, kv_len, dim, heads=4, kv_heads=2, causal=1, has_position=1)
    key = ("attention", KERNELS["attention"].pack(p))
    assert tile.name in variants(*key)
    kernels = host.build([key], tmp_path, tile.name)
    rng = torch.Generator().manual_seed(3)
    q, k, v = (
        torch.randn(heads, rows, dim, generator=rng).bfloat16()
        for heads, rows in ((4, q_len), (2, kv_len), (2, kv_len))
    )
    used = position + q_len
    k[:, used:], v[:, used:] = torch.nan, torch.nan  # rows that are not in use
    y = torch.full((4, q_len, dim), torch.nan).bfloat16()
    host.call(kernels[key], [q, k, v, torch.tensor([position]), y])
    keys, values = (t[:, :used].double().repeat_interleave(2, 0) for t in (k, v))
    scores = q.double() @ keys.mT * p["scale"]
    hidden = torch.arange(used) > torch.arange(q_len)[:, None] + position
    want = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ values
    assert_close(y, want.bfloat16(), 10.0, f"after {position}")
