"""Launch configurations of the steps of recurrences."""

from __future__ import annotations

from collections.abc import Mapping

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, as_int, blocks

_BLOCK = 64
_EACH = 8  # elements of K that a lane has at once
_MOST_ROWS = 4  # of x that the lanes of a unit multiply, by which registers are bounded
_WARP = 32


def lstm_step(p: Params) -> LaunchConfig:
    """The rule of `lstm_step`: as many lanes a unit as its rows of W have chunks, up to a warp."""
    m, units = as_int(p, "m"), as_int(p, "units")
    rows = min(m, _MOST_ROWS)
    lanes = _MOST_ROWS
    while lanes < _WARP and lanes * _EACH < as_int(p, "k"):
        lanes *= 2
    grid = (blocks(units * lanes, _BLOCK), blocks(m, rows), 1)
    arguments = 5 + as_int(p, "has_bias") + as_int(p, "has_addend")
    return LaunchConfig(
        (Launch(grid, (_BLOCK, 1, 1)),),
        defines={"BLOCK": _BLOCK, "LANES": lanes, "ROWS": rows, "ARGUMENTS": arguments},
    )


RULES: Mapping[str, Rule] = {"lstm_step": lstm_step}
