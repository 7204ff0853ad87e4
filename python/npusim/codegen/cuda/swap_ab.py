"""Launch configurations of products of few rows on Hopper, by kernels/cuda/matmul/swap_ab.h.

Rows of W are the first operand of wgmma, so that a tile has as few rows of x as there are. Their
code runs everywhere, but is made for sm_90a.
"""

from __future__ import annotations

from dataclasses import dataclass

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import (
    GPU,
    PROCESSORS,
    is_sole,
    linear_operands,
    on_tensor_cores,
    rotates,
    with_scratch,
)
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig, TensorMap, as_int, as_ints, blocks

MOST_ROWS = 256  # of x: columns of wgmma
_TOKENS = (8, 16, 32, 64, 96, 128, 192, 256)  # of its instructions
_DEPTH = 64  # of K, that a stage has
_GROUP_ROWS = 64  # of W, of a warpgroup
_BARRIERS = 16  # bytes a stage
_MOST_STAGES = 10
_MOST_PLACES = (1 << 31) - 1  # of rows in pages
_FIT = GPU.one_order
_PLAIN, _PLAIN_STAGES = 64, 3  # rows and columns of the tiles of devices without TMA


@dataclass(frozen=True, slots=True)
class SwapTile:
    """What a block computes.

    Attributes:
        groups: warpgroups, of 64 rows of W each.
        stages: blocks of K in flight.
        ahead: of these, blocks of W that are loaded before the first of x.
    """

    groups: int
    stages: int
    ahead: int

    def name(self, p: Params, slices: int) -> str:
        """Returns what it is called among the ways to compute a product."""
        tile = f"{self.groups * _GROUP_ROWS}x{_tokens(p)}"
        return f"swapped {tile} o{slices} s{self.stages} a{self.ahead}"


def _tokens(p: Params) -> int:
    return next(tokens for tokens in _TOKENS if tokens >= as_int(p, "m"))


def fits(p: Params, groups: int) -> bool:
    """Tells whether tiles of W can be loaded, each from one segment; whatever the rows of x."""
    n, k = as_int(p, "n"), as_int(p, "k")
    segments = as_int(p, "segments")
    rows = as_ints(p, "rows")[:segments]
    lines = (as_int(p, "ldx"), *as_ints(p, "ldw")[:segments])
    if 0 in (n, k, *rows) or not on_tensor_cores(p["x_dtype"], p["w_dtype"]):
        return False
    if any(line % 8 or line < k for line in lines):
        return False
    if p["gated"]:
        return segments == 1 or rows == (n, n)
    if rotates(p):
        return _has_halves(p, groups, rows)
    return all(first % (groups * _GROUP_ROWS) == 0 for first in rows[:-1])


def _has_halves(p: Params, groups: int, rows: tuple[int, ...]) -> bool:
    """Tells whether a tile has both halves of pairs of a head, and stores 16 bytes at once."""
    head = as_int(p, "head_dim")
    names = ("y", "k_pool", "v_pool", "cs")
    steps = [stride for name in names for stride in as_ints(p, f"{name}_strides")]
    places = as_int(p, "pages") * as_int(p, "page_tokens")
    apart = head % (groups * _GROUP_ROWS) or any(first % head for first in rows)
    return not apart and not any(step % 8 for step in steps) and places <= _MOST_PLACES


def blocks_of(p: Params, groups: int, slices: int) -> int:
    """Returns how many blocks a product has."""
    columns = as_int(p, "n") * (2 if p["gated"] else 1)
    return blocks(columns, groups * _GROUP_ROWS) * slices


def tile_of(p: Params, groups: int, slices: int) -> SwapTile | None:
    """Returns the tile with the stages that there is room for; None: there is not.

    Args:
        slices: of K, for a block of a cluster each.
    """
    if as_int(p, "m") > MOST_ROWS or not fits(p, groups):
        return None
    each = blocks(blocks(as_int(p, "k"), _DEPTH), slices)
    held = min(blocks(blocks_of(p, groups, slices), PROCESSORS), 3)
    wanted = min(each, blocks(_FIT.in_flight_bytes, held * groups * _GROUP_ROWS * _DEPTH * 2))
    rooms = _FIT.rooms_bytes
    if is_sole(blocks_of(p, groups, slices)):
        rooms = (_FIT.sole_room_bytes,)
    candidates = [(room, s) for room in rooms for s in range(_MOST_STAGES, wanted - 1, -1)]
    most = GPU.processors.block_shared_bytes
    candidates += [(most, stages) for stages in range(wanted, min(each, 2) - 1, -1)]
    for room, stages in candidates:
        tile = SwapTile(groups, stages, stages)
        if stages <= each and _shared(p, tile, slices) <= room:
            return tile
    return None


def _stage_bytes(p: Params, groups: int) -> int:
    return (groups * _GROUP_ROWS + _tokens(p)) * _DEPTH * 2


def _shared(p: Params, tile: SwapTile, slices: int) -> int:
    """Returns bytes of shared memory, as swap_ab.h lays it out."""
    sums = _tokens(p) * (tile.groups * _GROUP_ROWS + 4) * 4
    pipeline = max(tile.stages * _stage_bytes(p, tile.groups), sums) + tile.stages * _BARRIERS
    most_rows = blocks(as_int(p, "m"), slices)
    received = (slices - 1) * most_rows * (tile.groups * _GROUP_ROWS + 4) * 4
    places = (most_rows + as_int(p, "m")) * 4 if rotates(p) else 0
    return blocks(pipeline + 8, 128) * 128 + received + most_rows * 4 + places


def swap_ab(p: Params, tile: SwapTile, slices: int) -> LaunchConfig:
    """Returns the launch configuration of a `linear`, beside a norm or not, by a tile that fits.

    The tiles of a `linear_rope_append` turn and append their columns.
    """
    m, k = as_int(p, "m"), as_int(p, "k")
    segments, tokens = as_int(p, "segments"), _tokens(p)
    maps = [TensorMap(0, m, k, 2 * as_int(p, "ldx"), tokens)]
    box = tile.groups * _GROUP_ROWS // (2 if p["gated"] or rotates(p) else 1)
    for i, (rows, line) in enumerate(
        zip(as_ints(p, "rows")[:segments], as_ints(p, "ldw")[:segments], strict=True)
    ):
        maps.append(TensorMap(1 + i, rows, k, 2 * line, box))
    threads = 128 * tile.groups + 32
    shared = _shared(p, tile, slices)
    defines = {
        "PATH": KernelPath.SWAP_AB,
        "BLOCK": threads,
        "SPLIT": 1,
        "TILE_ROWS": _PLAIN,
        "TILE_COLUMNS": _PLAIN,
        "SHARED": shared,
        "TENSOR_CORES": 1,
        "WARPS_M": 2,
        "WARPS_N": 2,
        "STAGES": _PLAIN_STAGES,
        "GROUPS": tile.groups,
        "TOKENS": tokens,
        "PIPELINE_STAGES": tile.stages,
        "AHEAD": tile.ahead,
        "CLUSTER_K": slices,
        "BLOCKS_PER_SM": _blocks_per_processor(tile.groups, tokens, shared),
        "MAPS": len(maps),
        "ARGUMENTS": linear_operands(p),
    }
    count = blocks_of(p, tile.groups, slices)
    grid = (1, count // slices, slices)
    plain = _PLAIN_STAGES * 2 * _PLAIN * 2 * _DEPTH
    least = _FIT.sole_bytes if is_sole(count) else _FIT.alone_bytes
    padded = max(shared, plain, least) if count <= PROCESSORS else None
    launch = Launch(grid, (threads, 1, 1), max(shared, plain), "npusim_kernel", plain, padded)
    config = LaunchConfig((launch,), maps=tuple(maps), defines=defines)
    return with_scratch(p, config, ROPE_JOINED=1) if rotates(p) else config


def _blocks_per_processor(groups: int, tokens: int, shared: int) -> int:
    """Returns for how many blocks there are to be registers, beside a thread's sums."""
    if 2 * shared > GPU.processors.block_shared_bytes:
        return 1
    if groups == 1:
        return 3 if tokens <= 128 else 2
    return 2 if tokens <= 64 else 1
