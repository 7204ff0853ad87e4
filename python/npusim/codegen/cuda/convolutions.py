"""Launch configurations of convolutions: which path of `conv.cu` computes one, in which tiles.

Tiles on the tensor cores are chosen by what they were measured to take. Where the tiles of y do not
fill the device, K is cut into slices, one for each block of a cluster, which add up their sums
through shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod

from npusim.abi.kernels import PHASED, Params
from npusim.codegen.cuda.matmul_rules import (
    GPU,
    PROCESSORS,
    epilogue_operands,
    on_tensor_cores,
    tiled,
)
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.cuda.strips import best_strip, conv_depthwise, strip_launch
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, as_int, as_ints, blocks, line
from npusim.targets import measured

_DEPTH = 64  # of K, that a tile passes at once
_MOST_SHARED = 99 << 10  # bytes of shared memory that a block may have on every device
_ALL_SHARED = GPU.processors.shared_bytes
_SPLITS = (1, 2, 4, 8)  # a cluster has at most eight blocks


@dataclass(frozen=True, slots=True)
class ConvTile(measured.ConvTile):
    """A tile as launches have it."""

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n

    def stages_for(self, k: int, split: int) -> int:
        """Stages of the pipeline: no more than blocks of K, but two to be filled in turn."""
        return min(self.stages, max(blocks(blocks(k, _DEPTH), split), 1 + (split > 1)))

    def shared(self, k: int, split: int) -> int:
        """Bytes of shared memory: the pipeline, the windows, and a cluster's sums."""
        pipeline = self.stages_for(k, split) * (self.rows + self.columns) * _DEPTH * 2
        sums = self.rows * (self.columns + 8) * 4 if split > 1 else 0
        return pipeline + self.rows * 8 + sums

    @property
    def residual(self) -> int:
        """Bytes of shared memory in which a residual of 16 bits waits."""
        return self.rows * self.columns * 2


# Fitted to what benchmarks/cuda_convolutions.py measures.
_FIT = GPU.conv
TILES = tuple(ConvTile(**asdict(tile)) for tile in _FIT.tiles)

_PATCH_THREADS, _LANES = 128, 32
_PATCH_HEIGHT, _PATCH_WIDTH, _PATCH_COLUMNS = 8, 16, 64  # of a tile of few channels


def conv(p: Params) -> LaunchConfig:
    """The rule of `conv`: a product of output positions by channels for each group."""
    groups = as_int(p, "groups")
    positions = as_int(p, "batch") * prod(as_ints(p, "out_size"))
    columns, channels = as_int(p, "out_channels") // groups, as_int(p, "in_channels") // groups
    if positions * columns == 0:
        return LaunchConfig(())
    tensor_cores = on_tensor_cores(p["x_dtype"], p["w_dtype"])
    if tensor_cores and channels % 8 == 0 and as_ints(p, "x_strides")[1] == 1:
        k, residual = _depth(p, channels), bool(p["residual"])
        chosen = best_tile(positions, columns, k, groups=_parts(p), residual=residual)
        return conv_tiles(p, *chosen)
    if in_patches(p):
        return _patches(p, columns, _patch_shared(p, channels))
    few = groups > 1 and not p["transposed"] and as_ints(p, "x_strides")[1] == 1
    strip = best_strip(p) if few else None
    if strip is not None:
        return strip_launch(p, strip)
    return tiled(
        positions,
        columns,
        _depth(p, channels),
        parts=1,
        tensor_cores=False,
        arguments=2 + epilogue_operands(p),
        batch=_parts(p),
    )


def conv_tiles(p: Params, tile: ConvTile, split: int) -> LaunchConfig:
    """Returns the config of tiles of one shape, K cut into `split` slices."""
    groups = as_int(p, "groups")
    positions = as_int(p, "batch") * prod(as_ints(p, "out_size"))
    tiles = blocks(positions, tile.rows) * blocks(as_int(p, "out_channels") // groups, tile.columns)
    k = _depth(p, as_int(p, "in_channels") // groups)
    x_strides = as_ints(p, "x_strides")
    stages, shared = tile.stages_for(k, split), tile.shared(k, split) + _vectors(p, tile.columns)
    if shared > _MOST_SHARED:
        stages, shared = stages - 1, shared - (tile.rows + tile.columns) * _DEPTH * 2
    defines = {
        "PATH": KernelPath.TILE_MMA,
        "BLOCK": tile.threads,
        "SPLIT": split,
        "TILE_ROWS": tile.rows,
        "TILE_COLUMNS": tile.columns,
        "WARPS_M": tile.warps_m,
        "WARPS_N": tile.warps_n,
        "STAGES": stages,
        "OVERLAPS_MMA": int(tile.lags),
        "WIDE": int(all(s % 8 == 0 for s in (x_strides[0], *x_strides[2:]))),
        "WIDE_Y": _wide_result(p),
        "ARGUMENTS": 2 + epilogue_operands(p),
    }
    waits = _residual_can_wait(p) and split == 1 and shared + tile.residual <= _MOST_SHARED
    defines["RESIDUAL_IN_SHARED"] = int(waits)
    shared += waits * tile.residual
    launch = Launch((tiles, 1, _parts(p) * split), (tile.threads, 1, 1), shared)
    return LaunchConfig((launch,), defines=defines)


def best_tile(
    positions: int, columns: int, k: int, *, groups: int = 1, residual: bool = False
) -> tuple[ConvTile, int]:
    """Returns the shape of tiles and the number of slices that take least."""
    return _best(positions, columns, k, groups, residual)[1:]


def tile_microseconds(
    positions: int, columns: int, k: int, *, groups: int = 1, residual: bool = False
) -> float:
    """Returns about how long these tiles take, by what was measured of them."""
    return _best(positions, columns, k, groups, residual)[0]


def _best(
    positions: int, columns: int, k: int, groups: int, residual: bool
) -> tuple[float, ConvTile, int]:
    choices = []
    for index, tile in enumerate(TILES):
        tiles = blocks(positions, tile.rows) * blocks(columns, tile.columns) * groups
        for split in _SPLITS:
            fits = split <= blocks(k, _DEPTH) and tile.shared(k, split) <= _MOST_SHARED
            if split == 1 or fits:
                choices.append((_time(tile, split, tiles, k, residual), index, split))
    time, index, split = min(choices)
    return time, TILES[index], split


def _time(tile: ConvTile, split: int, tiles: int, k: int, residual: bool) -> float:
    """Returns about how many microseconds a convolution's tiles take, cut into slices of K.

    Each wave of clusters exchanges its sums.
    """
    tiles *= split
    waves = blocks(tiles, PROCESSORS) if tiles < 4 * PROCESSORS else tiles / PROCESSORS
    step = tile.alone_step_us if waves == 1 else tile.step_us
    ends = tile.ends_us * (1 + _FIT.residual_ends_share * residual)
    steps = blocks(blocks(k, _DEPTH), split)
    return waves * (steps * step + ends / split + _FIT.exchange_us * (split > 1))


def _depth(p: Params, channels: int) -> int:
    return prod(as_ints(p, "kernel")) * channels


def _parts(p: Params) -> int:
    """Groups of channels, or the phases of a transposed convolution that are computed at once."""
    return prod(as_ints(p, "stride")) if p["transposed"] == PHASED else as_int(p, "groups")


def _wide_result(p: Params) -> int:
    """Tells whether eight columns of y, and of the residual, lie on 16 bytes."""
    strides = [as_ints(p, "y_strides")]
    if p["residual"]:
        strides.append(as_ints(p, "r_strides"))
    groups = as_int(p, "groups")
    even = groups == 1 or as_int(p, "out_channels") // groups % 8 == 0
    return int(even and all(v % 8 == 0 for s in strides for v in (s[0], *s[2:])))


def _residual_can_wait(p: Params) -> bool:
    """Tells whether a residual moves in whole chunks of 16 bytes."""
    columns = as_int(p, "out_channels") // as_int(p, "groups")
    is_16_bit = on_tensor_cores(p["r_dtype"], p["y_dtype"])
    return bool(p["residual"]) and is_16_bit and columns % 8 == 0 and bool(_wide_result(p))


def _patches(p: Params, columns: int, shared: int) -> LaunchConfig:
    _, height, width = as_ints(p, "out_size")
    tiles = _patch_tiles(p)
    column_tiles = blocks(columns, _PATCH_COLUMNS)
    # Where a place in one row or column of tiles is a constant, what follows from it stays in
    # registers, more than four blocks have.
    narrow = height <= _PATCH_HEIGHT or width <= _PATCH_WIDTH
    most = _FIT.narrow_patch_blocks if narrow else _FIT.patch_blocks
    blocks_per_sm = max(1, min(most, _ALL_SHARED // shared))
    defines = {
        "PATH": KernelPath.PATCH,
        "BLOCK": _PATCH_THREADS,
        "BLOCKS_PER_SM": blocks_per_sm,
        "SPLIT": 1,
        "WIDE_Y": _wide_result(p),
        "ARGUMENTS": 2 + epilogue_operands(p),
    }
    grid = (min(tiles, max(1, blocks_per_sm * PROCESSORS // column_tiles)), column_tiles, 1)
    return LaunchConfig((Launch(grid, (_PATCH_THREADS, 1, 1), shared),), defines=defines)


def in_patches(p: Params) -> bool:
    """Tells whether blocks gather patches: of few channels, and windows that fit beside weights."""
    channels = as_int(p, "in_channels") // max(1, as_int(p, "groups"))
    few = channels % 8 != 0 and on_tensor_cores(p["x_dtype"], p["w_dtype"])
    return few and _patch_shared(p, channels) <= _MOST_SHARED


def patch_microseconds(p: Params) -> float:
    """Returns about how long convolutions of few channels take, by what was measured of them.

    A block fetches its weights once. Of each of its tiles it waits for lines of the patch, so many
    at once, and it loads, multiplies and stores while the other blocks of its processor wait.
    """
    channels, fit = as_int(p, "in_channels"), _FIT.patches
    config = _patches(p, as_int(p, "out_channels"), _patch_shared(p, channels))
    across, column_tiles, _ = config.launches[0].grid
    beside = min(config.defines["BLOCKS_PER_SM"], blocks(across * column_tiles, PROCESSORS))
    taps, lines, high = _patch_sizes(p, channels)
    deep, wide = as_ints(p, "kernel")[0], (_PATCH_WIDTH - 1) * as_ints(p, "stride")[2] + taps
    steps, loaded = blocks(lines * taps, 16), channels * deep * high
    pieces, warps = blocks(wide, _LANES), _PATCH_THREADS // _LANES
    at_once = max(1, min(8, 12 // pieces, blocks(loaded, warps)))
    tiles = blocks(_patch_tiles(p), across)
    waits = tiles * blocks(loaded, warps * at_once) * fit.wait_us
    loads = pieces * blocks(loaded, warps) * fit.load_us
    busy = tiles * beside * (loads + steps * fit.step_us + fit.tile_us)
    return steps * fit.weights_us + waits + busy


def _patch_tiles(p: Params) -> int:
    deep, height, width = as_ints(p, "out_size")
    tiles = as_int(p, "batch") * deep
    return tiles * blocks(height, _PATCH_HEIGHT) * blocks(width, _PATCH_WIDTH)


def _patch_sizes(p: Params, channels: int) -> tuple[int, int, int]:
    """Returns the taps of a line as they are filled up, the lines of K, the rows of a patch."""
    deep, high, wide = as_ints(p, "kernel")
    taps = next(t for t in (2, 4, 8, 16) if t >= wide)
    rows = (_PATCH_HEIGHT - 1) * as_ints(p, "stride")[1] + (high - 1) * as_ints(p, "dilation")[1]
    return taps, channels * deep * high, rows + 1


def _patch_shared(p: Params, channels: int) -> int:
    """Bytes that conv/patch_conv.h takes; more than there are where it does not apply."""
    deep, _, wide = as_ints(p, "kernel")
    small = max(map(abs, as_ints(p, "x_strides"))) < 2**31
    if p["groups"] != 1 or p["transposed"] or as_ints(p, "dilation")[2] != 1 or wide > 16:
        return _ALL_SHARED
    if not small or min(as_ints(p, "x_strides")) < 0:
        return _ALL_SHARED
    taps, lines, patch_height = _patch_sizes(p, channels)
    k = blocks(lines * taps, 16) * 16
    stride_x = as_ints(p, "stride")[2]
    patch = channels * deep * patch_height * ((_PATCH_WIDTH - 1) * stride_x + taps)
    return k * _PATCH_COLUMNS * 2 + _vectors(p, _PATCH_COLUMNS) + patch * 2


def _vectors(p: Params, columns: int) -> int:
    """Bytes of shared memory in which bias, factors and offsets wait; a bias alone does not."""
    count = as_int(p, "has_bias")
    return count * columns * 4 if count > 1 else 0


def pack_b(p: Params) -> LaunchConfig:
    """The rule of `pack_b`: a thread an element."""
    panels = blocks(as_int(p, "n"), 16) * 16
    elements = as_int(p, "groups") * panels * as_int(p, "taps") * as_int(p, "channels")
    return line(elements, ARGUMENTS=2)


RULES: Mapping[str, Rule] = {"conv": conv, "conv_depthwise": conv_depthwise, "pack_b": pack_b}
