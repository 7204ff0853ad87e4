"""Launch configurations of attention and of the rotations of its queries and keys.

Attention goes by tiles of keys on the tensor cores, float32 in parts; heads too long for them by
rows. Where the rows do not fill the device the keys are split, and a second launch, or the
blocks of a cluster, combine the parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import GPU, PROCESSORS
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, as_int, blocks
from npusim.codegen.rope import rope

_ATTENTION = GPU.attention
_BLOCK = 256  # threads of a block that has one row
_FLOAT32 = 0
_LONGEST_HEAD = 256  # that tiles of attention take
_KEYS = 64  # of a tile of 16-bit operands, and of what is split
_FLOAT_KEYS = {64: 64, 128: 32, _LONGEST_HEAD: 16}  # of a tile of float32, by the widest row
_LEAST_KEYS = 16  # of a tile, beside which registers and shared memory have two warps' rows
_FLOAT_PARTS = 3  # of 16 bits, that float32 is multiplied in


def attention(p: Params) -> LaunchConfig:
    """The rule of `attention`."""
    kv_heads, head_dim, v_dim = as_int(p, "kv_heads"), as_int(p, "head_dim"), as_int(p, "v_dim")
    rows = as_int(p, "heads") // kv_heads * as_int(p, "q_len")
    heads = as_int(p, "batch") * kv_heads
    if rows * heads * v_dim == 0:
        return LaunchConfig(())
    has_position = bool(p["has_position"])
    operands = 4 + int(bool(p["has_mask"])) + has_position
    if max(head_dim, v_dim) > _LONGEST_HEAD or head_dim == 0:
        defines = {"PATH": KernelPath.LONG_HEADS, "BLOCK": _BLOCK, "SPLIT": 1, "CLUSTERED": 0}
        defines["ARGUMENTS"] = operands + 1 + has_position
        scratch = 4 * heads * rows * max(as_int(p, "kv_len"), 1)
        launch = Launch((rows, heads, 1), (_BLOCK, 1, 1))
        return LaunchConfig((launch,), scratch, has_position, defines=defines)
    most_warps = 4 if _keys(p) > _LEAST_KEYS else 2
    row_warps = min(1 if rows <= 16 else 2 if rows <= 32 else 4, most_warps)
    tiles = blocks(as_int(p, "kv_len"), _KEYS)
    row_blocks = blocks(rows, 16 * row_warps)
    split = 1
    if tiles > _ATTENTION.whole_tiles and row_blocks * heads < PROCESSORS:
        places = _ATTENTION.split_blocks_per_processor * PROCESSORS
        split = min(tiles, max(1, places // (row_blocks * heads)))
    if p["dtype"] == _FLOAT32:
        if tiles > _ATTENTION.whole_tiles and row_warps == most_warps:
            split = _float_split(p, row_blocks * heads, tiles)
        shares = 1 < tiles <= _ATTENTION.whole_tiles and _keys(p) == _KEYS
    else:
        # Long rows of keys are what a block waits for: two warps share them.
        shares = tiles > _ATTENTION.shared_row_tiles
    warps = 8 if split == 1 and row_warps == 4 and shares else most_warps
    return attention_tiles(p, row_warps, split, warps=warps)


def _float_split(p: Params, row_blocks: int, tiles: int) -> int:
    """Returns how many splits of the keys take least, where blocks fill the device in waves."""
    fit, columns = _ATTENTION.floats, as_int(p, "head_dim") + as_int(p, "v_dim")
    rows = as_int(p, "batch") * as_int(p, "heads") * as_int(p, "q_len")

    def time(split: int) -> float:
        waves = blocks(row_blocks * split, fit.blocks_per_processor * PROCESSORS)
        combine = fit.combine_us + split * rows * columns * 4 / fit.bytes_per_us
        return waves * blocks(tiles, split) * fit.step_us * columns / 128 + combine * (split > 1)

    return min(range(1, tiles + 1), key=time)


def attention_cluster(p: Params) -> LaunchConfig | None:
    """Attention whose splits of the keys are combined in a cluster, where the rule has splits."""
    rule = attention(p)
    if (
        not rule.launches
        or rule.defines["PATH"] != KernelPath.TILE_MMA
        or rule.defines["ROW_WARPS"] != 4
    ):
        return None
    if rule.defines["SPLIT"] <= _ATTENTION.cluster_splits:
        return None
    return attention_tiles(p, 4, 4, clustered=True, warps=8)


def attention_tiles(
    p: Params, row_warps: int, split: int, clustered: bool = False, warps: int = 4
) -> LaunchConfig:
    """Attention by tiles of keys.

    Args:
        row_warps: how many of a block's warps have rows of their own; the others have other keys.
        split: splits of the keys, which a second launch combines.
        clustered: whether the blocks of a cluster combine them instead, or take rows of their own
            where few keys are in use.
        warps: of a block; each has 16 keys of a tile at least.
    """
    kv_heads, head_dim, v_dim = as_int(p, "kv_heads"), as_int(p, "head_dim"), as_int(p, "v_dim")
    rows = as_int(p, "heads") // kv_heads * as_int(p, "q_len")
    heads = as_int(p, "batch") * kv_heads
    has_position = bool(p["has_position"])
    operands = 4 + int(bool(p["has_mask"])) + has_position
    warps = min(warps, row_warps * (_keys(p) // 16))
    block_rows, threads = 16 * row_warps, 32 * warps
    is_float = p["dtype"] == _FLOAT32
    if is_float:
        shared = _float_attention_shared(block_rows, head_dim, v_dim, warps)
    else:
        shared = _mma_attention_shared(block_rows, head_dim, v_dim, warps, clustered)
    launches = [Launch((blocks(rows, block_rows), heads, split), (threads, 1, 1), shared)]
    scratch = 0
    combines = split > 1 and not clustered
    if combines:
        launches.append(Launch((rows, heads, 1), (128, 1, 1), entry="npusim_combine"))
        scratch = 4 * split * heads * rows * (v_dim + 2)
    defines = {
        "PATH": KernelPath.TILE_FLOAT if is_float else KernelPath.TILE_MMA,
        "BLOCK": threads,
        "SPLIT": split,
        "WARPS": warps,
        "ROW_WARPS": row_warps,
        "CLUSTERED": int(clustered),
        "FEW_TURNS": _ATTENTION.cluster_turns,
        "ARGUMENTS": operands + combines + has_position,
    }
    overlaps = rows <= 16 or clustered
    return LaunchConfig(tuple(launches), scratch, has_position, overlaps=overlaps, defines=defines)


def _keys(p: Params) -> int:
    """Keys of a tile, as attention/mma_layout.h has them."""
    if p["dtype"] != _FLOAT32:
        return _KEYS
    return _float_keys(as_int(p, "head_dim"), as_int(p, "v_dim"))


def _float_keys(head_dim: int, v_dim: int) -> int:
    """Keys of a tile of float32, which fit every device's shared memory."""
    return next(keys for widest, keys in _FLOAT_KEYS.items() if max(head_dim, v_dim) <= widest)


def _mma_attention_shared(
    block_rows: int, head_dim: int, v_dim: int, warps: int, clustered: bool
) -> int:
    """Bytes that attention/mma_attention.h takes: rows of queries, two tiles; then all warps' sums.

    Blocks of a cluster may have few keys instead, whose values they take all at once.
    """
    d_line, v_line = blocks(head_dim, 64) * 128, blocks(v_dim, 64) * 128
    tiles = block_rows * d_line + 2 * _KEYS * (d_line + v_line)
    few = _ATTENTION.cluster_turns * 16 * warps * v_line if clustered else 0
    return max(tiles, few, _sums_shared(v_dim, warps))


def _float_attention_shared(block_rows: int, head_dim: int, v_dim: int, warps: int) -> int:
    """Bytes that attention/float_attention.h takes: parts of its operands, then sums."""
    keys = _float_keys(head_dim, v_dim)
    queries_and_keys = (block_rows + keys) * _row_bytes(head_dim)
    return max(queries_and_keys + keys * _row_bytes(v_dim), _sums_shared(v_dim, warps))


def _row_bytes(columns: int) -> int:
    """Bytes between rows of float32 in parts: an odd number of chunks of 16."""
    return (_FLOAT_PARTS * blocks(columns, 16) * 2 | 1) * 16


def _sums_shared(v_dim: int, warps: int) -> int:
    """Bytes of all warps' sums, row maxima and row sums, as attention/key_warps.h has them."""
    return 16 * warps * (blocks(v_dim, 16) * 16 + 10) * 4


RULES: Mapping[str, Rule] = {"attention": attention, "rope": partial(rope, eights=True)}
