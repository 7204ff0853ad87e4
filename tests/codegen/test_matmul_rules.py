"""Launch configurations of matmuls and attention: what rules choose by shape; that it compiles."""

from __future__ import annotations

from typing import Any

import pytest

from npusim.abi.kernels import KERNELS
from npusim.codegen.cuda import attention_rules, decoding, matmul_rules, nvrtc
from npusim.codegen.cuda.compile_kernels import specialise
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.cuda.variants import CLUSTER
from npusim.codegen.launch_config import LaunchConfig
from npusim.targets import TargetConfig
from tests.codegen.ptxas import SPILLED, spilled

_SHARED = 99 << 10  # bytes that a block may have on the devices with the least
_FLOAT32, _BFLOAT16, _SILU = 0, 2, 34


def _full(stem: str, given: dict[str, Any]) -> dict[str, Any]:
    fields = KERNELS[stem].fields
    return {n: given.get(n, (0,) * count if count > 1 else 0) for n, _, count in fields}


def _linear(m: int, n: int, k: int, dtype: int = _BFLOAT16, **more: Any) -> dict[str, Any]:
    gated = more.get("gated", 0)
    given = {
        "m": m, "n": n, "k": k, "ldx": k, "ldy": n, "ldr": n, "rows": (n * (1 + gated), 0, 0, 0),
        "ldw": (k, 0, 0, 0), "segments": 1, "x_dtype": dtype, "w_dtype": dtype, "y_dtype": dtype,
        "r_dtype": dtype, **more,
    }  # fmt: skip
    return _full("linear", given)


def _attention(q_len: int, kv_len: int, head_dim: int, dtype: int, **more: Any) -> dict[str, Any]:
    def strides(heads: int, rows: int) -> tuple[int, int, int]:
        return (heads * rows * head_dim, rows * head_dim, head_dim)

    given = {
        "batch": 1, "heads": 12, "kv_heads": 2, "q_len": q_len, "kv_len": kv_len,
        "head_dim": head_dim, "v_dim": head_dim, "q_strides": strides(12, q_len),
        "k_strides": strides(2, kv_len), "v_strides": strides(2, kv_len),
        "y_strides": strides(12, q_len), "causal": 1, "dtype": dtype, "scale": 0.1, **more,
    }  # fmt: skip
    return _full("attention", given)


def test_one_row_streams_weights_and_many_rows_pass_through_tiles() -> None:
    paths = [matmul_rules.linear(_linear(m, 2048, 1536)).defines["PATH"] for m in (1, 4, 64)]
    assert paths == [KernelPath.GEMV_SIMT, KernelPath.GEMV_MMA, KernelPath.TILE_MMA]
    plain = [matmul_rules.linear(_linear(m, 64, 64, _FLOAT32)).defines["PATH"] for m in (1, 64)]
    assert plain == [KernelPath.GEMV_SIMT, KernelPath.TILE_FLOAT]


def test_one_row_fills_the_device_once_unless_weights_are_many() -> None:
    def config(n: int, k: int, **more: int) -> LaunchConfig:
        return decoding.linear(_linear(1, n, k, **more))

    for n, k in ((2048, 1536), (1536, 8960), (17920, 1536), (100, 64)):
        launch = config(n, k).launches[0]
        assert launch.grid[0] * config(n, k).defines["COLUMNS"] >= n
        assert launch.grid[0] == matmul_rules.PROCESSORS
        assert launch.shared <= _SHARED
    head = config(151936, 1536)
    assert head.defines["PATH"] == KernelPath.GEMV_SIMT
    assert head.launches[0].grid[0] > 10 * matmul_rules.PROCESSORS
    assert config(512, 1537).defines["PATH"] == KernelPath.GEMV_SIMT, (
        "rows that do not end on 16 bytes"
    )
    assert config(512, 1 << 20).defines["PATH"] == KernelPath.GEMV_SIMT, (
        "more of x than shared memory holds"
    )
    assert config(512, 1536, dtype=_FLOAT32).defines["PATH"] == KernelPath.GEMV_SIMT, (
        "no numbers of tensor cores"
    )


def test_small_matmuls_limit_occupancy_where_launches_overlap() -> None:
    small = decoding.linear(_linear(1, 1536, 1536)).launches[0]
    large = decoding.linear(_linear(1, 1536, 8960)).launches[0]
    assert small.padded_shared is not None and small.padded_shared > small.shared
    assert large.padded_shared is None
    for arch in ("sm_90", "sm_90a", "sm_100"):
        features = TargetConfig.named(f"cuda:{arch}").features
        placed = small.on(features)
        assert (placed.shared, placed.elsewhere, placed.padded_shared) == (
            small.padded_shared,
            small.shared,
            None,
        )
        assert large.on(features) == large
    for arch in ("sm_80", "sm_86", "sm_120"):
        features = TargetConfig.named(f"cuda:{arch}").features
        assert small.on(features).shared == small.shared


def test_attention_of_a_token_is_shared_by_clusters_where_the_cache_is_long() -> None:
    def clusters(limit: int, batch: int = 1) -> int:
        given = {
            "batch": batch, "heads": 12, "kv_heads": 2, "head_dim": 128, "v_dim": 128,
            "limit": limit,
        }  # fmt: skip
        config = decoding.attention_step(_full("attention_step", given))
        count = config.defines["CLUSTERS"]
        assert config.launches[0].grid == (8 * count, 2 * batch, 1)
        assert (config.scratch > 0) == (count > 1)
        return count

    assert clusters(512) == 1
    assert clusters(1024) == 2
    assert clusters(1 << 17) == 7
    assert clusters(1 << 17, batch=64) == 1


def test_as_many_warps_read_a_tokens_keys_as_every_device_has_room_for() -> None:
    def reading(heads: int, head_dim: int) -> int:
        given = {"batch": 1, "heads": heads, "kv_heads": 1, "limit": 4096}
        given |= {"head_dim": head_dim, "v_dim": head_dim}
        config = decoding.attention_step(_full("attention_step", given))
        assert config.launches[0].shared <= 99 << 10
        return config.defines["READING_WARPS"]

    assert reading(6, 128) == 4
    assert reading(16, 256) == 2


def test_long_sums_of_few_tiles_are_split_along_k_and_added_up_by_a_second_launch() -> None:
    few = matmul_rules.linear(_linear(128, 1536, 8960))
    assert [x.entry for x in few.launches] == ["npusim_kernel", "npusim_combine"]
    assert few.launches[0].grid[2] == few.defines["SPLIT"] > 1
    assert few.scratch == 4 * few.defines["SPLIT"] * 128 * 1536
    many = matmul_rules.linear(_linear(4096, 17920, 1536))
    assert (len(many.launches), many.scratch) == (1, 0)


def test_long_caches_are_split_for_few_queries() -> None:
    decode = attention_rules.attention(_attention(1, 4096, 128, _BFLOAT16))
    assert decode.launches[0].grid == (1, 2, 64)
    prefill = attention_rules.attention(_attention(4096, 4096, 128, _BFLOAT16))
    assert len(prefill.launches) == 1


def test_only_a_position_can_fail() -> None:
    assert not attention_rules.attention(_attention(1, 64, 64, _FLOAT32)).failure
    assert attention_rules.attention(_attention(1, 64, 64, _FLOAT32, has_position=1)).failure


def test_nothing_to_compute_is_no_launch() -> None:
    assert matmul_rules.linear(_linear(0, 64, 64)).launches == ()
    assert attention_rules.attention(_attention(0, 64, 64, _FLOAT32)).launches == ()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100"])
def test_products_compile_without_spilling(arch: str, compiler: nvrtc.Nvrtc) -> None:
    cases = [
        ("linear", _linear(1, 1536, 8960, residual=1)),
        ("linear", _linear(1, 8960, 1536, gated=1, act=_SILU)),
        ("linear", _linear(1, 151936, 1536)),
        ("linear", _linear(7, 512, 1536, gated=1, act=_SILU)),
        ("linear", _linear(128, 256, 1536, gated=1, act=_SILU)),
        ("linear", _linear(100, 33, 65, _FLOAT32, has_bias=1)),
        ("attention", _attention(1, 4096, 128, _BFLOAT16, has_position=1)),
        ("attention", _attention(50, 64, 64, _FLOAT32)),
        (CLUSTER, _attention(128, 4096, 128, _BFLOAT16, has_position=1)),
    ]
    for stem, params in cases:
        variant, stem = (stem, "attention") if stem == CLUSTER else ("", stem)
        packed = KERNELS[stem].pack(params)
        source, config, options = specialise(stem, packed, variant=variant)
        options = (f"--gpu-architecture={arch}", *options, "--ptxas-options=-v")
        log = compiler.compile(source, options, stem)[1]
        most = SPILLED if arch == "sm_100" else 0  # its ptxas keeps a word of a prologue
        assert spilled(log) <= most, (stem, log)
        assert all(x.shared <= _SHARED or stem == "attention" for x in config.launches)
