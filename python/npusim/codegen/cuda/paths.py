"""The ways to compute a stem: values of the macro NPUSIM_PATH of CUDA sources."""

from __future__ import annotations

from enum import IntEnum


class KernelPath(IntEnum):
    """A way to compute a stem; `kernels/cuda/common/paths.h` has the same names and numbers."""

    GEMV_SIMT = 0
    GEMV_MMA = 1
    TILE_MMA = 2
    TILE_SIMT = 3
    TMA = 4
    GEMV_MULTISTAGE = 5
    PATCH = 6
    LONG_HEADS = 7
    STRIP = 8
    CODES_ROWS = 9
    CODES_TMA = 10
    SWAP_AB = 11
    TILE_FLOAT = 12
