"""Launch configuration of grouped matmul: the tiles of `matmul`, dealt out when the kernel runs."""

from __future__ import annotations

from dataclasses import replace

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import matmul
from npusim.codegen.launch_config import LaunchConfig, Rule, as_int, as_ints


def grouped_matmul(p: Params) -> LaunchConfig:
    """The rule of `grouped_matmul`: as many blocks as any offsets can need.

    Every group, and the rows after all of them, may end within a tile; none is empty that has one.
    """
    m, groups = as_int(p, "m"), as_ints(p, "batch")[5]
    each = -(-m // max(groups, 1))  # rows of a group, if they are dealt evenly
    one = {**p, "m": min(m, max(each, 1)), "batch": (1, 1, 1, 1, 1, max(groups, 1))}
    config = matmul(one if m else p)
    if not config.launches:
        return config
    (launch,) = config.launches
    rows = config.defines["TILE_ROWS"]
    tiles = m // rows + min(groups + 1, m)
    launch = replace(launch, grid=(tiles, *launch.grid[1:]))
    return replace(config, launches=(launch,), defines={**config.defines, "ARGUMENTS": 4})


RULES: dict[str, Rule] = {"grouped_matmul": grouped_matmul}
