"""Launch configurations of matrix products: linear, matmul, grouped and quantized ones.

Rules do not know the GPU family: tiles have the same shape and threads whether SIMD groups multiply
matrices or threads numbers, which a text decides by NPUSIM_HAS_SIMDGROUP_MATRIX.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from npusim.abi.kernels import Params
from npusim.abi.quantization import BLOCK, BYTE_CODES
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, as_int, as_ints, blocks, line
from npusim.codegen.metal.device import (
    FEW_PART_DEPTH,
    LARGE_TILES,
    PART_DEPTH,
    TILES_TO_FILL,
)

_FLOAT32, _FLOAT16, _BFLOAT16, _INT64 = 0, 1, 2, 4
REAL = (_FLOAT32, _FLOAT16, _BFLOAT16)
THREADS = 128  # of a tile: four SIMD groups
FEW_ROWS = 4  # of x, that a SIMD group passes over a row of W with
_FEW_GROUPS = 8  # SIMD groups of a threadgroup, where x has few rows
PART_STEP = 128  # what parts of K are multiples of: all steps divide it
_COMBINE_THREADS = 64
_MATMUL_SCRATCH = 3  # behind a, b and y
_WIDE_COLUMNS = 128  # of a matrix whose columns are neighbours: lanes take several
_MANY_ROWS = 2048  # of W: a SIMD group takes several, and x once for all of them


def tile(m: int, n: int, staged: int, *, parts: int = 1, batch: int = 1) -> dict[str, int]:
    """Returns the defines of kernels/metal/matmul/tile.h.

    Args:
        n: columns of y; each takes `parts` sums.
        staged: the dtype of elements in threadgroup memory.
        batch: how many products there are.
    """
    large = blocks(m, 64) * blocks(n * parts, 64) * batch >= LARGE_TILES and staged in REAL
    side = 64 if large else 32
    return {
        "TILE_ROWS": side,
        "TILE_COLUMNS": side,
        "DEPTH": 32 if staged in (_FLOAT16, _BFLOAT16) else 16,
        "STAGED": staged,
        "PARTS": parts,
    }


def staged_dtype(x: int, w: int) -> int:
    """Returns what both operands become in threadgroup memory."""
    return x if x == w else _FLOAT32


def epilogue_places(p: Params, first: int) -> dict[str, int]:
    """Returns where bias, residual and y are bound, from buffer `first` on; 0: it is none."""
    residual = first + bool(p["has_bias"])
    return {
        "BIAS": first if p["has_bias"] else 0,
        "RESIDUAL": residual if p["residual"] else 0,
        "Y": residual + bool(p["residual"]),
    }


def _linear(p: Params, w_dtype: int) -> LaunchConfig:
    m, n, parts = as_int(p, "m"), as_int(p, "n"), 2 if p["gated"] else 1
    if m * n == 0:
        return LaunchConfig(())
    segments, norm = as_int(p, "segments"), int("norm_eps" in p)
    places = epilogue_places(p, 1 + segments + norm)
    defines = {"SEGMENTS": segments, "FEW": 0, "NORM": norm * (1 + segments), **places}
    if m <= FEW_ROWS:
        each = 4 // parts if n * parts >= _MANY_ROWS else 1
        defines |= {"FEW": m, "EACH": each, "STAGED": _FLOAT32, "PARTS": parts}
        groups = blocks(n, _FEW_GROUPS * each)
        least = as_int(p, "k") if norm else FEW_PART_DEPTH  # each part would need all squares
        return _in_parts(p, groups, 32 * _FEW_GROUPS, least, places["Y"] + 1, defines)
    assert not norm
    shape = tile(m, n, staged_dtype(as_int(p, "x_dtype"), w_dtype), parts=parts)
    rows = blocks(m, shape["TILE_ROWS"])
    columns = blocks(n * parts, shape["TILE_COLUMNS"])
    defines |= {**shape, "ROW_TILES": rows}
    return _in_parts(p, rows * columns, THREADS, PART_DEPTH, places["Y"] + 1, defines)


def _in_parts(
    p: Params,
    count: int,
    threads: int,
    least: int,
    partial: int,
    defines: Mapping[str, int],
    batch: int = 1,
) -> LaunchConfig:
    """Returns `count` threadgroups, or where they are few, so many for each of some parts of K.

    A second launch then adds up what the parts have left in scratch memory (matmul/split.h).

    Args:
        least: of K, that is worth a part; it keeps parts at the beginning of steps.
        partial: the buffer of the scratch memory.
        batch: products.
    """
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    split = max(1, min(TILES_TO_FILL // count, k // max(least, 1)))
    each = blocks(blocks(k, split), PART_STEP) * PART_STEP
    split = max(1, blocks(k, each) if each else 1)
    launches = [Launch((count * split, 1, 1), (threads, 1, 1))]
    scratch = 0
    if split > 1:
        grid = (blocks(m * n * batch, _COMBINE_THREADS), 1, 1)
        launches.append(Launch(grid, (_COMBINE_THREADS, 1, 1), entry="npusim_combine"))
        sum_bytes = 4 if defines["STAGED"] in REAL else 8
        scratch = sum_bytes * split * batch * m * n * defines["PARTS"]
    numbers = {
        "TILES": count,
        "SPLIT": split,
        "DEPTH_EACH": each,
        "PARTIAL": partial,
        "COMBINE": _COMBINE_THREADS,
    }
    return LaunchConfig(tuple(launches), scratch, defines={**defines, **numbers})


def linear(p: Params) -> LaunchConfig:
    """The rule of `linear` and `normed_linear`."""
    return _linear(p, as_int(p, "w_dtype"))


def quantize(p: Params) -> LaunchConfig:
    """The rule of `quantize`: 32 threads a row of bytes, a thread a group of int4."""
    padded = blocks(as_int(p, "k"), BLOCK) * BLOCK
    each = 32 if p["format"] in BYTE_CODES else padded // as_int(p, "group")
    return line(as_int(p, "rows") * each)


def quantized_linear(p: Params) -> LaunchConfig:
    """The rule of quantized linears, whose weights become numbers of x's dtype."""
    return _linear(p, as_int(p, "x_dtype"))


def matmul(p: Params) -> LaunchConfig:
    """The rule of `matmul`: streams of the other operand by few rows or columns, or tiles."""
    m, n, batch = as_int(p, "m"), as_int(p, "n"), prod(as_ints(p, "batch"))
    if m * n * batch == 0:
        return LaunchConfig(())
    defines = {"FEW": 0, "NORM": 0, "ITEMS": batch}
    if min(m, n) <= FEW_ROWS and p["dtype"] in REAL:
        swapped = m > FEW_ROWS
        columns = m if swapped else n
        along, across = (p["a_k"], p["a_m"]) if swapped else (p["b_k"], p["b_n"])
        if along != 1 and across == 1:
            each = 4 if columns >= _WIDE_COLUMNS else 1
            tiles = blocks(columns, 32 * each)
        else:
            each = 4 if columns >= _MANY_ROWS else 1
            tiles = blocks(columns, _FEW_GROUPS * each)
        defines |= {
            "FEW": n if swapped else m,
            "SWAPPED": int(swapped),
            "ACROSS": int(along != 1 and across == 1),
            "EACH": each,
            "STAGED": _FLOAT32,
            "PARTS": 1,
            "ROW_TILES": 1,
            "COLUMN_TILES": tiles,
        }
        threads = 32 * _FEW_GROUPS
        return _in_parts(p, tiles * batch, threads, FEW_PART_DEPTH, _MATMUL_SCRATCH, defines, batch)
    shape = tile(m, n, _staged(p), batch=batch)
    rows, columns = blocks(m, shape["TILE_ROWS"]), blocks(n, shape["TILE_COLUMNS"])
    defines |= {**shape, "ROW_TILES": rows, "COLUMN_TILES": columns}
    count = rows * columns * batch
    return _in_parts(p, count, THREADS, PART_DEPTH, _MATMUL_SCRATCH, defines, batch)


def grouped_matmul(p: Params) -> LaunchConfig:
    """The rule of `grouped_matmul`: as many tiles as any offsets can need.

    Every group, and the rows after all of them, may end within a tile; none is empty that has one.
    """
    m, n, groups = as_int(p, "m"), as_int(p, "n"), as_ints(p, "batch")[5]
    if m * n == 0:
        return LaunchConfig(())
    shape = tile(blocks(m, max(groups, 1)), n, _staged(p), batch=max(groups, 1))
    rows = m // shape["TILE_ROWS"] + min(groups + 1, m)
    return tiles(rows * blocks(n, shape["TILE_COLUMNS"]), {**shape, "ROW_TILES": rows})


def tiles(count: int, defines: Mapping[str, int]) -> LaunchConfig:
    """Returns the launch of some tiles."""
    return LaunchConfig((Launch((count, 1, 1), (THREADS, 1, 1)),), defines=defines)


def _staged(p: Params) -> int:
    """Integers are added up as int64."""
    dtype = as_int(p, "dtype")
    return dtype if dtype in REAL else _INT64


RULES: Mapping[str, Rule] = {
    "linear": linear,
    "normed_linear": linear,
    "matmul": matmul,
    "grouped_matmul": grouped_matmul,
    "quantize": quantize,
    "quantized_linear": quantized_linear,
    "normed_quantized_linear": quantized_linear,
}
