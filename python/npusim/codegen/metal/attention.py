"""Launch configurations of attention: which path of `attention.metal` computes it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, as_int, blocks

_FLOAT32 = 0
_THREADGROUP_BYTES = 32 << 10
_FEW_QUERIES = 4  # that a threadgroup each is worth
_LONGEST_HEAD = 256  # whose columns lanes hold in registers
_TILE_ROWS, _TILE_KEYS = 32, (32, 16)


class _Path(IntEnum):
    """The values of NPUSIM_PATH; families without SIMD-group matrices take PLAIN for all."""

    PLAIN = 0
    FEW_ROWS = 1
    TILES = 2


def attention(p: Params) -> LaunchConfig:
    """The rule of `attention`."""
    kv_heads, head_dim, v_dim = as_int(p, "kv_heads"), as_int(p, "head_dim"), as_int(p, "v_dim")
    rows = as_int(p, "heads") // kv_heads * as_int(p, "q_len")
    heads = as_int(p, "batch") * kv_heads
    if rows * heads * v_dim == 0:
        return LaunchConfig(())
    longest = max(head_dim, v_dim)
    size = 4 if p["dtype"] == _FLOAT32 else 2
    fitting = [n for n in _TILE_KEYS if _tile_bytes(head_dim, v_dim, n, size) <= _THREADGROUP_BYTES]
    path, each, threads, keys = _Path.PLAIN, 1, 128, 0
    if as_int(p, "q_len") <= _FEW_QUERIES and longest <= _LONGEST_HEAD:
        path, threads = _Path.FEW_ROWS, 256
    elif longest <= _LONGEST_HEAD and fitting:
        path, each, keys = _Path.TILES, _TILE_ROWS, fitting[0]
    has_mask, has_position = bool(p["has_mask"]), bool(p["has_position"])
    defines = {
        "PATH": path,
        "BLOCK": threads,
        "ROWS": each,
        "ROW_TILES": blocks(rows, each),
        "KEYS": keys,
        "MASK": 3 if has_mask else 0,
        "POSITION": 3 + has_mask if has_position else 0,
        "Y": 3 + has_mask + has_position,
        "FAILURE": 4 + has_mask + has_position,
    }
    launch = Launch((defines["ROW_TILES"] * heads, 1, 1), (threads, 1, 1))
    return LaunchConfig((launch,), failure=has_position, defines=defines)


def _tile_bytes(head_dim: int, v_dim: int, keys: int, size: int) -> int:
    """Bytes of threadgroup memory that kernels/metal/attention/tiles.h takes."""
    pad = 16 // size
    d, v = blocks(head_dim, 8) * 8, blocks(v_dim, 8) * 8
    queries, kv = _TILE_ROWS * (d + pad) * size, keys * (max(d, v) + pad) * size
    return queries + kv + _TILE_ROWS * ((keys + 4) * 4 + (keys + pad) * size)


RULES: Mapping[str, Rule] = {"attention": attention}
