"""Launch configurations of sorts on CUDA: a block a short lane, a warp for the first of many,
rounds of tiles, or digit by digit.

All give the same result (kernels/cuda/rows/sort.cu); the choice is one of time.
"""

from __future__ import annotations

from collections.abc import Iterator

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import PROCESSORS
from npusim.codegen.launch_config import LANES, MAX_THREADS, Launch, LaunchConfig, blocks
from npusim.ir.types import CODE_SIZES

_BITONIC, _ROUNDS, _DIGITS, _WARPS = range(4)  # NPUSIM_WAY
_SHORT = 2048  # elements of a lane that a block sorts in shared memory
_BLOCK = 256  # threads that sort a tile
_TILE = 2048
_FEWER = 4  # times, that a round leaves fewer candidates than it is given, at least
_DIGIT_BITS = 8
_POSITION_BYTES = 4
_WARP_SIZES = (128, 8192)  # of lanes of which a warp keeps the first, where warps fill the device
_FEW_LANES = 16  # up to which a digit's counts of a lane have a block of their own


def sort(p: Params) -> LaunchConfig:
    """The rule of `sort`."""
    lanes = p["outer"] * p["inner"]
    if lanes == 0 or p["k"] == 0:
        return LaunchConfig(())
    if _suits_warps(p, lanes):
        return LaunchConfig(
            (Launch((blocks(lanes, _BLOCK // LANES), 1, 1), (_BLOCK, 1, 1)),),
            defines={"WAY": _WARPS, "BLOCK": _BLOCK},
        )
    if p["size"] <= _SHORT:
        return _bitonic(lanes, p["size"])
    return _rounds(p, lanes) if _FEWER * p["k"] <= _TILE else _digits(p, lanes)


def _suits_warps(p: Params, lanes: int) -> bool:
    """Tells whether a warp a lane finds the k first: most of a lane it only looks at."""
    least, most = _WARP_SIZES
    return p["k"] <= LANES and least <= p["size"] <= most and lanes >= 4 * PROCESSORS


def _bitonic(lanes: int, size: int) -> LaunchConfig:
    width = 1 << max(size - 1, 1).bit_length()
    block = min(max(width // 2, LANES), MAX_THREADS)
    defines = {"WAY": _BITONIC, "BLOCK": block, "WIDTH": width}
    return LaunchConfig((Launch((lanes, 1, 1), (block, 1, 1)),), defines=defines)


def _tile_constants(way: int) -> dict[str, int]:
    return {"WAY": way, "BLOCK": _BLOCK, "TILE": _TILE, "DIGIT_BITS": _DIGIT_BITS}


def _candidates(size: int, k: int) -> Iterator[int]:
    """Yields how many of a lane each round is given, the last of them one tile."""
    yield size
    while size > _TILE:
        whole = blocks(size, _TILE) - 1
        size = whole * k + min(size - whole * _TILE, k)
        yield size


def _rounds(p: Params, lanes: int) -> LaunchConfig:
    """The k first of each tile are candidates of the next round, which finds fewer tiles."""
    counts = list(_candidates(p["size"], p["k"]))
    launches = tuple(
        Launch((lanes * blocks(count, _TILE), 1, 1), (_BLOCK, 1, 1)) for count in counts
    )
    each = CODE_SIZES[p["dtype"]] + _POSITION_BYTES
    scratch = 2 * lanes * counts[1] * each + 4
    return LaunchConfig(launches, scratch=scratch, defines=_tile_constants(_ROUNDS))


def _digits(p: Params, lanes: int) -> LaunchConfig:
    """A pass a digit, the lowest first, each of three launches (kernels/cuda/common/radix.h)."""
    tiles, digits = blocks(p["size"], _TILE), 1 << _DIGIT_BITS
    scanners = digits if lanes <= _FEW_LANES else 1  # blocks of a lane
    key_bytes = CODE_SIZES[p["dtype"]]

    def launch(grid: int, entry: str) -> Launch:
        return Launch((grid, 1, 1), (_BLOCK, 1, 1), entry=f"npusim_{entry}")

    launches = []
    for number in range(key_bytes):
        launches.append(launch(lanes * tiles, "count" if number else "kernel"))
        launches.append(launch(lanes * scanners, "scan"))
        launches.append(launch(lanes * tiles, "move"))
    launches.append(launch(blocks(lanes * p["k"], _BLOCK), "give"))
    words = 1 + lanes * digits * (tiles + 1)
    items = 2 * lanes * p["size"] * (key_bytes + _POSITION_BYTES)
    defines = {**_tile_constants(_DIGITS), "SCANNERS": scanners}
    return LaunchConfig(tuple(launches), scratch=items + 4 * words + 4, defines=defines)
