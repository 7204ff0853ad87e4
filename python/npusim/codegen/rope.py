"""The launch configuration of rope, on every GPU: a thread a pair of elements, or eight pairs."""

from __future__ import annotations

from dataclasses import replace

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import LaunchConfig, blocks, line

_HALVES = (1, 2)  # dtypes of 16 bits


def rope(p: Params, *, eights: bool) -> LaunchConfig:
    """Returns the launch configuration.

    Args:
        eights: the device's text has threads of eight neighbouring pairs (NPUSIM_EACH).
    """
    parts = p["parts"]
    shapes = zip(p["heads"][:parts], p["head_dim"][:parts], strict=True)
    pairs = sum(count * blocks(dim, 2) for count, dim in shapes)
    has_position = bool(p["has_position"])
    arguments = 2 * parts + 2 + 2 * has_position
    each = 8 if eights and _turns_eights(p) else 1
    threads = p["batch"] * p["length"] * pairs // each
    return replace(line(threads, 128, ARGUMENTS=arguments, EACH=each), failure=has_position)


def _turns_eights(p: Params) -> bool:
    """Tells whether eight neighbouring pairs of a head are chunks of 16 bytes, in all parts."""
    parts = p["parts"]
    whole = all(
        dim % 16 == 0 and (not turns or p["rotary_dim"] == dim)
        for dim, turns in zip(p["head_dim"][:parts], p["rotate"][:parts], strict=True)
    )
    strides = (*p["x_strides"][: 3 * parts], *p["y_strides"][: 3 * parts], *p["cs_strides"])
    chunks = all(s % 8 == 0 for s in strides)
    return whole and chunks and p["dtype"] in _HALVES and not p["interleaved"]
