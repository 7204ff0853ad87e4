"""Launch configurations of linears of many rows on Hopper, by kernels/cuda/matmul/tma_matmul.h.

Owns which tiles there are, which commands they can compute, and what the blocks of a cluster share.
Their code runs everywhere, but is made for sm_90a: elsewhere a cluster's first block works alone.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from npusim.abi.kernels import SLOT_COLUMNS, Params
from npusim.codegen.cuda.matmul_rules import (
    GPU,
    PROCESSORS,
    leaves_norm,
    linear_operands,
    on_tensor_cores,
    then_turned,
)
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig, TensorMap, as_int, as_ints, blocks
from npusim.targets.measured import TmaTile

STEMS = (  # whose commands it computes
    *("linear", "linear_before_norm", "linear_behind_norm"),
    "linear_rope_append",
)
_DEPTH = 64  # of K, that a tile passes at once
_PLAIN_COLUMNS, _PLAIN_STAGES = 64, 3  # of the tiles of devices without TMA
_BARRIERS = 16  # bytes a stage
_ALIGNED = 136  # bytes of a barrier more, and up to where sums begin
_MOST_LOAD_ROWS = 256  # of one TMA load
_MOST_BLOCKS = 8  # of a cluster, on every device
FEW_ROWS = 1  # that other paths stream weights for
_FIT = GPU.tma_matmul


@dataclass(frozen=True, slots=True)
class ClusterTile(TmaTile):
    """A tile and the cluster that shares its operands, as launches have it.

    Attributes:
        ordered_slices: of K, that a block without a cluster sums one by one and adds up in order,
            with squares before a norm in an order of their own as well (`one_order.py`); 0: K is
            summed as a whole.
    """

    ordered_slices: int = 0

    @property
    def name(self) -> str:
        """What tuning files call it."""
        cluster = f"{self.share_rows}.{self.share_columns}.{self.split_k}"
        pipeline = f"s{self.stages}" + "c" * self.copy_warp + "p" * self.persistent
        ordered = f" o{self.ordered_slices}" if self.ordered_slices else ""
        return f"bulk {self.rows}x{self.columns} {cluster} {pipeline}{ordered}"

    @property
    def line(self) -> int:
        """Floats from one row of sums to the next, without bank conflicts."""
        return self.columns + 8 * (self.columns % 16 == 0)

    @property
    def shared(self) -> int:
        """Bytes of shared memory: the pipeline, its barriers, and partial sums of a cluster."""
        pipeline = self.stages * ((self.rows + self.columns) * _DEPTH * 2 + _BARRIERS)
        sums = (self.rows - self.rows // self.split_k) * self.line * 4
        return pipeline + sums + (self.split_k > 1) * _ALIGNED


def fits(p: Params, tile: ClusterTile) -> bool:
    """Tells whether a tile can compute a `linear`, and every load of W lies in one segment.

    Before a norm, a tile has a slot for the squares of its columns.
    """
    m, n, k = (as_int(p, name) for name in "mnk")
    parts = 2 if p["gated"] else 1
    segments = as_int(p, "segments")
    rows = as_ints(p, "rows")[:segments]
    lines = (as_int(p, "ldx"), *as_ints(p, "ldw")[:segments])
    if 0 in (m, n, k) or not on_tensor_cores(p["x_dtype"], p["w_dtype"]):
        return False
    if any(line % 8 or line < k for line in lines) or 0 in rows:
        return False
    columns = tile.columns // parts
    if leaves_norm(p) and columns < SLOT_COLUMNS:
        return False
    if parts == 2:
        together = segments == 1 or rows == (n, n)
    else:
        together = all(first % columns == 0 for first in rows[:-1])
    loads = max(tile.share_rows, parts)
    eights = [columns, tile.columns // loads, tile.columns // (2 if tile.columns > 256 else 1)]
    eights.append(tile.rows // tile.share_columns)
    splits = tile.split_k == 1 or blocks(k, _DEPTH) >= 2 * tile.split_k
    slices = (
        tile.columns // loads <= _MOST_LOAD_ROWS
        and tile.rows % tile.split_k == 0
        and all(lines % 8 == 0 for lines in eights)
    )
    fits_over_pipeline = (
        tile.split_k == 1
        or tile.rows * tile.line * 4 <= tile.stages * (tile.rows + tile.columns) * 2 * _DEPTH
    )
    most = GPU.processors.block_shared_bytes
    return together and fits_over_pipeline and splits and slices and tile.shared <= most


def tma_matmul(p: Params, tile: ClusterTile) -> LaunchConfig:
    """Returns the launch configuration of a `linear` by a tile that fits."""
    m, n, k = (as_int(p, name) for name in "mnk")
    parts, segments = 2 if p["gated"] else 1, as_int(p, "segments")
    box = tile.columns // max(tile.share_rows, parts)
    x = TensorMap(0, m, k, 2 * as_int(p, "ldx"), tile.rows // tile.share_columns)
    maps = [x]
    for i, (rows, line) in enumerate(
        zip(as_ints(p, "rows")[:segments], as_ints(p, "ldw")[:segments], strict=True)
    ):
        maps.append(TensorMap(1 + i, rows, k, 2 * line, box))
    row_tiles = blocks(blocks(m, tile.rows), tile.share_rows) * tile.share_rows
    column_tiles = blocks(blocks(n * parts, tile.columns), tile.share_columns) * tile.share_columns
    threads = tile.rows * 2 + 32 * tile.copy_warp
    defines = {
        "PATH": KernelPath.TMA,
        "BLOCK": threads,
        "SPLIT": 1,
        "TILE_ROWS": tile.rows,
        "TILE_COLUMNS": _PLAIN_COLUMNS,
        "TMA_COLUMNS": tile.columns,
        "SHARED": tile.shared,
        "TENSOR_CORES": 1,
        "WARPS_M": tile.rows // 32,
        "WARPS_N": 2,
        "STAGES": _PLAIN_STAGES,
        "PIPELINE_STAGES": tile.stages,
        "CLUSTER_M": tile.share_rows,
        "CLUSTER_N": tile.share_columns,
        "CLUSTER_K": tile.split_k,
        "ORDERED_SLICES": tile.ordered_slices,
        "BLOCKS_PER_SM": tile.blocks_per_processor,
        "PERSISTENT_TILES": row_tiles * column_tiles if tile.persistent else 0,
        "MAPS": len(maps),
        "ARGUMENTS": linear_operands(p),
    }
    grid = (row_tiles, column_tiles, tile.split_k)
    if tile.persistent:
        grid = (min(row_tiles * column_tiles, PROCESSORS * tile.blocks_per_processor), 1, 1)
    plain = _PLAIN_STAGES * (tile.rows + _PLAIN_COLUMNS) * 2 * _DEPTH
    launch = Launch(grid, (threads, 1, 1), max(tile.shared, plain), elsewhere=plain)
    return then_turned(p, LaunchConfig((launch,), maps=tuple(maps), defines=defines))


TILES = tuple(ClusterTile(**asdict(tile)) for tile in _FIT.tiles)


def tiles(p: Params, most: int) -> list[ClusterTile]:
    """Returns the tiles that fit a `linear`, the fastest by `microseconds` first."""
    if not on_tensor_cores(p["x_dtype"], p["w_dtype"]) or as_int(p, "m") <= FEW_ROWS:
        return []
    found = [tile for tile in TILES if fits(p, tile)]
    return sorted(found, key=lambda tile: microseconds(p, tile))[:most]


def microseconds(p: Params, tile: ClusterTile) -> float:
    """Returns about how long a linear takes by a tile, by what was measured of the architecture.

    For an H200 that is benchmarks/results/cuda_prefill_h200.txt.
    """
    return _FIT.begin_us + busy_microseconds(p, tile)


def busy_microseconds(p: Params, tile: ClusterTile) -> float:
    """Returns the same without what any launch takes to begin."""
    m, k = as_int(p, "m"), as_int(p, "k")
    parts = 2 if p["gated"] else 1
    columns = as_int(p, "n") * parts
    row_tiles = blocks(blocks(m, tile.rows), tile.share_rows) * tile.share_rows
    column_tiles = blocks(blocks(columns, tile.columns), tile.share_columns) * tile.share_columns
    grid = row_tiles * column_tiles * tile.split_k
    cluster = tile.share_rows * tile.share_columns * tile.split_k
    places = (PROCESSORS if cluster <= 2 else GPU.processors.clustered) * tile.blocks_per_processor
    waves = blocks(grid, places)
    at_once = min(grid, places)
    area = tile.rows * tile.columns
    arrives = (tile.rows + tile.columns) * 2 * _DEPTH
    step = max(
        _FIT.step_us,
        arrives * tile.blocks_per_processor / _FIT.arriving_bytes_per_us,
        arrives * at_once / _FIT.all_arriving_bytes_per_us,
        area * tile.blocks_per_processor * _DEPTH / _FIT.multiplications_per_us,
    )
    steps = blocks(blocks(k, _DEPTH), tile.split_k)
    time = max(waves * steps * step, 2 * columns * k / _FIT.read_bytes_per_us)
    gated = _FIT.gated_sum_us * (parts - 1) * area / (tile.rows / 16)
    time += waves * (_FIT.end_us + gated)
    if tile.split_k > 1:
        time += _FIT.exchange_us * tile.split_k + area * 4 / _FIT.exchanged_bytes_per_us
    return time
