"""How the CPU backend's kernels cut a product into tasks, and what the busiest core has of it.

The rules are the kernels' own, with the sizes that they have for AVX-512:

* `panels`: `TaskGrid` of kernels/cpu/igemm.h as kernels/cpu/gemm.cpp uses it, of weights in panels
  of 16 columns;
* `blocks`: `Plan` of kernels/cpu/matmul.cpp, of two tensors;
* `points`: `Plan` of kernels/cpu/conv_winograd.cpp, of tiles of an image that are transformed: a
  product for each point of a tile, of the tiles by the transformed kernels.

tests/simulate/test_shares.py holds the number of tasks to what the kernels say.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from npusim.targets.roofline import GRIDS

PANELS, BLOCKS, POINTS, _ = GRIDS

_LANES = 16  # float32 of a vector, and columns of a panel
_TILE_PANELS = 4
_ROW_BLOCK = 120  # rows that share a pass over panels
_SMALL, _TASK = 1 << 18, 1 << 20  # multiplications with an addition
_FEW_ROWS, _TASKS, _UNEVEN = 8, 48, 8
_BLOCK_ROWS, _BLOCK_COLUMNS, _PANEL, _FEW_BLOCK_ROWS = 192, 256, 64, 4
_BLOCK_TASK, _SHARED, _BLOCK = 1 << 16, 1 << 18, 1 << 20  # multiplications with an addition
_POINT_FLOATS, _FEWEST_TILES, _POINT_CELLS = 176 << 10, 16, 4
POINT_COLUMNS = _TILE_PANELS * _LANES  # whose sums a block holds at a time
_UNITS = 8  # that a core's part of a command is claimed in (cpp/cpu/command_list.cpp)
_MANY = 64  # tasks of which cores get even parts, nearly


def tasks_of(grid: str, groups: int, rows: int, columns: int, depth: int) -> list[int]:
    """Returns the elements of the result that each task computes, in the order they are claimed.

    Args:
        grid: one of `targets.roofline.GRIDS`.
        groups, rows, columns, depth: of the product; at least 1.
    """
    if grid == PANELS:
        return _panel_tasks(groups * rows, columns, depth)
    if grid == POINTS:
        return _point_tasks(groups, rows, columns, depth)
    return _block_tasks(groups, rows, columns, depth)


def row_blocks(grid: str, rows: int) -> int:
    """Returns how often a second factor is gone through, by a block of rows each."""
    return _up(rows, _BLOCK_ROWS if grid == BLOCKS else _ROW_BLOCK)


def tile_blocks(points: int, tiles: int, depth: int) -> list[int]:
    """Returns the tiles of each block that stays in a second cache, of images that are transformed.

    Args:
        points, tiles: of a tile, and how many tiles there are.
        depth: channels of the images.
    """
    width = _up(depth, _LANES) * _LANES + POINT_COLUMNS
    blocks = _up(tiles, max(_POINT_FLOATS // (points * width), _FEWEST_TILES))
    return [_even(tiles, blocks, at + 1) - _even(tiles, blocks, at) for at in range(blocks)]


def transformed(points: int, tiles: int, columns: int, depth: int) -> int:
    """Returns the numbers that are transformed: of images in each task anew, and of sums."""
    blocks = len(tile_blocks(points, tiles, depth))
    times = len(_point_tasks(points, tiles, columns, depth)) / blocks
    return round(points * tiles * (max(1.0, times) * depth + columns))


@cache
def busiest(grid: str, sizes: tuple[int, int, int, int], cores: int) -> float:
    """Returns the part of a product that the busiest of so many cores computes.

    As cpp/runtime/thread_pool.cpp has it: each has a share of neighbouring units, claims half of
    what is left of it at a time, and then of the others' shares.
    """
    tasks = tasks_of(grid, *sizes)
    if len(tasks) > _MANY * cores:
        return 1 / cores
    each = max(1, len(tasks) // (cores * _UNITS)) if cores > 1 else len(tasks)
    units = [sum(tasks[begin : begin + each]) for begin in range(0, len(tasks), each)]
    ends = [len(units) * core // cores for core in range(cores + 1)]
    shares = [[begin, end] for begin, end in pairwise(ends)]
    loads = [0] * cores
    while True:
        core = min(range(cores), key=loads.__getitem__)
        order = (shares[(core + at) % cores] for at in range(cores))
        share = next((one for one in order if one[0] < one[1]), None)
        if share is None:
            return max(loads) / sum(loads)
        begin, share[0] = share[0], share[0] + (share[1] - share[0] + 1) // 2
        loads[core] += sum(units[begin : share[0]])


def _panel_tasks(rows: int, columns: int, depth: int) -> list[int]:
    panels = _up(columns, _LANES)
    limit = min(_ROW_BLOCK, _up(rows, 2)) if panels == 1 and rows >= 16 else _ROW_BLOCK
    blocks = _up(rows, limit)
    work = max(rows, _FEW_ROWS) * columns * depth
    if work < _SMALL:
        return [rows * panels]
    cuts = _cuts(panels, blocks, min(work // _TASK, _TASKS))
    heights = [_even(rows, blocks, at + 1) - _even(rows, blocks, at) for at in range(blocks)]
    ends = [_first_panel(panels, cuts, at) for at in range(cuts + 1)]
    widths = [end - begin for begin, end in pairwise(ends)]
    if rows > columns:
        return [height * width for height in heights for width in widths]
    return [height * width for width in widths for height in heights]


def _cuts(panels: int, blocks: int, wanted: int) -> int:
    groups = _up(panels, _TILE_PANELS)
    cuts = min(max(wanted // blocks, 1), groups)
    if cuts >= _UNEVEN:
        return _up(groups, _up(groups, cuts))
    if blocks * cuts < _UNEVEN and blocks * cuts % 2 == 1:
        cuts += 1
    return min(cuts, panels)


def _first_panel(panels: int, cuts: int, at: int) -> int:
    groups = _up(panels, _TILE_PANELS)
    if cuts < _UNEVEN or cuts > groups:
        return _even(panels, cuts, at)
    return min(at * groups // cuts * _TILE_PANELS, panels)


def _block_tasks(groups: int, rows: int, columns: int, depth: int) -> list[int]:
    blocks, across = row_blocks(BLOCKS, rows), _up(columns, _BLOCK_COLUMNS)
    items, height = blocks * groups, _up(rows, blocks)
    work = max(height, _FEW_BLOCK_ROWS) * columns * depth * items
    if work >= _SHARED and items * across < _UNEVEN:
        across = max(across, _up(min(work // _BLOCK, _UNEVEN), items))
        across = min(across + items * across % 2, _up(columns, _LANES))
    least = 4 if items * across < _UNEVEN else 1
    unit = _LANES if _up(columns, _PANEL) < least * across else _PANEL
    all_of = _up(columns, unit)
    ends = [min(_even(all_of, across, at) * unit, columns) for at in range(across + 1)]
    widths = [end - begin for begin, end in pairwise(ends)]
    heights = [min(height, rows - at * height) for at in range(blocks)]
    cells = [high * wide for high in heights for wide in widths]
    total = groups * len(cells)
    each = _up(total, min(max(work // _BLOCK_TASK, 1), total))
    return [
        sum(cells[at % len(cells)] for at in range(begin, min(begin + each, total)))
        for begin in range(0, total, each)
    ]


def _point_tasks(points: int, tiles: int, columns: int, depth: int) -> list[int]:
    heights, panels = tile_blocks(points, tiles, depth), _up(columns, _LANES)
    if tiles * points * columns * depth < _SMALL:
        return [tiles * panels]
    groups = _up(panels, _TILE_PANELS)
    cuts = min(max(_POINT_CELLS // len(heights), 1), groups)
    ends = [min(_even(groups, cuts, at) * _TILE_PANELS, panels) for at in range(cuts + 1)]
    widths = [end - begin for begin, end in pairwise(ends)]
    return [height * width for height in heights for width in widths]


def _even(total: int, parts: int, part: int) -> int:
    return part * (total // parts) + min(part, total % parts)


def _up(count: int, size: int) -> int:
    return -(-count // size)
