"""How the CPU backend's kernels cut a product into tasks, and what the busiest core has of it.

The rules are the kernels' own, whose sizes follow from the float32 of a vector (`sizes_for`):

* `panels`: `TaskGrid` of kernels/cpu/igemm.h as kernels/cpu/gemm.cpp uses it, of weights in panels
  of 16 columns;
* `blocks`: `Plan` of kernels/cpu/matmul.cpp, of two tensors;
* `points`: `Plan` of kernels/cpu/conv_winograd.cpp, of tiles of an image that are transformed: a
  product for each point of a tile, of the tiles by the transformed kernels.

tests/simulate/test_shares.py holds the number of tasks to what the kernels say.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from npusim.targets.roofline import GRIDS

PANELS, BLOCKS, POINTS, _ = GRIDS

_PANEL_COLUMNS = 16
_SMALL, _TASK = 1 << 18, 1 << 20  # multiplications with an addition
_FEW_ROWS, _TASKS, _UNEVEN = 8, 48, 8
_BLOCK_ROWS, _BLOCK_COLUMNS, _FEW_BLOCK_ROWS = 192, 256, 4
_BLOCK_TASK, _SHARED, _BLOCK = 1 << 16, 1 << 18, 1 << 20  # multiplications with an addition
_FEWEST_TILES, _POINT_CELLS = 16, 4
_UNITS = 8  # that a core's part of a command is claimed in (cpp/cpu/command_list.cpp)
_MANY = 64  # tasks of which cores get even parts, nearly
WIDEST = 16  # float32 of the widest vectors there are kernels for


@dataclass(frozen=True, slots=True)
class KernelSizes:
    """Sizes that kernels have for vectors of some width.

    Attributes:
        lanes: float32 of a vector.
        tile_panels: panels of 16 columns that are multiplied at once.
        row_block: rows that share a pass over panels.
        point_floats: of a block of transformed tiles.
        block_panel: columns of two tensors' product that are multiplied at once.
    """

    lanes: int
    tile_panels: int
    row_block: int
    point_floats: int
    block_panel: int

    @property
    def columns(self) -> int:
        """Columns that are multiplied at once, whose sums a block of tiles holds at a time."""
        return self.tile_panels * _PANEL_COLUMNS


# Register files of 32 wide vectors hold the sums of four panels, others those of one.
_SIZES = {
    16: KernelSizes(16, 4, 120, 176 << 10, 64),
    8: KernelSizes(8, 1, 132, 88 << 10, 16),
    4: KernelSizes(4, 1, 120, 176 << 10, 16),
}


def sizes_for(lanes: int) -> KernelSizes:
    """Returns the sizes of kernels for vectors of so many float32: 16, 8 or 4."""
    return _SIZES[lanes]


def tasks_of(
    grid: str, groups: int, rows: int, columns: int, depth: int, lanes: int = WIDEST
) -> list[int]:
    """Returns the elements of the result that each task computes, in the order they are claimed.

    Args:
        grid: one of `targets.roofline.GRIDS`.
        groups, rows, columns, depth: of the product; at least 1.
        lanes: float32 of the kernels' vectors.
    """
    sizes = sizes_for(lanes)
    if grid == PANELS:
        return _panel_tasks(groups * rows, columns, depth, sizes)
    if grid == POINTS:
        return _point_tasks(groups, rows, columns, depth, sizes)
    return _block_tasks(groups, rows, columns, depth, sizes)


def row_blocks(grid: str, rows: int, lanes: int = WIDEST) -> int:
    """Returns how often a second factor is gone through, by a block of rows each."""
    return _up(rows, _BLOCK_ROWS if grid == BLOCKS else sizes_for(lanes).row_block)


def tile_blocks(points: int, tiles: int, depth: int, lanes: int = WIDEST) -> list[int]:
    """Returns the tiles of each block that stays in a second cache, of images that are transformed.

    Args:
        points, tiles: of a tile, and how many tiles there are.
        depth: channels of the images.
    """
    sizes = sizes_for(lanes)
    width = _up(depth, lanes) * lanes + sizes.columns
    blocks = _up(tiles, max(sizes.point_floats // (points * width), _FEWEST_TILES))
    return [_even(tiles, blocks, at + 1) - _even(tiles, blocks, at) for at in range(blocks)]


def transformed(points: int, tiles: int, columns: int, depth: int, lanes: int = WIDEST) -> int:
    """Returns the numbers that are transformed: of images in each task anew, and of sums."""
    blocks = len(tile_blocks(points, tiles, depth, lanes))
    times = len(_point_tasks(points, tiles, columns, depth, sizes_for(lanes))) / blocks
    return round(points * tiles * (max(1.0, times) * depth + columns))


@cache
def busiest(grid: str, sizes: tuple[int, int, int, int], cores: int, lanes: int = WIDEST) -> float:
    """Returns the part of a product that the busiest of so many cores computes.

    As cpp/runtime/thread_pool.cpp has it: each has a share of neighbouring units, claims half of
    what is left of it at a time, and then of the others' shares.
    """
    tasks = tasks_of(grid, *sizes, lanes)
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


def _panel_tasks(rows: int, columns: int, depth: int, sizes: KernelSizes) -> list[int]:
    panels, limit = _up(columns, _PANEL_COLUMNS), sizes.row_block
    limit = min(limit, _up(rows, 2)) if panels == 1 and rows >= 16 else limit
    blocks = _up(rows, limit)
    work = max(rows, _FEW_ROWS) * columns * depth
    if work < _SMALL:
        return [rows * panels]
    cuts = _cuts(panels, blocks, min(work // _TASK, _TASKS), sizes.tile_panels)
    heights = [_even(rows, blocks, at + 1) - _even(rows, blocks, at) for at in range(blocks)]
    ends = [_first_panel(panels, cuts, at, sizes.tile_panels) for at in range(cuts + 1)]
    widths = [end - begin for begin, end in pairwise(ends)]
    if rows > columns:
        return [height * width for height in heights for width in widths]
    return [height * width for width in widths for height in heights]


def _cuts(panels: int, blocks: int, wanted: int, tile_panels: int) -> int:
    groups = _up(panels, tile_panels)
    cuts = min(max(wanted // blocks, 1), groups)
    if cuts >= _UNEVEN:
        return _up(groups, _up(groups, cuts))
    if blocks * cuts < _UNEVEN and blocks * cuts % 2 == 1:
        cuts += 1
    return min(cuts, panels)


def _first_panel(panels: int, cuts: int, at: int, tile_panels: int) -> int:
    groups = _up(panels, tile_panels)
    if cuts < _UNEVEN or cuts > groups:
        return _even(panels, cuts, at)
    return min(at * groups // cuts * tile_panels, panels)


def _block_tasks(groups: int, rows: int, columns: int, depth: int, sizes: KernelSizes) -> list[int]:
    blocks, across = row_blocks(BLOCKS, rows), _up(columns, _BLOCK_COLUMNS)
    items, height = blocks * groups, _up(rows, blocks)
    work = max(height, _FEW_BLOCK_ROWS) * columns * depth * items
    if work >= _SHARED and items * across < _UNEVEN:
        across = max(across, _up(min(work // _BLOCK, _UNEVEN), items))
        across = min(across + items * across % 2, _up(columns, sizes.lanes))
    least = 4 if items * across < _UNEVEN else 1
    panel = sizes.block_panel
    unit = sizes.lanes if _up(columns, panel) < least * across else panel
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


def _point_tasks(
    points: int, tiles: int, columns: int, depth: int, sizes: KernelSizes
) -> list[int]:
    heights = tile_blocks(points, tiles, depth, sizes.lanes)
    panels = _up(columns, _PANEL_COLUMNS)
    if tiles * points * columns * depth < _SMALL:
        return [tiles * panels]
    groups = _up(panels, sizes.tile_panels)
    cuts = min(max(_POINT_CELLS // len(heights), 1), groups)
    ends = [min(_even(groups, cuts, at) * sizes.tile_panels, panels) for at in range(cuts + 1)]
    widths = [end - begin for begin, end in pairwise(ends)]
    return [height * width for height in heights for width in widths]


def _even(total: int, parts: int, part: int) -> int:
    return part * (total // parts) + min(part, total % parts)


def _up(count: int, size: int) -> int:
    return -(-count // size)
