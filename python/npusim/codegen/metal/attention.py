"""Launch configurations of attention: which path computes it, and in how many parts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, as_int, blocks
from npusim.codegen.metal.device import (
    LANE_NUMBERS,
    PART_KEYS,
    THREADGROUP_BYTES,
    parts_to_fill,
)

_FLOAT32 = 0
_FEW_QUERIES = 4  # whose keys are worth more than tiles of them
_FEW_THREADS = 256  # eight SIMD groups
_MOST_ROWS = 8  # of a threadgroup of few queries
_LONGEST_HEAD = 256  # whose columns lanes hold in registers
_TILE_ROWS, _TILE_KEYS = 32, (32, 16)
_COMBINE_THREADS = 64
_STEP_Y = 8  # the last operand of attention_step


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
    fitting = [n for n in _TILE_KEYS if _tile_bytes(head_dim, v_dim, n, size) <= THREADGROUP_BYTES]
    has_mask, has_position = bool(p["has_mask"]), bool(p["has_position"])
    y = 3 + has_mask + has_position
    defines = {
        "PATH": _Path.PLAIN,
        "QUERIES": as_int(p, "q_len"),
        "MASK": 3 if has_mask else 0,
        "POSITION": y - 1 if has_position else 0,
        "Y": y,
    }
    if as_int(p, "q_len") <= _FEW_QUERIES and longest <= _LONGEST_HEAD:
        each = _rows_of_threadgroup(rows, head_dim, v_dim)
        defines["PATH"] = _Path.FEW_ROWS
        return _in_parts(rows, heads, as_int(p, "kv_len"), v_dim, each, has_position, defines)
    if longest > _LONGEST_HEAD or not fitting:
        return _in_parts(rows, heads, as_int(p, "kv_len"), v_dim, 1, has_position, defines)
    defines |= {
        "PATH": _Path.TILES,
        "BLOCK": 128,
        "ROWS": _TILE_ROWS,
        "ROW_TILES": blocks(rows, _TILE_ROWS),
        "KEYS": fitting[0],
        "PARTS": 1,
        "PART_KEYS": 0,
        "FAILURE": y + 1,
    }
    launch = Launch((defines["ROW_TILES"] * heads, 1, 1), (defines["BLOCK"], 1, 1))
    return LaunchConfig((launch,), failure=has_position, defines=defines)


def attention_step(p: Params) -> LaunchConfig:
    """The rule of `attention_step`: as attention of one query over a cache."""
    kv_heads, head_dim, v_dim = as_int(p, "kv_heads"), as_int(p, "head_dim"), as_int(p, "v_dim")
    rows, heads = as_int(p, "heads") // kv_heads, as_int(p, "batch") * kv_heads
    if rows * heads == 0:
        return LaunchConfig(())
    each = _rows_of_threadgroup(rows, head_dim, v_dim)
    defines = {"QUERIES": 1, "Y": _STEP_Y}
    return _in_parts(rows, heads, as_int(p, "limit"), v_dim, each, True, defines)


def _rows_of_threadgroup(rows: int, head_dim: int, v_dim: int) -> int:
    """Returns how many rows share what a threadgroup reads; lanes hold their queries and sums."""
    numbers = blocks(head_dim, 32) + blocks(v_dim, 32)  # of a row, in a lane
    most = max(1, min(LANE_NUMBERS // numbers, _MOST_ROWS))
    return blocks(rows, blocks(rows, most))


def _in_parts(
    rows: int,
    heads: int,
    keys: int,
    v_dim: int,
    each: int,
    failure: bool,
    defines: Mapping[str, int],
) -> LaunchConfig:
    """Few rows, or long ones: where they do not fill the cores, threadgroups share their keys.

    A second launch then combines what the parts have left in scratch memory.

    Args:
        rows: of a key/value head.
        heads: key/value heads of all batch items.
        keys: the most there may be.
        each: rows of a threadgroup.
    """
    tiles = blocks(rows, each)
    parts = parts_to_fill(tiles * heads, _FEW_THREADS, blocks(keys, PART_KEYS))
    launches = [Launch((tiles * heads * parts, 1, 1), (_FEW_THREADS, 1, 1))]
    scratch = 0
    if parts > 1:
        block = (_COMBINE_THREADS, 1, 1)
        launches.append(Launch((rows * heads, 1, 1), block, entry="npusim_combine"))
        scratch = 4 * (v_dim + 2) * parts * rows * heads
    numbers = {
        "BLOCK": _FEW_THREADS,
        "ROWS": each,
        "ROW_TILES": tiles,
        "PARTS": parts,
        "PART_KEYS": PART_KEYS,
        "COLUMNS": _COMBINE_THREADS,
        "SCRATCH": defines["Y"] + 1,
        "FAILURE": defines["Y"] + 1 + bool(scratch),
    }
    return LaunchConfig(tuple(launches), scratch, failure, defines={**defines, **numbers})


def _tile_bytes(head_dim: int, v_dim: int, keys: int, size: int) -> int:
    """Bytes of threadgroup memory that kernels/metal/attention/tiles.h takes."""
    pad = 16 // size
    d, v = blocks(head_dim, 8) * 8, blocks(v_dim, 8) * 8
    queries, kv = _TILE_ROWS * (d + pad) * size, keys * (max(d, v) + pad) * size
    return queries + kv + _TILE_ROWS * ((keys + 4) * 4 + (keys + pad) * size)


RULES: Mapping[str, Rule] = {"attention": attention, "attention_step": attention_step}
