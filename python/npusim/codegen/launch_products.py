"""Geometry of the products: linear, matmul, convolution, and what prepares their weights.

The rules choose between the paths of a source (its opening comment lists them) by shape and dtype:
streaming while the weights are read once for few rows, tiles on the tensor cores for 16-bit
operands, tiles by multiply-adds otherwise. Where the tiles of y do not fill the device, K is cut
into spans whose sums a second launch adds up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from npusim.codegen.geometry import Geometry, Launch, Rule, blocks
from npusim.ops.kernels import Params

PROCESSORS = 132  # multiprocessors that a grid should fill; a smaller device only takes longer
_BLOCK = 256  # threads of launches that only combine or convert
_DEPTH = 64  # of K, that a tile passes at once
_STREAM_WARPS = 4096  # that keep enough loads of weights in flight
_FEW_ROWS = 16  # rows of the tensor core's smallest tile

_FLOAT16, _BFLOAT16 = 1, 2


@dataclass(frozen=True)
class _TileShape:
    """Rows and columns of a tile, the warps that share it, and how many blocks of K are in flight."""

    rows: int
    columns: int
    warps_m: int
    warps_n: int
    stages: int
    speed: float  # multiply-adds a cycle of a processor that is full of such tiles

    @property
    def shared(self) -> int:
        return self.stages * (self.rows + self.columns) * _DEPTH * 2

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n


_TILES = (
    _TileShape(128, 128, 2, 2, 3, 1150),
    _TileShape(128, 64, 2, 2, 4, 950),
    _TileShape(64, 128, 2, 2, 4, 950),
    _TileShape(64, 64, 2, 2, 4, 750),
)
_PLAIN = (_TileShape(128, 128, 0, 0, 0, 90), _TileShape(64, 64, 0, 0, 0, 60))
_PLAIN_GATED = (_TileShape(64, 128, 0, 0, 0, 75),)
_PLAIN_THREADS = 256
_PLAIN_DEPTH = 16

_STEP_CYCLES = 600  # that a block of K takes however small the tile
_COMBINE_CYCLES = 5000  # of a second launch
_SPLIT_BYTES = 1000  # of partial sums that pass in a cycle


def linear(p: Params) -> Geometry:
    """The rule of `linear`."""
    m, n, k = int(p["m"]), int(p["n"]), int(p["k"])
    parts = 2 if p["gated"] else 1
    if m * n == 0:
        return Geometry(())
    pairs = _on_tensor_cores(p["x_dtype"], p["w_dtype"])
    arguments = 1 + int(p["segments"]) + _epilogue_operands(p)
    if m <= (_FEW_ROWS if pairs else 8):
        return _stream(m, n, k, parts, pairs, _size(p["w_dtype"]), arguments)
    return _tiled(m, n, k, parts=parts, pairs=pairs, arguments=arguments, path=(2, 3))


def _stream(m: int, n: int, k: int, parts: int, pairs: bool, size: int, arguments: int) -> Geometry:
    """Warps that stream rows of W, in groups that share K where there are few rows."""
    columns = 8 if pairs and m > 1 else 1  # that a stream serves
    loads = blocks(k * size, 16 * 32 // columns)  # of a lane, without a split
    rows = 2 if parts == 1 and n // columns >= 2 * _STREAM_WARPS else 1
    split = 1
    while split < 8 and blocks(n, rows * columns) * split < _STREAM_WARPS and loads > 2 * split:
        split *= 2
    warps = max(4, split)
    grid = blocks(n, rows * columns * (warps // split))
    defines = {
        "PATH": 1 if columns == 8 else 0,
        "BLOCK": 32 * warps,
        "SPLIT": split,
        "ROWS": rows,
        "LOADS": 12,
        "ARGUMENTS": arguments,
    }
    return Geometry((Launch((grid, 1, 1), (32 * warps, 1, 1)),), defines=defines)


def _tiled(
    m: int,
    n: int,
    k: int,
    *,
    parts: int,
    pairs: bool,
    arguments: int,
    path: tuple[int, int],
    batch: int = 1,
) -> Geometry:
    """Tiles of y; `path` numbers the tensor cores' and the plain one, `batch` counts products."""
    shapes = _TILES if pairs else _PLAIN_GATED if parts == 2 else _PLAIN
    depth = _DEPTH if pairs else _PLAIN_DEPTH
    choices = [
        (_cycles(s, split, m, n, k, parts, batch, depth), i, split)
        for i, s in enumerate(shapes)
        for split in (1, 2, 3, 4, 6, 8, 12, 16)
        if split == 1 or blocks(k, split) >= 2 * _DEPTH
    ]
    _, index, split = min(choices)
    shape = shapes[index]
    threads = shape.threads if pairs else _PLAIN_THREADS
    span = blocks(blocks(k, split), _DEPTH) * _DEPTH
    split = blocks(k, span) if span else 1
    grid = (blocks(m, shape.rows), blocks(n * parts, shape.columns), split * batch)
    shared = shape.shared if pairs else _plain_shared(shape.rows, shape.columns, 4)
    defines = {
        "PATH": path[0] if pairs else path[1],
        "BLOCK": threads,
        "SPLIT": split,
        "TILE_ROWS": shape.rows,
        "TILE_COLUMNS": shape.columns,
        "ARGUMENTS": arguments + (split > 1),
    }
    if pairs:
        defines |= {"WARPS_M": shape.warps_m, "WARPS_N": shape.warps_n, "STAGES": shape.stages}
    launches = [Launch(grid, (threads, 1, 1), shared)]
    if split == 1:
        return Geometry(tuple(launches), defines=defines)
    combine = (blocks(m * n * batch, _BLOCK), 1, 1)
    launches.append(Launch(combine, (_BLOCK, 1, 1), entry="npusim_combine"))
    return Geometry(tuple(launches), 4 * split * m * n * parts * batch, defines=defines)


def _cycles(
    s: _TileShape, split: int, m: int, n: int, k: int, parts: int, batch: int, depth: int
) -> float:
    """Returns about how long the tiles of a product take, K cut into `split` spans."""
    tiles = blocks(m, s.rows) * blocks(n * parts, s.columns) * split * batch
    step = max(s.rows * s.columns * depth / s.speed, _STEP_CYCLES * depth / _DEPTH)
    cycles = blocks(tiles, PROCESSORS) * (blocks(k, split * depth) + 2) * step
    if split > 1:
        cycles += _COMBINE_CYCLES + 8 * split * m * n * parts * batch / _SPLIT_BYTES
    return cycles


def _plain_shared(rows: int, columns: int, size: int) -> int:
    """Bytes of PlainTile::Shared in mma_plain.h."""
    return 2 * _PLAIN_DEPTH * (rows + 4 + columns + 4) * size


def _on_tensor_cores(x: object, w: object) -> bool:
    return x == w and w in (_FLOAT16, _BFLOAT16)


def _size(dtype: object) -> int:
    return 4 if dtype == 0 else 2


def _epilogue_operands(p: Params) -> int:
    """How many of bias, residual and y there are."""
    return int(bool(p["has_bias"])) + int(bool(p["residual"])) + 1


RULES: Mapping[str, Rule] = {"linear": linear}
