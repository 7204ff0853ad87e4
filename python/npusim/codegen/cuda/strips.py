"""Launch configurations of convolutions in groups of few channels, and of one: strips of y.

A thread has a strip, some neighbouring channels of positions that follow one another in a row: what
it reads of a row of x serves all of them. Larger strips read less, smaller ones fill the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import GPU, epilogue_operands
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig, as_int, as_ints, blocks
from npusim.ir.types import CODE_SIZES

_BLOCK = 256
_SMALL_BLOCK = 128  # where few threads are to spread over all processors
_TAPS = 8  # of a row, whose weights wait in registers
_WEIGHTS = 48  # that wait there
_SUMS = 32  # of a thread
_COLUMNS = 22  # of x, that a thread reads of a row
_FILLING = GPU.processors.count * 512  # threads that fill the device


@dataclass(frozen=True, slots=True)
class Strip:
    """What a thread computes: `channels` of y, at `positions` that follow one another in a row.

    Attributes:
        reads: channels of x that it reads for them.
        diagonal: each of them for one of y.
    """

    channels: int
    positions: int
    reads: int
    diagonal: bool

    @property
    def name(self) -> str:
        """Tells it from others of a command."""
        return f"{self.channels}x{self.positions}"

    @property
    def pairs(self) -> int:
        """Weights of a tap."""
        return self.channels * (1 if self.diagonal else self.reads)

    def threads(self, p: Params) -> int:
        """Returns how many have one."""
        deep, high, wide = as_ints(p, "out_size")
        strips = as_int(p, "batch") * deep * high * blocks(wide, self.positions)
        return strips * (as_int(p, "out_channels") // self.channels)

    def taps(self, p: Params) -> int:
        """Returns how many taps of a row are taken at once."""
        wide = as_ints(p, "kernel")[2]
        return blocks(wide, blocks(wide, max(1, min(_TAPS, _WEIGHTS // self.pairs))))

    def columns(self, p: Params) -> int:
        """Returns how many columns of x the taps taken at once reach over."""
        stride, step = as_ints(p, "stride")[2], as_ints(p, "dilation")[2]
        return (self.positions - 1) * stride + (self.taps(p) - 1) * step + 1

    def instructions(self, p: Params) -> float:
        """Returns about how many a thread takes: loads of the first cache count by their bytes."""
        deep, high, wide = as_ints(p, "kernel")
        moved = self.columns(p) * blocks(wide, self.taps(p)) * self.reads + wide * self.pairs
        arithmetic = wide * self.positions * self.pairs
        loads = moved * CODE_SIZES[as_int(p, "x_dtype")] / 2
        ends = 6 * self.positions * self.channels + 40
        return deep * high * (arithmetic + moved + loads) + ends


def strips(p: Params) -> Iterator[Strip]:
    """Yields those whose operands lie on whole packs, and which fit into registers."""
    diagonal = "groups" not in p  # the parameters of conv_depthwise
    groups = as_int(p, "out_channels") if diagonal else as_int(p, "groups")
    inputs, outputs = (as_int(p, f"{side}_channels") // groups for side in ("in", "out"))
    sides = ("x_strides", "y_strides", *(("r_strides",) if p["residual"] else ()))
    x_apart, *others = ([s for i, s in enumerate(as_ints(p, side)) if i != 1] for side in sides)
    apart = [step for side in others for step in side]
    dtypes = ("x_dtype", "w_dtype", "y_dtype", *(("r_dtype",) if p["residual"] else ()))
    widest = max(4 * bool(p["has_bias"]), *(CODE_SIZES[as_int(p, d)] for d in dtypes))
    for channels in (8, 4, 2, 1):
        reads = channels if diagonal else inputs
        whole = as_int(p, "out_channels") if diagonal else outputs
        if max(channels, reads) * widest > 16 or any(s % channels for s in (whole, *apart)):
            continue
        if reads not in (1, 2, 4, 8) or any(s % reads for s in x_apart):
            continue
        for positions in range(1, 9):
            one = Strip(channels, positions, reads, diagonal)
            fits = channels * positions <= _SUMS and one.columns(p) <= _COLUMNS
            if positions == 1 or (fits and positions <= as_ints(p, "out_size")[2]):
                yield one


def best_strip(p: Params) -> Strip | None:
    """Returns the strip that takes least; None where operands suit none."""
    return min(strips(p), key=lambda s: strip_instructions(p, s), default=None)


def strip_instructions(p: Params, strip: Strip) -> float:
    """Returns about how many instructions all threads take, of as many as fill the device."""
    return strip.instructions(p) * max(strip.threads(p), _FILLING)


def strip_launch(p: Params, chosen: Strip) -> LaunchConfig:
    """Returns the config of strips of one size: blocks of them that share rows of x."""
    deep, high, wide = as_ints(p, "out_size")
    most = _BLOCK if chosen.threads(p) >= _FILLING else _SMALL_BLOCK
    packs = as_int(p, "out_channels") // chosen.channels
    groups = blocks(packs, blocks(packs, most // 4))
    rows = _share(high, most // groups)
    beside = _share(blocks(wide, chosen.positions), most // (groups * rows))
    threads = groups * rows * beside
    grid = blocks(packs, groups) * blocks(wide, chosen.positions * beside) * blocks(high, rows)
    grid *= deep * as_int(p, "batch")
    defines = {
        "PATH": KernelPath.STRIP,
        "BLOCK": threads,
        "SPLIT": 1,
        "DIAGONAL": int(chosen.diagonal),
        "IN": chosen.reads,
        "OUT": chosen.channels,
        "STRIP": chosen.positions,
        "TAPS": chosen.taps(p),
        "GROUPS": groups,
        "STRIPS": beside,
        "ROWS": rows,
        "ARGUMENTS": 2 + epilogue_operands(p),
    }
    return LaunchConfig((Launch((grid, 1, 1), (threads, 1, 1)),), defines=defines)


def conv_depthwise(p: Params) -> LaunchConfig:
    """The rule of `conv_depthwise`: a thread a strip of y."""
    if as_int(p, "batch") * prod(as_ints(p, "out_size")) * as_int(p, "out_channels") == 0:
        return LaunchConfig(())
    strip = best_strip(p)
    assert strip is not None, "a strip of one channel always fits"
    return strip_launch(p, strip)


def _share(count: int, most: int) -> int:
    """Returns how many of `count` a block takes, at most `most`, so that blocks take alike."""
    return blocks(count, blocks(count, max(1, most)))
