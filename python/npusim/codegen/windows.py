"""Launch configurations of pooling and resizing, on every GPU: a thread an output element, or some
channels of one.
"""

from __future__ import annotations

from functools import partial
from math import prod

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import LaunchConfig, Rule, line

_HALVES = (1, 2)  # dtypes of 16 bits


def rules(pool_threads: int) -> dict[str, Rule]:
    """Returns the rules of pool and resize.

    Args:
        pool_threads: that fill the device well enough to read 16 bytes each.
    """
    return {"pool": partial(_pool, pool_threads), "resize": _resize}


def _pool(many: int, p: Params) -> LaunchConfig:
    elements = p["batch"] * p["out_channels"] * prod(p["out_size"])
    channels = _channels_at_once(p, elements, many)
    block = 256 if channels == 1 or elements >= 8 * many else 32
    arguments = 3 if p["has_indices"] else 2
    return line(elements // channels, block, ARGUMENTS=arguments, CHANNELS=channels)


def _channels_at_once(p: Params, elements: int, many: int) -> int:
    """Returns how many channels a thread takes: 1 where they do not lie beside each other."""
    even = all(a % b == 0 for a, b in zip(p["in_size"], p["out_size"], strict=True))
    strides = (*p["x_strides"], *p["y_strides"])
    apart = [s for i, s in enumerate(strides) if i % 5 != 1]
    contiguous = p["x_strides"][1] == 1 == p["y_strides"][1]
    if p["has_indices"] or not contiguous or (p["adaptive"] and not even):
        return 1
    if p["x_dtype"] != p["y_dtype"] or p["x_dtype"] not in _HALVES:
        return 1
    for channels in (8, 4, 2):
        fits = all(s % channels == 0 for s in (p["out_channels"], *apart))
        if fits and (elements >= channels * many or channels == 2):
            return channels
    return 1


def _resize(p: Params) -> LaunchConfig:
    return line(p["batch"] * p["channels"] * prod(p["out_size"]), ARGUMENTS=2)
