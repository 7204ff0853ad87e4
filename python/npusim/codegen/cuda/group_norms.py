"""Launch configurations of group norms of many positions, channels last.

A tile of channels holds whole groups and whole packs. Blocks share a tile's positions, once for the
moments and once for the results: so few groups fill the device, and rows are read in whole sectors.
"""

from __future__ import annotations

from npusim.abi.kernels import Params
from npusim.abi.scalar_cost import activation_multiply_adds
from npusim.codegen.cuda.matmul_rules import GPU, PROCESSORS
from npusim.codegen.launch_config import Launch, LaunchConfig, as_int, as_ints, blocks
from npusim.ir.types import CODE_SIZES

_BLOCK = 256
_BLOCKS = 3  # of a processor, that a launch should have
_UNROLL = 4  # positions that a thread loads at once
_LINE = 128  # bytes of a position that a block should read, at least
_MOMENTS = 8  # bytes of a mean and squares
_RESIDENT = PROCESSORS * GPU.processors.threads


def group_norm(p: Params) -> LaunchConfig | None:
    """Returns the configuration of blocks that share groups; None where one block a group is as
    good, or channels do not lie in packs."""
    channels, spatial, groups = (as_int(p, n) for n in ("channels", "spatial", "groups"))
    if as_int(p, "batch") * groups == 0 or channels // groups * spatial < GPU.rows.split_elements:
        return None
    pack = _pack(p)
    packs = 0 if pack is None else _tile(channels, groups, pack, CODE_SIZES[as_int(p, "x_dtype")])
    if pack is None or packs == 0:
        return None
    rows, tiles = _BLOCK // packs, channels // (packs * pack)
    items = as_int(p, "batch") * tiles
    most = blocks(spatial, rows * _UNROLL)
    shared = min(max(1, blocks(_BLOCKS * PROCESSORS, items)), most)
    parts = blocks(spatial, blocks(spatial, shared))  # none of them is empty
    launches = tuple(
        Launch((items * parts, 1, 1), (_BLOCK, 1, 1), entry=entry)
        for entry in ("npusim_kernel", "npusim_write")
    )
    defines = {
        "BLOCK": _BLOCK,
        "VECTORS": as_int(p, "has_weight") + as_int(p, "has_bias"),
        "PACK": pack,
        "PACKS": packs,
        "ROWS": rows,
        "PARTS": parts,
        "WRITERS": parts,
    }
    scratch = as_int(p, "batch") * groups * parts * _MOMENTS
    return LaunchConfig(launches, scratch=scratch, defines=defines)


def busy_microseconds(p: Params, config: LaunchConfig) -> float:
    """Returns about how long the blocks of a configuration take, by what was measured of them.

    A block that has a group walks it three times. Where blocks share groups, those of a processor
    take turns; a few threads of each put its moments together, and in the second launch those of
    all parts, one after the other.
    """
    fit, defines = GPU.group_norms, config.defines
    channels, groups = as_int(p, "channels"), as_int(p, "groups")
    each, spatial = channels // groups, as_int(p, "spatial")
    rounds = max(1, blocks(config.launches[0].grid[0] * defines["BLOCK"], _RESIDENT))
    if "PARTS" not in defines:
        return rounds * 3 * blocks(each * spatial, defines["BLOCK"]) * fit.step_us
    pack, parts, rows = (defines[name] for name in ("PACK", "PARTS", "ROWS"))
    tile_groups = pack * defines["PACKS"] // each
    lanes = 32
    while lanes > 1 and lanes * tile_groups > _BLOCK:
        lanes //= 2
    turns = 2 * blocks(tile_groups, _BLOCK // lanes)  # once for means, once for squares
    passes = rounds * blocks(blocks(spatial, parts), rows * _UNROLL)
    finished = pack * _UNROLL * activation_multiply_adds(as_int(p, "act"))
    finish = finished * _BLOCK * PROCESSORS / GPU.processors.instructions_per_us
    moments = turns * (
        blocks(rows * each, lanes) * fit.fold_us + blocks(parts, lanes) * fit.part_us
    )
    return fit.second_us + passes * (fit.pass_us + pack * fit.number_us + finish) + moments


def _pack(p: Params) -> int | None:
    """Returns how many neighbouring channels move at once; None: they do not lie side by side."""
    (x_batch, x_channel, x_row), (y_batch, y_channel, y_row) = (
        as_ints(p, side) for side in ("x_strides", "y_strides")
    )
    sizes = [CODE_SIZES[as_int(p, side)] for side in ("x_dtype", "y_dtype")]
    if (x_channel, y_channel) != (1, 1) or max(sizes) > 4 or as_int(p, "spatial") == 1:
        return None
    pack = 16 // max(sizes)
    while any(n % pack for n in (as_int(p, "channels"), x_batch, x_row, y_batch, y_row)):
        pack //= 2
    return pack


def _tile(channels: int, groups: int, pack: int, size: int) -> int:
    """Returns the packs of a tile: the fewest that fill a line of memory, else the most."""
    each = channels // groups
    found = [
        packs
        for packs in range(1, min(_BLOCK, channels // pack) + 1)
        if packs * pack % each == 0 and channels % (packs * pack) == 0
    ]
    wide = [packs for packs in found if packs * pack * size >= _LINE]
    return min(wide) if wide else max(found, default=0)
