"""Launch configurations of pooling and resizing: a thread an output element, or some channels."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import GPU
from npusim.codegen.launch_config import LaunchConfig, Rule, line

_HALVES = (1, 2)  # dtypes of 16 bits
_MANY = GPU.rows.pool_threads


def _pool(p: Params) -> LaunchConfig:
    elements = p["batch"] * p["out_channels"] * prod(p["out_size"])
    channels = _channels_at_once(p, elements)
    config = line(elements // channels, 256 if channels == 1 or elements >= 8 * _MANY else 32)
    defines = {**config.defines, "INDICES": p["has_indices"], "CHANNELS": channels}
    return replace(config, defines=defines)


def _channels_at_once(p: Params, elements: int) -> int:
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
        if fits and (elements >= channels * _MANY or channels == 2):
            return channels
    return 1


def _resize(p: Params) -> LaunchConfig:
    return line(p["batch"] * p["channels"] * prod(p["out_size"]))


RULES: dict[str, Rule] = {"pool": _pool, "resize": _resize}
