"""How many tasks there are of a product: the kernels' own numbers, and what follows from them."""

from __future__ import annotations

import pytest

from npusim.simulate.shares import busiest, row_blocks, tasks_of, tile_blocks, transformed
from npusim.targets.roofline import GRIDS

# What tests/cpp/test_gemm.cpp, test_matmul.cpp and test_conv_winograd.cpp hold the kernels to.
PANELS = {
    (1, 64, 88, 352): 2, (1, 2, 160, 384): 2, (1, 100, 72, 840): 2, (1, 256, 72, 168): 6,
    (1, 64, 296, 480): 6, (1, 1024, 64, 4584): 9, (1, 32, 5512, 1160): 44, (1, 16, 16, 3136): 2,
    (1, 4, 24, 40): 1, (1, 1, 151936, 64): 48, (1, 99, 400, 190): 8,
}  # fmt: skip
BLOCKS = {
    (1, 30, 144, 1592): 6, (32, 16, 24, 128): 16, (1, 12, 200, 160): 2, (2, 203, 48, 160): 4,
    (1, 1, 552, 3304): 6, (12, 11, 592, 112): 36, (1, 65, 32, 32): 1, (4, 478, 520, 32): 36,
    (1, 5, 16, 16): 1, (16, 205, 832, 32): 128,
}  # fmt: skip
POINTS = {
    (36, 196, 64, 64): 6, (36, 49, 128, 128): 4, (16, 49, 256, 256): 4, (16, 49, 512, 512): 3,
    (36, 16, 128, 256): 2, (36, 784, 32, 176): 40, (16, 49, 112, 48): 2, (36, 49, 304, 48): 4,
    (36, 256, 64, 192): 14, (16, 16, 16, 16): 1,
}  # fmt: skip
# The same shapes with vectors of 8 floats; of blocks there are as many.
NARROW_PANELS = dict(zip(PANELS, (2, 2, 5, 2, 7, 32, 44, 2, 1, 48, 8), strict=True))
NARROW_POINTS = dict(zip(POINTS, (7, 3, 3, 4, 4, 49, 4, 4, 16, 1), strict=True))
CASES = [
    (grid, sizes, tasks, lanes)
    for lanes, told in (
        (16, {"panels": PANELS, "blocks": BLOCKS, "points": POINTS}),
        (8, {"panels": NARROW_PANELS, "blocks": BLOCKS, "points": NARROW_POINTS}),
    )
    for grid, cases in told.items()
    for sizes, tasks in cases.items()
]


@pytest.mark.parametrize(("grid", "sizes", "tasks", "lanes"), CASES)
def test_tasks_are_the_kernels(
    grid: str, sizes: tuple[int, int, int, int], tasks: int, lanes: int
) -> None:
    found = tasks_of(grid, *sizes, lanes)
    assert len(found) == tasks and min(found) > 0
    groups, rows, columns, _ = sizes
    covered = groups * rows * columns if grid == "blocks" else rows * -(-columns // 16)
    assert sum(found) == covered


@pytest.mark.parametrize("grid", GRIDS)
def test_a_core_computes_at_least_its_part_and_at_most_all(grid: str) -> None:
    for rows in (1, 7, 16, 33, 121, 200, 1000):
        for columns in (1, 16, 17, 80, 300, 5000):
            for depth in (1, 40, 500, 3000):
                for cores in (1, 2, 8):
                    part = busiest(grid, (2, rows, columns, depth), cores)
                    assert 1 / cores - 1e-12 <= part <= 1
                    assert cores > 1 or part == 1


def test_small_products_are_one_task_and_larger_ones_are_shared() -> None:
    assert busiest("panels", (1, 64, 64, 32), 2) == 1
    assert busiest("panels", (1, 64, 64, 64), 2) == 0.5
    assert busiest("blocks", (1, 64, 64, 32), 2) == 1
    assert busiest("blocks", (1, 64, 64, 64), 2) == 0.5
    assert busiest("panels", (1, 100, 72, 840), 2) == 0.6  # three panels and two
    # Panels by 4, 4, 4 and by 4, 3, 3: a share of neighbours each, and nothing left to claim.
    assert busiest("panels", (1, 100, 344, 1813), 2) == 12 / 22


def test_blocks_of_tiles_stay_in_a_second_cache() -> None:
    # 36 points of 64 channels and as many sums in 176 Ki floats: 39 tiles.
    assert tile_blocks(36, 196, 64) == [33, 33, 33, 33, 32, 32]
    assert tile_blocks(36, 20, 2000) == [10, 10]  # at least 16 at a time, in even parts
    # Two tasks of a block transform its 16 tiles each, and what comes out once.
    assert transformed(36, 16, 128, 256) == 36 * 16 * (2 * 256 + 128)
    assert transformed(36, 196, 64, 64) == 36 * 196 * (64 + 64)
    assert transformed(16, 16, 16, 16) == 16 * 16 * (16 + 16)  # all by one core


def test_blocks_of_rows_go_through_a_second_factor_each() -> None:
    assert [row_blocks("panels", rows) for rows in (1, 120, 121)] == [1, 1, 2]
    assert [row_blocks("blocks", rows) for rows in (192, 193, 600)] == [1, 2, 4]
