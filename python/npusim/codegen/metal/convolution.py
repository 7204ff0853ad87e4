"""Launch configurations of convolutions."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import LaunchConfig, Rule, as_int, as_ints, blocks, line
from npusim.codegen.metal.matmul import (
    epilogue_places,
    staged_dtype,
    tile,
    tiles,
)

_PANEL = 16  # columns that packed weights are padded to


def conv(p: Params) -> LaunchConfig:
    """The rule of `conv`: a product of output positions by channels for each group."""
    groups = as_int(p, "groups")
    positions = as_int(p, "batch") * prod(as_ints(p, "out_size"))
    columns = as_int(p, "out_channels") // groups
    if positions * columns == 0:
        return LaunchConfig(())
    staged = staged_dtype(as_int(p, "x_dtype"), as_int(p, "w_dtype"))
    shape = tile(positions, columns, staged, batch=groups)
    defines = {
        **shape,
        **epilogue_places(p, 2),
        "ROW_TILES": blocks(positions, shape["TILE_ROWS"]),
        "COLUMN_TILES": blocks(columns, shape["TILE_COLUMNS"]),
    }
    return tiles(defines["ROW_TILES"] * defines["COLUMN_TILES"] * groups, defines)


def conv_depthwise(p: Params) -> LaunchConfig:
    """The rule of `conv_depthwise`: a thread an element of y."""
    elements = as_int(p, "batch") * prod(as_ints(p, "out_size")) * as_int(p, "out_channels")
    return line(elements, **epilogue_places(p, 2))


def pack_b(p: Params) -> LaunchConfig:
    """The rule of `pack_b`: a thread an element."""
    columns = blocks(as_int(p, "n"), _PANEL) * _PANEL
    return line(as_int(p, "groups") * columns * as_int(p, "taps") * as_int(p, "channels"))


RULES: Mapping[str, Rule] = {"conv": conv, "conv_depthwise": conv_depthwise, "pack_b": pack_b}
