"""Launch configurations of products of 2 to 64 rows with codes (`quantization/codes_rows.h`).

K is shared by the warps of a block as in the product of one row, whatever the number of rows, so
that a row's sums have the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.abi.kernels import Params
from npusim.abi.quantization import BYTE_CODES
from npusim.codegen.cuda.matmul_rules import GPU, MOST_SHARED, PROCESSORS, on_tensor_cores
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig, as_int, blocks

MOST_ROWS = 64
_EIGHT = 8  # rows of x, the columns of the tensor core's smallest product
_STAGE_ROW_BYTES = 64
_ASYMMETRIC = 3  # a format of codes
_TILES = (1, 2, 3, 4)  # of 16 rows of W, of a block
_MOST_STAGES = 6
_FIT = GPU.code_rows


@dataclass(frozen=True, slots=True)
class RowTile:
    """What a block computes.

    Attributes:
        tiles: of 16 rows of W.
        tokens: eights of rows of x.
    """

    tiles: int
    tokens: int


def row_tiles(p: Params, warps: int) -> list[RowTile]:
    """Returns tiles whose sums fit in registers, those with the fewest bytes first."""
    eights = blocks(min(as_int(p, "m"), MOST_ROWS), _EIGHT)
    most = (_FIT.byte_sums if p["format"] in BYTE_CODES else _FIT.nibble_sums) * 8 // warps
    found = [
        RowTile(tiles, blocks(eights, groups))
        for groups in range(1, eights + 1)
        for tiles in _TILES
        if tiles * blocks(eights, groups) <= most
    ]
    return sorted(dict.fromkeys(found), key=lambda tile: _microseconds(p, tile))


def _microseconds(p: Params, tile: RowTile) -> float:
    k = blocks(as_int(p, "k"), 128) * 128
    codes = k if p["format"] in BYTE_CODES else k // 2
    grid = _grid(p, tile)
    waves = blocks(grid, PROCESSORS) if grid < 4 * PROCESSORS else grid / PROCESSORS
    read = tile.tokens * _EIGHT * 2 * k + tile.tiles * 16 * codes
    return waves * (_FIT.begin_us + read / _FIT.block_bytes_per_us)


def _grid(p: Params, tile: RowTile) -> int:
    parts = 2 if p["gated"] else 1
    columns = 16 // parts * tile.tiles
    return blocks(as_int(p, "n"), columns) * blocks(as_int(p, "m"), _EIGHT * tile.tokens)


def code_rows(
    p: Params,
    arguments: int,
    split: tuple[int, int] | None = None,
    tile: RowTile | None = None,
    most_rows: int = MOST_ROWS,
) -> LaunchConfig | None:
    """Returns the launch of a product of few rows with codes; None where it cannot be computed so.

    Args:
        split: warps of a block, and bytes of a row that they take turns at.
        tile: by default the one of the least time that there is room for.
        most_rows: of which others are not computed so; more are, in blocks of MOST_ROWS.
    """
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    if not 1 <= m <= most_rows or 0 in (n, k) or k % 8 or split is None:
        return None
    if not on_tensor_cores(p["x_dtype"], p["x_dtype"]):
        return None
    tiles = [tile] if tile else row_tiles(p, split[0])
    made = (_launch(p, arguments, split, tile) for tile in tiles)
    return next((config for config in made if config is not None), None)


def _launch(
    p: Params, arguments: int, split: tuple[int, int], tile: RowTile
) -> LaunchConfig | None:
    """Returns the launch with a tile; None where shared memory has no room for two stages."""
    warps, row_bytes = split
    side = 0
    if p["format"] not in BYTE_CODES:
        groups = 128 // as_int(p, "group")
        side = max(4, 2 * groups) + 4 * (p["format"] == _ASYMMETRIC)
    stage = warps * tile.tiles * 16 * (_STAGE_ROW_BYTES + side)
    sums = warps * tile.tokens * _EIGHT * (tile.tiles * 16 + 4) * 4
    stages = min(_MOST_STAGES, MOST_SHARED // stage)
    if stages < 2 or sums > MOST_SHARED:
        return None
    shared = max(stages * stage, sums)
    defines = {
        "PATH": KernelPath.CODES_ROWS,
        "BLOCK": 32 * warps,
        "TILES": tile.tiles,
        "TOKENS": tile.tokens,
        "STAGES": stages,
        "SHARED": shared,
        "ROW_BYTES": row_bytes,
        "BLOCKS_PER_SM": 2 if tile.tiles * tile.tokens * warps <= 32 else 1,
        "ARGUMENTS": arguments,
    }
    launch = Launch((_grid(p, tile), 1, 1), (32 * warps, 1, 1), shared)
    return LaunchConfig((launch,), defines=defines)
