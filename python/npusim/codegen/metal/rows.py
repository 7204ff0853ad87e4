"""Launch configurations of what works along rows on Apple's GPUs: `codegen/rows.py`, sampling."""

from __future__ import annotations

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import MAX_THREADS, Launch, LaunchConfig, Rule
from npusim.codegen.metal.device import CORE_THREADS, CORES, ROWS
from npusim.codegen.rows import RowRules

_ROWS = RowRules(ROWS, CORES, CORES * CORE_THREADS)


def _sample(p: Params) -> LaunchConfig:
    """One threadgroup, and a key for each score."""
    launch = Launch((1, 1, 1), (MAX_THREADS, 1, 1))
    scratch = 4 * p["size"]
    return LaunchConfig((launch,), scratch, failure=True, defines={"BLOCK": MAX_THREADS})


RULES: dict[str, Rule] = {
    **_ROWS.rules,
    "sample": _sample,
}
