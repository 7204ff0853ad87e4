"""Launch configurations of linear, matmul, and what goes with them.

The rules choose between the paths of a source (its opening comment lists them) by shape and dtype:
streaming weights for few rows, tiles on the tensor cores for what is summed in float32, tiles by
multiply-adds otherwise. Where the tiles of y do not fill the device, K is split, and a second
launch adds up the partial sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import prod

from npusim.abi.kernels import KERNELS, Params
from npusim.abi.quantization import BYTE_CODES
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import (
    LANES,
    Launch,
    LaunchConfig,
    Rule,
    as_int,
    as_ints,
    blocks,
    line,
)
from npusim.targets.architecture import gpu
from npusim.targets.measured import MatmulTile

GPU = gpu("sm_90a")  # also where code is for others, of which nothing was measured
_MATMUL = GPU.matmul
PROCESSORS = GPU.processors.count  # that a grid should fill; a smaller device takes longer
_BLOCK = 256  # threads of launches that only combine or convert
_DEPTH = 64  # of K, that a tile passes at once
_FEW_ROWS = 16  # rows of the tensor core's smallest tile

_FLOAT32, _FLOAT16, _BFLOAT16 = 0, 1, 2
_SUMMED_IN_FLOAT32 = (_FLOAT32, _FLOAT16, _BFLOAT16)


@dataclass(frozen=True, slots=True)
class TileShape(MatmulTile):
    """A tile as launches have it."""

    @property
    def shared(self) -> int:
        """Bytes of shared memory, of 16-bit operands."""
        return self.stages * (self.rows + self.columns) * _DEPTH * 2

    @property
    def float_shared(self) -> int:
        """Bytes of shared memory, of float32 in parts."""
        return self.stages * (self.rows + self.columns) * _FLOAT_ROW_BYTES

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps_m * self.warps_n


# They are bound by the bandwidth of L2, not by the tensor cores.
TILES = tuple(TileShape(**asdict(tile)) for tile in _MATMUL.tiles)
FLOAT_TILES = tuple(TileShape(**asdict(tile)) for tile in _MATMUL.float_tiles)
_SIMT = tuple(TileShape(**asdict(tile)) for tile in _MATMUL.plain_tiles)
_SIMT_THREADS = 256
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)  # of K
_SIMT_DEPTH = _FLOAT_DEPTH = 16
_FLOAT_ROW_BYTES = 128  # of a row's numbers in parts, 16 of them

MOST_SHARED = 99 << 10  # bytes of shared memory that a block may have on every device


def linear(p: Params) -> LaunchConfig:
    """The rule of `linear`."""
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    parts = 2 if p["gated"] else 1
    if m * n == 0:
        return LaunchConfig(())
    tensor_cores = on_tensor_cores(p["x_dtype"], p["w_dtype"])
    arguments = linear_operands(p)
    if m <= (_FEW_ROWS if tensor_cores else _MATMUL.plain_stream_rows):
        columns = 8 if tensor_cores and m > 1 else 1
        loads = blocks(k * _size(p["w_dtype"]), 16 * 32 // columns)
        path = KernelPath.GEMV_MMA if columns == 8 else KernelPath.GEMV_SIMT
        return _streams(n, parts, columns=columns, loads=loads, path=path, arguments=arguments)
    return tiled(m, n, k, parts=parts, tensor_cores=tensor_cores, arguments=arguments)


def linear_beside_norm(p: Params) -> LaunchConfig:
    """The rule of products beside a norm or a rotation: tiles on the tensor cores."""
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    config = tiled(
        m,
        n,
        k,
        parts=2 if p["gated"] else 1,
        tensor_cores=True,
        arguments=linear_operands(p),
        splits=(1,) if leaves_norm(p) or rotates(p) else _SPLITS,
    )
    return then_turned(p, config)


def normed_linear(p: Params) -> LaunchConfig:
    """The rule of `normed_linear`: as `linear` of one row."""
    n, k = as_int(p, "n"), as_int(p, "k")
    parts = 2 if p["gated"] else 1
    if n == 0:
        return LaunchConfig(())
    # Every warp computes the norm again: it is to serve two columns where there are many.
    return _streams(
        n,
        parts,
        columns=1,
        loads=blocks(k * _size(p["w_dtype"]), 16 * 32),
        path=KernelPath.GEMV_SIMT,
        arguments=linear_operands(p),
        rows=2 if n * parts > _MATMUL.many_streams else 1,
    )


def _streams(
    n: int, parts: int, *, columns: int, loads: int, path: KernelPath, arguments: int, rows: int = 1
) -> LaunchConfig:
    """Warps that stream rows of W, in groups that share K where there are few rows.

    Args:
        columns: of y that a stream serves.
        loads: of 16 bytes of a lane, were K not shared.
        rows: streams of a warp.
    """
    wide = columns > 1  # a lane has 16 bytes of a row's 64, not of 512: fewer warps share K
    most = 2 if wide and n * parts > _MATMUL.many_streams else 8
    split = 1
    while split < most and loads > _MATMUL.stream_loads * split:
        split *= 2
    warps = max(4, split) if wide else 8
    grid = blocks(n, columns * rows * (warps // split))
    defines = {
        "PATH": path,
        "BLOCK": 32 * warps,
        "SPLIT": split,
        "ROWS": rows,
        "LOADS": 12,
        "ARGUMENTS": arguments,
    }
    return LaunchConfig((Launch((grid, 1, 1), (32 * warps, 1, 1)),), defines=defines)


def tiled(
    m: int,
    n: int,
    k: int,
    *,
    parts: int,
    tensor_cores: bool,
    arguments: int,
    batch: int = 1,
    shapes: tuple[TileShape, ...] = (),
    splits: tuple[int, ...] = _SPLITS,
) -> LaunchConfig:
    """Returns the best tiles of y, of some shapes and split-K counts.

    Args:
        tensor_cores: whether they multiply the operands as they are, else in parts.
        batch: how many matrix products there are.
    """
    _, shape, split = _best(m, n, k, parts, batch, tensor_cores, shapes, splits)
    if shape in TILES:
        shape = replace(
            shape, stages=_stages(shape, blocks(m, shape.rows), n * parts, split * batch)
        )
    threads = shape.threads
    slice_k = blocks(blocks(k, split), _DEPTH) * _DEPTH
    split = blocks(k, slice_k) if slice_k else 1
    grid = (blocks(m, shape.rows), blocks(n * parts, shape.columns), split * batch)
    shared = shape.shared if tensor_cores else shape.float_shared
    defines = {
        "PATH": KernelPath.TILE_MMA if tensor_cores else KernelPath.TILE_FLOAT,
        "BLOCK": threads,
        "SPLIT": split,
        "TILE_ROWS": shape.rows,
        "TILE_COLUMNS": shape.columns,
        "TENSOR_CORES": int(tensor_cores),
        "WARPS_M": shape.warps_m,
        "WARPS_N": shape.warps_n,
        "STAGES": shape.stages,
        "ARGUMENTS": arguments + (split > 1),
    }
    launches = [Launch(grid, (threads, 1, 1), shared)]
    if split == 1:
        return LaunchConfig(tuple(launches), overlaps=False, defines=defines)
    combine = (blocks(m * n * batch, _BLOCK), 1, 1)
    launches.append(Launch(combine, (_BLOCK, 1, 1), entry="npusim_combine"))
    scratch = 4 * split * m * n * parts * batch
    return LaunchConfig(tuple(launches), scratch, overlaps=False, defines=defines)


def tiled_microseconds(
    m: int, n: int, k: int, *, parts: int = 1, tensor_cores: bool, batch: int = 1
) -> float:
    """Returns about how long the tiles take that `tiled` chooses, by what was measured of them.

    Without what the first round takes to begin.
    """
    time, shape, _ = _best(m, n, k, parts, batch, tensor_cores, (), _SPLITS)
    return time - _start(_DEPTH if tensor_cores else _FLOAT_DEPTH) * shape.step_us


def _best(
    m: int,
    n: int,
    k: int,
    parts: int,
    batch: int,
    tensor_cores: bool,
    shapes: tuple[TileShape, ...],
    splits: tuple[int, ...],
) -> tuple[float, TileShape, int]:
    """Returns the least time of tiles of y in microseconds, their shape, and the slices of K."""
    shapes = shapes or (TILES if tensor_cores else FLOAT_TILES)
    depth = _DEPTH if tensor_cores else _FLOAT_DEPTH
    choices = [
        (_time(s, split, m, n, k, parts, batch, depth), s.rows * s.columns, i, split)
        for i, s in enumerate(shapes)
        for split in splits
        if split == splits[0] or blocks(k, split) >= 2 * _DEPTH
    ]
    time, _, index, split = min(choices)
    return time, shapes[index], split


def _stages(s: TileShape, row_tiles: int, columns: int, splits: int) -> int:
    """Returns how many blocks of K fit in shared memory beside the tiles of other blocks."""
    tiles = row_tiles * blocks(columns, s.columns) * splits
    beside = min(blocks(tiles, PROCESSORS), 2 if s.rows * s.columns > 8192 else 3)
    each = (s.rows + s.columns) * _DEPTH * 2
    return max(3, min(8, min(MOST_SHARED, _MATMUL.tile_shared_bytes // beside) // each))


def _time(
    s: TileShape, split: int, m: int, n: int, k: int, parts: int, batch: int, depth: int
) -> float:
    """Returns about how many microseconds a product's tiles take, K cut into `split` splits."""
    tiles = blocks(m, s.rows) * blocks(n * parts, s.columns) * split * batch
    waves = blocks(tiles, PROCESSORS) if tiles < 4 * PROCESSORS else tiles / PROCESSORS
    step = s.alone_step_us if waves == 1 else s.step_us
    time = waves * (blocks(k, split * depth) + _start(depth)) * step
    if split > 1:
        moved = 8 * split * m * n * parts * batch
        time += _MATMUL.combine_us + moved / _MATMUL.partial_bytes_per_us
    return time


def _start(depth: int) -> int:
    """Returns the steps that a round of tiles takes to begin and to end."""
    return _MATMUL.start_steps if depth == _DEPTH else _MATMUL.float_start_steps


def _simt_shared(rows: int, columns: int) -> int:
    """Bytes of SimtTile::Shared in matmul/simt_tile.h, whose numbers have 64 bits."""
    return 2 * _SIMT_DEPTH * (rows + 4 + columns + 4) * 8


def on_tensor_cores(x: object, w: object) -> bool:
    """Tells whether the tensor cores multiply operands of two dtypes as they are."""
    return x == w and w in (_FLOAT16, _BFLOAT16)


def _size(dtype: object) -> int:
    return 4 if dtype == _FLOAT32 else 2


def is_sole(count: int) -> bool:
    """Tells whether a launch of so many blocks leaves processors free, and each block is to be the
    only one of the launch on its processor."""
    return count <= GPU.one_order.sole_share * PROCESSORS


def leaves_norm(p: Params) -> bool:
    """Tells whether a product is `linear_before_norm`, with two results more."""
    return "slots" in p and "norm_eps" not in p


def rotates(p: Params) -> bool:
    """Tells whether a product is `linear_rope_append`, whose columns are turned and appended."""
    return "kv_heads" in p


def product_of(p: Params) -> Params:
    """Returns the parameters of a `linear_rope_append`'s product alone; other products are that."""
    if not rotates(p):
        return p
    stem = "linear_behind_norm" if p["slots"] else "linear"
    return {name: p[name] for name, _, _ in KERNELS[stem].fields}


def then_turned(p: Params, config: LaunchConfig) -> LaunchConfig:
    """Returns the launches of a product, and the one that turns and appends its columns, if any.

    The product itself lies in scratch memory then.
    """
    if not rotates(p) or not config.launches:
        return config
    units = blocks(as_int(p, "n"), 16)  # two chunks of 16 bytes
    threads = min(_BLOCK, max(64, blocks(units, LANES) * LANES))
    launch = Launch((as_int(p, "m"), 1, 1), (threads, 1, 1), entry="npusim_rope")
    launches = (*config.launches, launch)
    return with_scratch(p, replace(config, launches=launches), ROPE_BLOCK=threads)


def with_scratch(p: Params, config: LaunchConfig, **defines: int) -> LaunchConfig:
    """Returns the configuration of a `linear_rope_append`, with room for its product."""
    room = 2 * as_int(p, "m") * as_int(p, "n")
    defines = {**config.defines, "ARGUMENTS": linear_operands(p), **defines}
    return replace(config, scratch=room, failure=True, defines=defines)


def linear_operands(p: Params) -> int:
    """How many arguments a `linear` has, or what is linear but for what is beside it."""
    if rotates(p):  # the angles, the places, the pools, scratch memory and the failure
        squares = int(bool(p["slots"]))
        return 1 + as_int(p, "segments") + squares + epilogue_operands(p) + 2 + 3 + 2 + 2
    norm = int("slots" in p or "norm_eps" in p) + 2 * leaves_norm(p)
    return 1 + as_int(p, "segments") + epilogue_operands(p) + norm


def epilogue_operands(p: Params) -> int:
    """How many of bias, residual and y there are."""
    return int(bool(p["has_bias"])) + int(bool(p["residual"])) + 1


def quantize(p: Params) -> LaunchConfig:
    """The rule of `quantize`: a warp a row of bytes, a thread a group of int4."""
    k = blocks(as_int(p, "k"), 128) * 128
    each = 32 if p["format"] in BYTE_CODES else k // as_int(p, "group")
    return line(as_int(p, "rows") * each, ARGUMENTS=2)


def quantized_linear(p: Params) -> LaunchConfig:
    """The rule of `quantized_linear`."""
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    parts = 2 if p["gated"] else 1
    if m * n == 0:
        return LaunchConfig(())
    arguments = 1 + as_int(p, "segments") + epilogue_operands(p)
    if m > _MATMUL.quantized_stream_rows:
        tensor_cores = on_tensor_cores(p["x_dtype"], p["x_dtype"])
        return tiled(m, n, k, parts=parts, tensor_cores=tensor_cores, arguments=arguments)
    loads = blocks(k, 32 * (16 if p["format"] in BYTE_CODES else 32))
    return _streams(
        n, parts, columns=1, loads=loads, path=KernelPath.GEMV_SIMT, arguments=arguments
    )


def matmul(p: Params) -> LaunchConfig:
    """The rule of `matmul`."""
    m, n = as_int(p, "m"), as_int(p, "n")
    batch = prod(as_ints(p, "batch"))
    if m * n * batch == 0:
        return LaunchConfig(())
    path, shape, _ = _matmul_tile(p)
    grid = (blocks(m, shape.rows) * batch, blocks(n, shape.columns), 1)
    defines = {"PATH": path, "TILE_ROWS": shape.rows, "TILE_COLUMNS": shape.columns, "ARGUMENTS": 3}
    threads, shared = _SIMT_THREADS, _simt_shared(shape.rows, shape.columns)
    if path != KernelPath.TILE_SIMT:
        threads = shape.threads
        shared = shape.shared if path == KernelPath.TILE_MMA else shape.float_shared
        defines |= {"WARPS_M": shape.warps_m, "WARPS_N": shape.warps_n, "STAGES": shape.stages}
    launch = Launch(grid, (threads, 1, 1), shared)
    return LaunchConfig((launch,), overlaps=False, defines={**defines, "BLOCK": threads})


def matmul_microseconds(p: Params) -> float:
    """Returns about how long the tiles of a `matmul` take, likewise."""
    path, shape, time = _matmul_tile(p)
    return time - _start(_DEPTH if path == KernelPath.TILE_MMA else _FLOAT_DEPTH) * shape.step_us


def _matmul_tile(p: Params) -> tuple[KernelPath, TileShape, float]:
    """Returns the path of a `matmul`, the tile that takes least, and its microseconds."""
    m, n, k, batch = as_int(p, "m"), as_int(p, "n"), as_int(p, "k"), prod(as_ints(p, "batch"))
    contiguous = p["a_k"] == 1 and 1 in (p["b_k"], p["b_n"])
    if contiguous and on_tensor_cores(p["dtype"], p["dtype"]):
        path, shapes, depth = KernelPath.TILE_MMA, TILES, _DEPTH
    elif p["dtype"] in _SUMMED_IN_FLOAT32:
        path, shapes, depth = KernelPath.TILE_FLOAT, FLOAT_TILES, _FLOAT_DEPTH
    else:
        path, shapes, depth = KernelPath.TILE_SIMT, _SIMT, _SIMT_DEPTH
    times = ((_time(s, 1, m, n, k, 1, batch, depth), s.rows, i) for i, s in enumerate(shapes))
    time, _, index = min(times)
    return path, shapes[index], time


RULES: Mapping[str, Rule] = {
    "linear": linear,
    "linear_before_norm": linear_beside_norm,
    "linear_behind_norm": linear_beside_norm,
    "linear_rope_append": linear_beside_norm,
    "matmul": matmul,
    "quantize": quantize,
    "quantized_linear": quantized_linear,
}
