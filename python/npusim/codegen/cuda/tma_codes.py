"""Launch configurations of products of rows with codes, by `quantization/tma_codes.h`.

Steps have them for any number of rows, in one order (`ordered_tiles`), others for many. Their code
runs everywhere, but is made for sm_90a.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from math import prod

from npusim.abi.kernels import Params
from npusim.abi.quantization import BYTE_CODES
from npusim.codegen.cuda.code_rows import MOST_ROWS
from npusim.codegen.cuda.matmul_rules import (
    GPU,
    PROCESSORS,
    epilogue_operands,
    is_sole,
    on_tensor_cores,
)
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig, TensorMap, as_int, as_ints, blocks
from npusim.targets import measured

STEMS = ("quantized_linear",)
_GROUP_ROWS = 64  # rows of W, of a warpgroup
_LOAD_ROWS = 32  # of W
_STEP = 64  # elements of K
_REGISTERS = 65536  # of a processor
_MOST_REGISTERS = 240  # of a thread, that others' can be added up to
_LOADING_REGISTERS = 24  # of a thread of a warpgroup that only loads
_PLAIN = 64  # rows and columns of the tiles of devices without TMA
_PLAIN_STAGES = 3
_EXCHANGED = 64 * 128  # sums of a tile, whose exchange was measured
_EXCHANGE_GROWTH = 0.25  # the power of their number
_USUAL_ROWS = 64  # of a step, that the slices of an order are chosen for
_SPLITS = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class CodeTile(measured.CodeTile):
    """A tile as launches have it.

    Attributes:
        split: slices of K, for as many blocks of a cluster.
        sums_groups: sums of each group of codes are complete before the next one's begin.
        sole: no processor takes two blocks of the launch, which leaves processors free.
    """

    split: int = 1
    sums_groups: bool = False
    sole: bool = False

    @property
    def name(self) -> str:
        """What tuning files call it."""
        return (
            f"codes {64 * self.groups}x{self.tokens}/{self.split} "
            f"s{self.x_stages}.{self.code_stages}.{self.per_processor}"
            f"{' sums' if self.sums_groups else ''}{' sole' if self.sole else ''}"
        )

    @property
    def registers(self) -> int:
        """Of a thread that multiplies, where a whole warpgroup loads to leave it these; else 0."""
        resident = self.groups * self.per_processor
        if resident < 4 and (self.tokens < 128 or (self.groups, resident) == (1, 3)):
            return 0
        warps = 4 * (self.groups + 1) * self.per_processor
        # A launch has as many for each, and what some give back is what others can have.
        each = _REGISTERS // 4 // blocks(warps, 4) // 32 // 8 * 8
        if each > _MOST_REGISTERS:
            return 0  # a launch gives all that a thread can have
        return (each + (each - _LOADING_REGISTERS) // self.groups) // 8 * 8

    @property
    def rings(self) -> int:
        """Bytes of the rings and their barriers."""
        x, codes = self.tokens * 128, self.groups * 64 * 128
        return self.x_stages * (x + 16) + self.code_stages * (codes + 16)

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        return max(self.rings, self.tokens * (64 * self.groups + 4) * 4) + self.groups * 64 * 8


_FIT = GPU.code_rows
TILES = tuple(CodeTile(**asdict(tile), split=split) for tile in _FIT.tiles for split in _SPLITS)


def fits(p: Params, tile: CodeTile) -> bool:
    """Tells whether a tile can compute a product, and every load of codes lies in one segment."""
    m, n, k = (as_int(p, name) for name in "mnk")
    parts, segments = 2 if p["gated"] else 1, as_int(p, "segments")
    rows = as_ints(p, "rows")[:segments]
    if 0 in (m, n, k) or 0 in rows or not on_tensor_cores(p["x_dtype"], p["x_dtype"]):
        return False
    if k % 8 or as_int(p, "ldx") % 8 or as_int(p, "ldx") < k:
        return False
    if parts == 2:
        together = segments == 1 or rows == (n, n)
    else:
        together = all(count % _LOAD_ROWS == 0 for count in rows[:-1])
    unit = (2 if p["format"] in BYTE_CODES else 4) * _STEP
    slice_k = blocks(blocks(k, tile.split), unit) * unit
    if tile.split > 1 and (slice_k < 4 * _STEP or blocks(k, slice_k) != tile.split):
        return False
    crowded = tile.tokens >= 128 and tile.groups * tile.per_processor == 3 and not tile.registers
    if crowded and p["format"] not in BYTE_CODES:
        return False  # no registers for scales
    if tile.sums_groups and tile.groups * tile.tokens > 256:
        return False  # nor for the sums of a group beside those of all
    return together and tile.shared <= GPU.processors.block_shared_bytes


def tma_codes(p: Params, tile: CodeTile) -> LaunchConfig:
    """Returns the launches of a product by a tile that fits."""
    m, k, segments = (as_int(p, name) for name in ("m", "k", "segments"))
    padded = blocks(k, 128) * 128
    row_bytes = padded if p["format"] in BYTE_CODES else padded // 2
    maps = [TensorMap(0, m, k, 2 * as_int(p, "ldx"), tile.tokens)]
    for i, rows in enumerate(as_ints(p, "rows")[:segments]):
        maps.append(TensorMap(1 + i, rows, row_bytes // 2, row_bytes, _LOAD_ROWS))
    threads = 128 * tile.groups + (128 if tile.registers else 32)
    defines = {
        "PATH": KernelPath.CODES_TMA,
        "BLOCK": threads,
        "SPLIT": 1,
        "CLUSTER_K": tile.split,
        "GROUPS": tile.groups,
        "TOKENS": tile.tokens,
        "X_STAGES": tile.x_stages,
        "CODE_STAGES": tile.code_stages,
        "SHARED": tile.shared,
        "TILE_ROWS": _PLAIN,
        "TILE_COLUMNS": _PLAIN,
        "TENSOR_CORES": 1,
        "WARPS_M": 2,
        "WARPS_N": 2,
        "STAGES": _PLAIN_STAGES,
        "BLOCKS_PER_SM": tile.per_processor,
        "REGISTERS": tile.registers,
        "MAPS": len(maps),
        "SUMS_GROUPS": int(tile.sums_groups),
        "ARGUMENTS": 1 + segments + epilogue_operands(p),
    }
    plain = _PLAIN_STAGES * 2 * _PLAIN * 2 * _STEP
    shared = max(tile.shared, plain)
    sole = max(shared, GPU.one_order.sole_bytes) if tile.sole else None
    launch = Launch(_grid(p, tile), (threads, 1, 1), shared, elsewhere=plain, padded_shared=sole)
    return LaunchConfig((launch,), maps=tuple(maps), defines=defines)


def _grid(p: Params, tile: CodeTile) -> tuple[int, int, int]:
    columns = as_int(p, "n") * (2 if p["gated"] else 1)
    rows = blocks(as_int(p, "m"), tile.tokens)
    return rows, blocks(columns, _GROUP_ROWS * tile.groups), tile.split


def _alone(p: Params, tile: CodeTile) -> CodeTile:
    """Returns the tile with the longest ring of codes that helps, where each of its blocks is to be
    the only one of the launch on its processor; else the tile as it is."""
    if not is_sole(prod(_grid(p, tile))):
        return tile
    steps = blocks(blocks(as_int(p, "k"), _STEP), tile.split)
    for stages in range(steps, tile.code_stages, -1):
        longer = replace(tile, code_stages=stages, per_processor=1, sole=True)
        if longer.shared <= GPU.one_order.sole_room_bytes and fits(p, longer):
            return longer
    return replace(tile, per_processor=1, sole=True)


def tiles(p: Params, most: int) -> list[CodeTile]:
    """Returns the tiles that fit a product of many rows, the fastest by `microseconds` first."""
    if as_int(p, "m") <= MOST_ROWS:
        return []
    found = [tile for tile in TILES if fits(p, tile)]
    return sorted(found, key=lambda tile: microseconds(p, tile))[:most]


def ordered_tiles(p: Params) -> list[CodeTile]:
    """Returns the tiles of one order for any number of rows, the fastest by `microseconds` first.

    The order is that of slices of K, whose number follows from the weights alone, and where codes
    have groups that of sums of each.
    """
    sums = p["format"] not in BYTE_CODES
    made = [replace(tile, sums_groups=sums) for tile in TILES]

    def fastest(m: int) -> list[CodeTile]:
        sized = {**p, "m": m}
        found = [tile for tile in made if fits(sized, tile)]
        return sorted(found, key=lambda tile: microseconds(sized, tile))

    usual, tiles = fastest(_USUAL_ROWS), fastest(as_int(p, "m"))
    return [_alone(p, tile) for tile in tiles if tile.split == usual[0].split]


def microseconds(p: Params, tile: CodeTile) -> float:
    """Returns about how long a product takes by a tile, as the architecture was measured."""
    m, n, k = (as_int(p, name) for name in "mnk")
    parts = 2 if p["gated"] else 1
    grid = blocks(m, tile.tokens) * blocks(n * parts, _GROUP_ROWS * tile.groups) * tile.split
    processors = GPU.processors.clustered if tile.split > 2 else PROCESSORS
    full, rest = divmod(grid, processors * tile.per_processor)
    steps = blocks(blocks(k, _STEP), tile.split)
    area = 64 * tile.groups * tile.tokens / _EXCHANGED
    ends = tile.ends_us + _FIT.exchange_us * area**_EXCHANGE_GROWTH * (tile.split - 1)

    def wave(beside: int) -> float:
        return steps * max(tile.step_us, beside * tile.shared_step_us) + ends if beside else 0.0

    time = full * wave(tile.per_processor) + wave(blocks(rest, processors))
    row_bytes = k if p["format"] in BYTE_CODES else k // 2
    return max(time, n * parts * row_bytes / GPU.tma_matmul.read_bytes_per_us)
