"""Launch configurations of what reads and writes a cache in pages.

A row of a step may see one key or a whole context, which only running tells: launches have blocks
for all chunks of keys that pay, and those that find none end.
"""

from __future__ import annotations

from collections.abc import Mapping

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import MOST_SHARED, PROCESSORS, on_tensor_cores
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, as_int, as_ints, blocks

_HALVES = (1, 2)  # dtypes of 16 bits
_UNIT, _CHUNK = 64, 256  # keys: kUnit and kChunk of attention/paged_sums.h
_WARPS = _CHUNK // _UNIT
_LONGEST_HEAD = 256  # that tiles take
_MOST_KEYS = 1 << 30  # likewise, of a request: positions and offsets in 32 bits
_RING_BYTES = 64 << 10  # of a block: two blocks keep 128 KB on their way to a multiprocessor
_RINGS = (8, 4, 2)  # slices of a warp
_SLICES, _SLICE_BYTES = (32, 16), 8 << 10  # keys that are loaded at once, and computed
_FOLDS = (128, 64)  # columns of v that are folded at once
_BLOCKS_PER_PROCESSOR = 2
_SIMT_BLOCK, _SIMT_HEADS, _SIMT_COLUMNS = 256, 8, 256


def paged_append(p: Params) -> LaunchConfig:
    """The rule of `paged_append`: a block a row."""
    length, heads, head_dim = as_int(p, "length"), as_int(p, "heads"), as_int(p, "head_dim")
    if length * heads * head_dim == 0:
        return LaunchConfig(())
    each = 4 if p["dtype"] == 0 else 8
    strides = (head_dim, *as_ints(p, "x_strides"), *as_ints(p, "y_strides"))
    if any(stride % each for stride in strides):
        each = 1
    block = min(256, max(64, blocks(heads * head_dim // each, 32) * 32))
    launch = Launch((length, 1, 1), (block, 1, 1))
    defines = {"BLOCK": block, "EACH": each, "ARGUMENTS": 6}
    return LaunchConfig((launch,), failure=True, defines=defines)


def paged_rope_append(p: Params) -> LaunchConfig:
    """The rule of `paged_rope_append`: a block a row."""
    length, heads, kv_heads = as_int(p, "length"), as_int(p, "heads"), as_int(p, "kv_heads")
    head_dim, v_dim = as_int(p, "head_dim"), as_int(p, "v_dim")
    if length == 0:
        return LaunchConfig(())
    names = ("q", "k", "v", "y", "k_pool", "v_pool", "cs")
    strides = [s for name in names for s in as_ints(p, f"{name}_strides")]
    whole = head_dim == p["rotary_dim"] and head_dim % 16 == 0 and v_dim % 16 == 0
    eights = whole and p["dtype"] in _HALVES and not p["interleaved"]
    each = 8 if eights and not any(stride % 8 for stride in strides) else 1
    units = (heads + kv_heads) * blocks(head_dim, 2) + kv_heads * blocks(v_dim, 2)
    block = min(256, max(64, blocks(units // each, 32) * 32))
    launch = Launch((length, 1, 1), (block, 1, 1))
    defines = {"BLOCK": block, "EACH": each, "ARGUMENTS": 12}
    return LaunchConfig((launch,), failure=True, defines=defines)


def paged_attention(p: Params) -> LaunchConfig:
    """The rule of `paged_attention`: a block a row and key/value head, or several."""
    length, heads, kv_heads = as_int(p, "length"), as_int(p, "heads"), as_int(p, "kv_heads")
    head_dim, v_dim = as_int(p, "head_dim"), as_int(p, "v_dim")
    if length * heads * v_dim == 0:
        return LaunchConfig(())
    strides = (head_dim, v_dim, *(s for n in "qkv" for s in as_ints(p, f"{n}_strides")))
    fits = 0 < head_dim <= _LONGEST_HEAD and v_dim <= _LONGEST_HEAD
    fits = fits and as_int(p, "table_length") * as_int(p, "page_tokens") <= _MOST_KEYS
    if fits and on_tensor_cores(p["dtype"], p["dtype"]) and not any(s % 8 for s in strides):
        return _tiles(p)
    group = heads // kv_heads
    each, columns = min(group, _SIMT_HEADS), min(v_dim, _SIMT_COLUMNS)
    grid = (length, kv_heads * blocks(group, each), blocks(v_dim, columns))
    defines = {
        "PATH": KernelPath.TILE_SIMT,
        "BLOCK": _SIMT_BLOCK,
        "HEADS": each,
        "COLUMNS": columns,
        "ARGUMENTS": 8,
    }
    launch = Launch(grid, (_SIMT_BLOCK, 1, 1))
    return LaunchConfig((launch,), failure=True, defines=defines)


def _tiles(p: Params) -> LaunchConfig:
    """Returns tiles on the tensor cores: attention/paged_mma.h."""
    length, kv_heads = as_int(p, "length"), as_int(p, "kv_heads")
    head_dim, v_dim, window = as_int(p, "head_dim"), as_int(p, "v_dim"), as_int(p, "window")
    group = as_int(p, "heads") // kv_heads
    tiles, rows = blocks(group, 16), min(group, 16)
    d_line, v_line = blocks(head_dim, 64) * 128, blocks(v_dim, 64) * 128
    slice_keys = next(k for k in _SLICES if k * max(d_line, v_line) <= _SLICE_BYTES)
    slot = slice_keys * max(d_line, v_line)
    pairs = length * kv_heads * tiles
    ring = next((r for r in _RINGS if _WARPS * r * slot <= _RING_BYTES), _RINGS[-1])
    at = 16 * d_line + _WARPS * ring * slot
    columns = blocks(v_dim, 16) * 16

    def shared_by(fold: int) -> int:
        return at + _WARPS * rows * (fold + 8) * 4

    folds = [min(fold, columns) for fold in _FOLDS]
    fold = next((f for f in folds if shared_by(f) <= MOST_SHARED - 2048), folds[-1])
    chunks = blocks(as_int(p, "table_length") * as_int(p, "page_tokens"), _CHUNK)
    if window > 0:
        chunks = min(chunks, blocks(window, _CHUNK) + 1)
    at_once = _BLOCKS_PER_PROCESSOR * PROCESSORS  # blocks; later ones have nothing to wait for
    split = max(1, min(chunks, at_once // pairs))
    scratch = 4 * pairs * chunks * rows * (v_dim + 2) if split > 1 else 0
    defines = {
        "PATH": KernelPath.TILE_MMA,
        "BLOCK": 32 * _WARPS,
        "SLICE": slice_keys,
        "RING": ring,
        "SPLIT": split,
        "MOST_CHUNKS": chunks,
        "EARLY": int(pairs <= at_once),
        "FOLD_COLUMNS": fold,
        "SHARED": shared_by(fold),
        "ARGUMENTS": 8 + (split > 1),
    }
    launch = Launch((length, kv_heads * tiles, split), (32 * _WARPS, 1, 1), shared_by(fold))
    return LaunchConfig((launch,), scratch, failure=True, defines=defines)


RULES: Mapping[str, Rule] = {
    "paged_append": paged_append,
    "paged_rope_append": paged_rope_append,
    "paged_attention": paged_attention,
}
