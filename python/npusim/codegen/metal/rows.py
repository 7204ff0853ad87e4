"""Launch configurations of what works along rows on Apple's GPUs: `codegen/rows.py`, sampling."""

from __future__ import annotations

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import MAX_THREADS, Launch, LaunchConfig, Rule
from npusim.codegen.rows import RowRules
from npusim.targets.measured import Rows

# Nothing was measured on these GPUs. Sizes follow from what a thread holds in registers, 32 numbers
# of a row, and from a GPU of 8 cores that hold 1,024 threads each, the smallest Mac's.
_FIT = Rows(
    warp_elements=1024,
    short_elements=128,
    block_elements=8192,
    split_elements=4096,
    scan_elements=64,
    scan_lanes=4096,
    pool_threads=8192,
)
_CORES = 8
_ROWS = RowRules(_FIT, _CORES, _CORES * 1024)


def _sample(p: Params) -> LaunchConfig:
    """One threadgroup, and a key for each score."""
    launch = Launch((1, 1, 1), (MAX_THREADS, 1, 1))
    scratch = 4 * p["size"]
    return LaunchConfig((launch,), scratch, failure=True, defines={"BLOCK": MAX_THREADS})


RULES: dict[str, Rule] = {
    **_ROWS.rules,
    "sample": _sample,
}
