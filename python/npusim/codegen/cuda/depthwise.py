"""Launch configurations of depthwise convolutions: how large a strip of y a thread has.

A strip is some neighbouring channels of positions that follow one another in a row: what is read of
a row of x serves all of them. Larger strips read less, smaller ones fill the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import GPU, epilogue_operands
from npusim.codegen.launch_config import Launch, LaunchConfig, as_int, as_ints, blocks
from npusim.ir.types import DTYPES

_BLOCK = 256
_SMALL_BLOCK = 128  # where few threads are to spread over all processors
_TAPS = 8  # of a row, whose weights wait in registers
_SUMS = 32  # of a thread
_COLUMNS = 22  # of x, that a thread reads of a row
_FILLING = GPU.processors.count * 512  # threads that fill the device

_SIZES = {code: size for code, size, _ in DTYPES.values()}


@dataclass(frozen=True, slots=True)
class Strip:
    """What a thread computes: `channels` of `positions` that follow one another in a row."""

    channels: int
    positions: int

    def threads(self, p: Params) -> int:
        """Returns how many have one."""
        deep, high, wide = as_ints(p, "out_size")
        strips = as_int(p, "batch") * deep * high * blocks(wide, self.positions)
        return strips * (as_int(p, "out_channels") // self.channels)

    def columns(self, p: Params) -> int:
        """Returns how many columns of x a thread's taps reach over, a part of a row's at once."""
        taps = _taps_at_once(p)
        return (
            (self.positions - 1) * as_ints(p, "stride")[2]
            + (taps - 1) * as_ints(p, "dilation")[2]
            + 1
        )

    def instructions(self, p: Params) -> float:
        """Returns about how many a thread takes: loads of the first cache count by their bytes."""
        deep, high, wide = as_ints(p, "kernel")
        moved = (self.columns(p) * blocks(wide, _taps_at_once(p)) + wide) * self.channels
        arithmetic = wide * self.positions * self.channels
        loads = moved * _SIZES[as_int(p, "x_dtype")] / 2
        ends = 6 * self.positions * self.channels + 40
        return deep * high * (arithmetic + moved + loads) + ends


def strip(p: Params) -> Strip:
    """Returns the strip that takes least."""
    return min(strips(p), key=lambda s: s.instructions(p) * max(s.threads(p), _FILLING))


def strip_launch(p: Params, chosen: Strip) -> LaunchConfig:
    """Returns the config of strips of one size: blocks of them that share rows of x."""
    if p["batch"] * prod(as_ints(p, "out_size")) * as_int(p, "out_channels") == 0:
        return LaunchConfig(())
    deep, high, wide = as_ints(p, "out_size")
    most = _BLOCK if chosen.threads(p) >= _FILLING else _SMALL_BLOCK
    packs = as_int(p, "out_channels") // chosen.channels
    groups = blocks(packs, blocks(packs, most // 4))
    rows = _share(high, most // groups)
    strips = _share(blocks(wide, chosen.positions), most // (groups * rows))
    threads = groups * rows * strips
    grid = blocks(packs, groups) * blocks(wide, chosen.positions * strips) * blocks(high, rows)
    grid *= deep * as_int(p, "batch")
    defines = {
        "BLOCK": threads,
        "CHANNELS": chosen.channels,
        "STRIP": chosen.positions,
        "TAPS": _TAPS,
        "GROUPS": groups,
        "STRIPS": strips,
        "ROWS": rows,
        "ARGUMENTS": 2 + epilogue_operands(p),
    }
    return LaunchConfig((Launch((grid, 1, 1), (threads, 1, 1)),), defines=defines)


def conv_depthwise(p: Params) -> LaunchConfig:
    """The rule of `conv_depthwise`: a thread a strip of y."""
    return strip_launch(p, strip(p))


def strips(p: Params) -> Iterator[Strip]:
    """Yields those whose operands lie on whole packs, and which fit into registers."""
    strides = [*as_ints(p, "x_strides"), *as_ints(p, "y_strides")]
    strides += as_ints(p, "r_strides") if p["residual"] else ()
    apart = [s for i, s in enumerate(strides) if i % 5 != 1]
    dtypes = ("x_dtype", "w_dtype", "y_dtype", *(("r_dtype",) if p["residual"] else ()))
    widest = max(4 * bool(p["has_bias"]), *(_SIZES[as_int(p, d)] for d in dtypes))
    for channels in (8, 4, 2, 1):
        if channels * widest > 16 or any(s % channels for s in (as_int(p, "out_channels"), *apart)):
            continue
        for positions in range(1, 9):
            one = Strip(channels, positions)
            fits = channels * positions <= _SUMS and one.columns(p) <= _COLUMNS
            if positions == 1 or (fits and positions <= as_ints(p, "out_size")[2]):
                yield one


def _taps_at_once(p: Params) -> int:
    wide = as_ints(p, "kernel")[2]
    return blocks(wide, blocks(wide, _TAPS))


def _share(count: int, most: int) -> int:
    """Returns how many of `count` a block takes, at most `most`, so that blocks take alike."""
    return blocks(count, blocks(count, max(1, most)))
