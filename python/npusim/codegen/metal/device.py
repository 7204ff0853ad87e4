"""What launch rules take Apple's GPUs for: the one place of numbers that a measurement may change.

Nothing was measured on one. Sizes follow from a GPU of 8 cores that hold 1,024 threads each, the
smallest Mac's, and from what a thread holds in registers, 32 numbers beside what it computes with.
"""

from __future__ import annotations

from npusim.targets import TargetConfig
from npusim.targets.measured import Rows

_LIMITS = TargetConfig.named("metal:apple7").launches
assert _LIMITS is not None
THREADGROUP_BYTES = _LIMITS.shared_bytes
CORES = 8
CORE_THREADS = 1024
LANE_NUMBERS = 32

# What works along rows (`codegen/rows.py`), and pooling.
ROWS = Rows(
    warp_elements=1024,
    short_elements=128,
    block_elements=8192,
    split_elements=4096,
    scan_elements=64,
    scan_lanes=4096,
    pool_threads=16384,
)

# Tiles of a product: where those of 64 rows and columns are this many, they fill the cores.
LARGE_TILES = CORES * 8
# A product of fewer tiles has K in parts; so has one of few rows with fewer threadgroups.
TILES_TO_FILL = CORES * 4
PART_DEPTH, FEW_PART_DEPTH = 256, 1024  # of K, that are worth a threadgroup of their own
# Keys of attention, that are worth a threadgroup of their own.
PART_KEYS = 128


def parts_to_fill(threadgroups: int, threads: int, most: int) -> int:
    """Returns in how many parts each threadgroup's work should go to fill the cores.

    Args:
        threadgroups: that there are without.
        threads: of each.
        most: parts that are worth a threadgroup.
    """
    wanted = -(-CORES * CORE_THREADS // (threads * threadgroups))
    return max(1, min(wanted, most))
