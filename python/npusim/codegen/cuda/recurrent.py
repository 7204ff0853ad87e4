"""Launch configurations of the steps of recurrences."""

from __future__ import annotations

from collections.abc import Mapping

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import GPU
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, as_int, blocks

_BLOCK = 64
_EACH = 8  # elements of K that a lane has at once
_FEWEST_LANES = 4  # of a unit: as many as there may be rows, each of which has a lane that ends it
_WARP = 32


def recurrent_step(p: Params) -> LaunchConfig:
    """The rule of `recurrent_step`: as many lanes a unit as a row of W has chunks, up to a warp.

    Rows of x that the lanes multiply at once are bounded by registers and by the fewest lanes. They
    are as few as give no more blocks than are worth it: a row each, where a step is small.
    """
    m, units, cell = as_int(p, "m"), as_int(p, "units"), as_int(p, "cell")
    most = min(m, GPU.recurrent.block_rows)
    lanes = _FEWEST_LANES
    while lanes < _WARP and (lanes < most or lanes * _EACH < as_int(p, "k")):
        lanes *= 2
    across, rows = blocks(units * lanes, _BLOCK), 1
    while rows < most and across * blocks(m, rows) > GPU.recurrent.blocks:
        rows = min(most, 2 * rows)
    grid = (across, blocks(m, rows), 1)
    arguments = _OPERANDS[cell] + as_int(p, "has_bias") + as_int(p, "has_addend")
    return LaunchConfig(
        (Launch(grid, (_BLOCK, 1, 1)),),
        defines={"BLOCK": _BLOCK, "LANES": lanes, "ROWS": rows, "ARGUMENTS": arguments},
    )


_OPERANDS = (3, 4, 5)  # that a cell has whatever is added, by its number

RULES: Mapping[str, Rule] = {"recurrent_step": recurrent_step}
