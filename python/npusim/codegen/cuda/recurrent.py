"""Launch configurations of recurrences, and of their steps."""

from __future__ import annotations

from collections.abc import Mapping

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import GPU, PROCESSORS, on_tensor_cores
from npusim.codegen.cuda.paths import KernelPath
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


def recurrence(p: Params) -> LaunchConfig:
    """The rule of `recurrence`: a warp for eight units, and as few rows a block as fill the device.

    The tensor cores take eight rows at once, of which four leave half the gates to each lane. Of
    float32 a row more is as many multiply-adds more.
    """
    m, units, dtype = as_int(p, "m"), as_int(p, "units"), p["dtype"]
    warps = blocks(units, _UNITS_A_WARP)
    block = warps * _WARP
    cores = on_tensor_cores(dtype, dtype)
    rows, wide = _FEWEST_MMA_ROWS if cores else 1, blocks(units, 4) * 4
    while rows < _MMA_ROWS and blocks(m, rows) > PROCESSORS:
        rows *= 2
    row = 2 * (blocks(units, 16) * 16 + 8) if cores else 4 * wide
    states = 2 * (_MMA_ROWS if cores else rows) * row
    shared = states + (0 if cores else 4 * wide * block)
    arguments = 4 + (as_int(p, "cell") == _LSTM) * 2 + as_int(p, "has_bias")
    return LaunchConfig(
        (Launch((blocks(m, rows), 1, 1), (block, 1, 1), shared),),
        defines={
            "BLOCK": block,
            "ROWS": rows,
            "PATH": KernelPath.TILE_MMA if cores else KernelPath.TILE_SIMT,
            "ARGUMENTS": arguments,
        },
    )


_UNITS_A_WARP, _FEWEST_MMA_ROWS, _MMA_ROWS, _LSTM = 8, 4, 8, 2
_OPERANDS = (3, 4, 5)  # that a cell has whatever is added, by its number

RULES: Mapping[str, Rule] = {"recurrence": recurrence, "recurrent_step": recurrent_step}
