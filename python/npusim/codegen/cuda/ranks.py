"""Launch configurations of exchanges between ranks (`kernels/cuda/ranks`)."""

from __future__ import annotations

from enum import IntEnum

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import (
    LANES,
    Launch,
    LaunchConfig,
    Rule,
    as_int,
    blocks,
)
from npusim.errors import TargetConstraintError
from npusim.ir.types import CODE_SIZES

# Few blocks: those of all ranks have to run at once, beside whatever else runs, and what small
# messages take is the way there, not the bandwidth. As kernels/cuda/ranks/exchange.h has them.
_RANKS, _BLOCKS, _LINES, _CHUNK = 8, 32, 256, 128 << 10
_LINE, _VECTOR = 8, 16  # bytes of x in a line, and of a store
_LEAST, _MOST_THREADS = 2048, 512
# Bytes that go in lines at most, to all peers together; that go in one shot; and that two shots
# would send less. By benchmarks/results/ranks_cuda_4xh200.txt, of us on H200, four ranks took 4.46
# for 64 KiB in lines and 5.38 in one shot; 7.78 for 256 KiB in one shot and 10.26 in two; 16.30 and
# 13.52 for 1 MiB. Two ranks send as much in two shots as in one: 9.29 and 10.72 for 1 MiB, 40.86
# and 39.66 for 8 MiB. Other numbers of ranks are not measured.
_LINES_SENT, _ONE_SHOT_MOST, _TWO_SHOT_SAVES = 192 << 10, 4 << 20, 768 << 10
_LINES_MOST = _BLOCKS * _LINES * _LINE  # to each, for which there is room


class Way(IntEnum):
    """How an all_reduce's values get around; `all_reduce.cu` has the same numbers."""

    LINES = 0
    ONE_SHOT = 1
    TWO_SHOT = 2


def way_of(bytes: int, ranks: int) -> Way:
    """Returns the way of a message of so many bytes."""
    sent = bytes * (ranks - 1)
    if bytes <= _LINES_MOST and sent <= _LINES_SENT:
        return Way.LINES
    # Each rank sends all to all others at once, or a part twice: one to be added up, and one sum.
    saved = sent - 2 * sent // ranks
    once = bytes <= _ONE_SHOT_MOST and saved <= _TWO_SHOT_SAVES
    return Way.ONE_SHOT if once else Way.TWO_SHOT


def reduce_config(p: Params, way: Way) -> LaunchConfig:
    """Returns the launch configuration of an all_reduce that goes a way, which its size allows."""
    bytes = as_int(p, "elements") * CODE_SIZES[as_int(p, "dtype")]
    _check_ranks(p)
    if bytes == 0:
        return LaunchConfig(())
    defines = {"WAY": int(way), "RESIDUAL": as_int(p, "residual")}
    if way is not Way.LINES:
        return _in_chunks(bytes, **defines)
    items = blocks(bytes, _LINE)
    threads = _LINES // 2 if items <= _BLOCKS * _LINES // 8 else _LINES
    launch = Launch((blocks(items, threads), 1, 1), (threads, 1, 1))
    defines |= {"BLOCK": threads, "PART": threads * _LINE}
    return LaunchConfig((launch,), exchange=True, defines=defines)


def _in_chunks(bytes: int, **defines: int) -> LaunchConfig:
    part = min(max(blocks(blocks(bytes, _BLOCKS), _VECTOR) * _VECTOR, _LEAST), _CHUNK)
    grid = min(blocks(bytes, part), _BLOCKS)
    threads = min(blocks(blocks(part, _VECTOR), LANES) * LANES, _MOST_THREADS)
    launch = Launch((grid, 1, 1), (threads, 1, 1))
    defines |= {"BLOCK": threads, "PART": part}
    # Many large blocks that wait in front of others which wait: they start one after another.
    return LaunchConfig((launch,), exchange=True, overlaps=False, defines=defines)


def _check_ranks(p: Params) -> None:
    if as_int(p, "ranks") > _RANKS:
        raise TargetConstraintError(
            f"CUDA devices exchange values among at most {_RANKS} ranks, not {p['ranks']}.",
            hint="Compile the model for fewer ranks.",
        )


def _all_gather(p: Params) -> LaunchConfig:
    _check_ranks(p)
    bytes = as_int(p, "bytes")
    return LaunchConfig(()) if bytes == 0 else _in_chunks(bytes)


def _all_reduce(p: Params) -> LaunchConfig:
    bytes = as_int(p, "elements") * CODE_SIZES[as_int(p, "dtype")]
    return reduce_config(p, way_of(bytes, as_int(p, "ranks")))


RULES: dict[str, Rule] = {"all_gather": _all_gather, "all_reduce": _all_reduce}
