"""Geometry of what a language model runs for one token: products of one row, attention of one step.

Both read memory once and wait for it, so what counts is how early and how much is asked for.
Rules that find nothing to do here leave the product to `launch_products`.
"""

from __future__ import annotations

from collections.abc import Mapping

from npusim.abi.kernels import Params
from npusim.codegen.cuda import launch_products
from npusim.codegen.cuda.geometry import Geometry, Launch, Rule, blocks
from npusim.codegen.cuda.launch_products import (
    GPU,
    MOST_SHARED,
    PROCESSORS,
    as_int,
    as_ints,
    epilogue_operands,
)
from npusim.codegen.cuda.paths import KernelPath

_FIT = GPU.decode
_RING_WARPS = 8
_RING_PIECE = 128  # bytes of a row that a warp copies at once
_RING_COLUMNS = 256  # most of a block, which has a thread for each

_STEP_KEYS = 16  # of a slice
_STEP_SPANS = 8  # blocks of a cluster, which every device with clusters takes
_STEP_WARPS = 8  # of a block
_STEP_READING = (4, 2)  # of these, warps that read slices: the most for which there is room


def linear(p: Params) -> Geometry:
    """The rule of `linear`."""
    arguments = 1 + as_int(p, "segments") + epilogue_operands(p)
    return _ring(p, arguments) or launch_products.linear(p)


def normed_linear(p: Params) -> Geometry:
    """The rule of `normed_linear`."""
    arguments = 2 + as_int(p, "segments") + epilogue_operands(p)
    return _ring(p, arguments) or launch_products.normed_linear(p)


def _ring(p: Params, arguments: int) -> Geometry | None:
    """One row of x: as many blocks as the device has processors, W through shared memory.

    Returns None for many columns, which fill the device many times over with smaller blocks, and
    for numbers that the tensor cores do not take or rows that do not consist of whole loads.
    """
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    segments, parts = as_int(p, "segments"), 2 if p["gated"] else 1
    columns = blocks(n, PROCESSORS)
    lines = (k, *as_ints(p, "ldw")[:segments])
    if m != 1 or 0 in (n, k) or columns > _RING_COLUMNS or any(line % 8 for line in lines):
        return None
    if p["w_dtype"] not in (1, 2) or p["x_dtype"] != p["w_dtype"]:
        return None
    tiles = blocks(columns * parts, 16)
    rows = 16 if tiles > 1 or parts > 1 else blocks(columns, 4) * 4
    pieces = blocks(blocks(2 * k, _RING_PIECE), _RING_WARPS)  # of a warp, in a tile
    slot = _RING_WARPS * rows * _RING_PIECE
    x = _RING_WARPS * pieces * _RING_PIECE * (2 if "norm_eps" in p else 1)
    stages = min(tiles * pieces, (_FIT.shared_bytes - x) // slot)
    if stages < 2 and tiles * pieces > 1:
        return None
    threads, shared, room = 32 * _RING_WARPS, stages * slot + x, None
    if stages == tiles * pieces:
        small = _FIT.small_normed_shared_bytes if "norm_eps" in p else _FIT.small_shared_bytes
        room = max(shared, small)
    defines = {
        "PATH": KernelPath.GEMV_MULTISTAGE,
        "BLOCK": threads,
        "COLUMNS": columns,
        "STAGES": stages,
        "SHARED": shared,
        "ARGUMENTS": arguments,
    }
    launch = Launch((PROCESSORS, 1, 1), (threads, 1, 1), shared, room=room)
    return Geometry((launch,), defines=defines)


def attention_step(p: Params) -> Geometry:
    """The rule of `attention_step`: a cluster a key/value head, whose warps share the keys."""
    kv_heads, head_dim, v_dim = as_int(p, "kv_heads"), as_int(p, "head_dim"), as_int(p, "v_dim")
    group = as_int(p, "heads") // kv_heads
    d_line, v_line = blocks(head_dim, 64) * 128, blocks(v_dim, 64) * 128
    share = blocks(group * v_dim // 2, _STEP_SPANS)  # of a block, in pairs

    def shared_by(reading: int) -> int:
        sent = 8 * _STEP_SPANS * reading * (share + group)  # bytes, by all warps of the cluster
        slices = reading * _FIT.step_stages * _STEP_KEYS * (d_line + v_line)
        return _STEP_KEYS * d_line + sent + slices

    reading = next((r for r in _STEP_READING if shared_by(r) <= MOST_SHARED), _STEP_READING[-1])
    shared = shared_by(reading)
    heads = as_int(p, "batch") * kv_heads
    each = _STEP_SPANS * reading * _STEP_KEYS  # keys that a cluster reads at once
    clusters = min(_FIT.step_clusters // heads, blocks(as_int(p, "limit"), each))
    scratch = 8 * group * v_dim * clusters * heads if clusters > 1 else 0
    defines = {
        "BLOCK": 32 * _STEP_WARPS,
        "STAGES": _FIT.step_stages,
        "CLUSTER_SIZE": _STEP_SPANS,
        "READING_WARPS": reading,
        "CLUSTERS": max(clusters, 1),
        "SHARED": shared,
        "BLOCKS_PER_SM": 16 // _STEP_WARPS if max(head_dim, v_dim) <= 128 else 1,
        "ARGUMENTS": 11 if scratch else 10,
    }
    launch = Launch((_STEP_SPANS * defines["CLUSTERS"], heads, 1), (32 * _STEP_WARPS, 1, 1), shared)
    return Geometry((launch,), scratch, failure=True, defines=defines)


RULES: Mapping[str, Rule] = {
    "attention_step": attention_step,
    "linear": linear,
    "normed_linear": normed_linear,
}
