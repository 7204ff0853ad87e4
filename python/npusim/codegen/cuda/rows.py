"""Launch configurations of what works along rows: `codegen/rows.py` on CUDA, and sampling."""

from __future__ import annotations

from npusim.abi.kernels import Params
from npusim.codegen.cuda.group_norms import group_norm
from npusim.codegen.cuda.matmul_rules import GPU, PROCESSORS
from npusim.codegen.cuda.sorts import sort
from npusim.codegen.launch_config import MAX_THREADS, Launch, LaunchConfig, Rule
from npusim.codegen.rows import RowRules

_SAMPLE_RANKS = 8  # blocks of a cluster, which every device with clusters takes
_SAMPLE_EXCHANGE = 256 * 8 + 256  # some candidates, and a few sums
_ROWS = RowRules(GPU.rows, PROCESSORS, PROCESSORS * GPU.processors.threads, shares_lanes=True)


def _sample(p: Params) -> LaunchConfig:
    """A cluster shares the scores; after what its blocks exchange lie eight bytes a score."""
    launch = Launch((_SAMPLE_RANKS, 1, 1), (MAX_THREADS, 1, 1))
    defines = {"BLOCK": MAX_THREADS, "RANKS": _SAMPLE_RANKS, "EXCHANGE": _SAMPLE_EXCHANGE}
    scratch = _SAMPLE_EXCHANGE + 8 * (p["size"] + 3)
    return LaunchConfig((launch,), scratch=scratch, failure=True, defines=defines)


def norm_in_one_order(p: Params) -> LaunchConfig:
    """The rule of `norm` where a row's bits are to be the same for any number of rows."""
    return _ROWS.norm_in_one_order(p)


def _group_norm(p: Params) -> LaunchConfig:
    """Many blocks share a group where they can read whole packs of its channels."""
    return group_norm(p) or _ROWS.rules["group_norm"](p)


RULES: dict[str, Rule] = {
    **_ROWS.rules,
    "group_norm": _group_norm,
    "sample": _sample,
    "sort": sort,
}
