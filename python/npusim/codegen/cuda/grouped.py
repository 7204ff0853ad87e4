"""Geometry of products of groups of rows: the tiles of `matmul`, dealt out when the kernel runs."""

from __future__ import annotations

from dataclasses import replace

from npusim.abi.kernels import Params
from npusim.codegen.cuda.geometry import Geometry, Rule
from npusim.codegen.cuda.launch_products import as_int, as_ints, matmul


def grouped_matmul(p: Params) -> Geometry:
    """The rule of `grouped_matmul`: as many blocks as any offsets can need.

    Every group, and the rows behind all of them, may end within a tile; none is empty that has one.
    """
    m, groups = as_int(p, "m"), as_ints(p, "batch")[5]
    each = -(-m // max(groups, 1))  # rows of a group, if they are dealt evenly
    one = {**p, "m": min(m, max(each, 1)), "batch": (1, 1, 1, 1, 1, max(groups, 1))}
    geometry = matmul(one if m else p)
    if not geometry.launches:
        return geometry
    (launch,) = geometry.launches
    rows = geometry.defines["TILE_ROWS"]
    tiles = m // rows + min(groups + 1, m)
    launch = replace(launch, grid=(tiles, *launch.grid[1:]))
    return replace(geometry, launches=(launch,), defines={**geometry.defines, "ARGUMENTS": 4})


RULES: dict[str, Rule] = {"grouped_matmul": grouped_matmul}
