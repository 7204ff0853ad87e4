"""Launch configurations of exchanges between ranks (`kernels/cuda/ranks`)."""

from __future__ import annotations

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import (
    LANES,
    Launch,
    LaunchConfig,
    Rule,
    as_int,
    blocks,
)

# Few blocks: those of all ranks have to run at once, beside whatever else runs, and what small
# messages take is the way there, not the bandwidth.
_BLOCKS = 32  # kExchangeBlocks in kernels/cuda/ranks/exchange.h
_LEAST, _MOST = 2048, 16384  # bytes of a block in a round; kChunk there
_VECTOR, _MOST_THREADS = 16, 512


def _all_gather(p: Params) -> LaunchConfig:
    bytes = as_int(p, "bytes")
    if bytes == 0:
        return LaunchConfig(())
    part = min(max(blocks(blocks(bytes, _BLOCKS), _VECTOR) * _VECTOR, _LEAST), _MOST)
    grid = min(blocks(bytes, part), _BLOCKS)
    threads = min(blocks(blocks(part, _VECTOR), LANES) * LANES, _MOST_THREADS)
    launch = Launch((grid, 1, 1), (threads, 1, 1))
    return LaunchConfig((launch,), exchange=True, defines={"BLOCK": threads, "PART": part})


RULES: dict[str, Rule] = {"all_gather": _all_gather}
