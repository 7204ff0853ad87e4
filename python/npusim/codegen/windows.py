"""Launch configurations of pooling and resizing, on every GPU: a thread an output element, or some
channels of one.
"""

from __future__ import annotations

from functools import partial
from math import prod

from npusim.abi.kernels import Params
from npusim.codegen.launch_config import LANES, Launch, LaunchConfig, Rule, blocks, line
from npusim.ir.types import CODE_SIZES

_HALVES = (1, 2)  # dtypes of 16 bits
_FLOATS = (0, *_HALVES)
_BLOCK = 256
_PACK_BYTES = 16
_MANY_TAPS = 32  # of a window, that several threads share


def rules(pool_threads: int) -> dict[str, Rule]:
    """Returns the rules of pool and resize.

    Args:
        pool_threads: that fill the device well enough to move 16 bytes each.
    """
    return {"pool": partial(_pool, pool_threads), "resize": partial(_resize, pool_threads)}


def _pool(many: int, p: Params) -> LaunchConfig:
    elements = p["batch"] * p["out_channels"] * prod(p["out_size"])
    arguments = 3 if p["has_indices"] else 2
    if (shared := _windows_shared(p, elements, many)) is not None:
        return shared
    channels = _channels_at_once(p, elements, many)
    block = 256 if channels == 1 or elements >= 8 * many else 32
    return line(elements // channels, block, ARGUMENTS=arguments, CHANNELS=channels, PARTS=1)


def _windows_shared(p: Params, elements: int, many: int) -> LaunchConfig | None:
    """Returns the config of threads that share windows, if these are large and elements few."""
    taps = prod(
        i // o if p["adaptive"] else k
        for i, o, k in zip(p["in_size"], p["out_size"], p["kernel"], strict=True)
    )
    packs = [n for n in _packs(p) if n > 1]
    if not packs or not elements or taps < _MANY_TAPS or elements >= packs[0] * many:
        return None
    channels, items = packs[0], elements // packs[0]
    beside = 1  # packs of one position that a block has: what they read lies side by side
    while beside < LANES and p["out_channels"] // channels % (2 * beside) == 0:
        if blocks(items, 2 * beside) < many // _BLOCK:
            break
        beside *= 2
    parts = 2
    while parts * beside < 2 * _BLOCK and 4 * parts < taps:
        parts *= 2
    threads = beside * parts
    defines = {"BLOCK": threads, "ARGUMENTS": 2, "CHANNELS": channels, "PARTS": parts}
    launch = Launch((blocks(items, beside), 1, 1), (threads, 1, 1))
    return LaunchConfig((launch,), defines=defines)


def _channels_at_once(p: Params, elements: int, many: int) -> int:
    """Returns how many channels a thread takes: 1 where they do not lie beside each other."""
    if p["x_dtype"] not in _HALVES:
        return 1
    return next(n for n in _packs(p) if elements >= n * many or n <= 2)


def _packs(p: Params) -> list[int]:
    """Returns how many channels a thread can take, most first; windows are alike but for 1."""
    even = all(a % b == 0 for a, b in zip(p["in_size"], p["out_size"], strict=True))
    strides = (*p["x_strides"], *p["y_strides"])
    apart = [s for i, s in enumerate(strides) if i % 5 != 1]
    contiguous = p["x_strides"][1] == 1 == p["y_strides"][1]
    if p["has_indices"] or not contiguous or (p["adaptive"] and not even):
        return [1]
    if p["x_dtype"] != p["y_dtype"] or p["x_dtype"] not in _FLOATS:
        return [1]
    counts = (8, 4, 2, 1) if p["x_dtype"] in _HALVES else (4, 2, 1)
    return [n for n in counts if all(s % n == 0 for s in (p["out_channels"], *apart))]


def _resize(many: int, p: Params) -> LaunchConfig:
    elements = p["batch"] * p["channels"] * prod(p["out_size"])
    strides = (*p["x_strides"], *p["y_strides"])
    apart = [s for i, s in enumerate(strides) if i % 5 != 1]
    channels = 1
    if p["x_strides"][1] == 1 == p["y_strides"][1] and p["x_dtype"] == p["y_dtype"]:
        most = _PACK_BYTES // CODE_SIZES[p["x_dtype"]]
        fits = (n for n in (8, 4, 2) if n <= most and elements >= n * many)
        channels = next((n for n in fits if not any(s % n for s in (p["channels"], *apart))), 1)
    return line(elements // channels, ARGUMENTS=2, CHANNELS=channels)
