"""Geometry of what a language model runs for one token: products of one row, attention of one step.

Both read memory once and wait for it, so what counts is how early and how much is asked for.
Rules that find nothing to do here leave the product to `launch_products`.
"""

from __future__ import annotations

from collections.abc import Mapping

from npusim.codegen import launch_products
from npusim.codegen.geometry import Geometry, Launch, Rule, blocks
from npusim.codegen.launch_products import PROCESSORS, as_int, as_ints, epilogue_operands
from npusim.ops.kernels import Params

_RING_WARPS = 8
_RING_BYTES = 96 << 10  # of shared memory, which a block may have on every device
_RING_AHEAD = 192 << 10  # of a block's weights behind those, fetched to the second cache
_RING_ROW = 40  # elements of x that a lane keeps in registers
_RING_COLUMNS = 256  # most of a block, which has a thread for each

_STEP_KEYS = 16  # of a slice
_STEP_STAGES = 1  # slices of a warp in flight: the next products need the memory more
_STEP_SPANS = 8  # blocks of a cluster, which every device with clusters takes
_STEP_SHARED = 160 << 10  # bytes of shared memory that a block may have there


def linear(p: Params) -> Geometry:
    """The rule of `linear`."""
    arguments = 1 + as_int(p, "segments") + epilogue_operands(p)
    return _ring(p, arguments) or launch_products.linear(p)


def normed_linear(p: Params) -> Geometry:
    """The rule of `normed_linear`: as `linear` of one row."""
    arguments = 2 + as_int(p, "segments") + epilogue_operands(p)
    return _ring(p, arguments) or launch_products.normed_linear(p)


def _ring(p: Params, arguments: int) -> Geometry | None:
    """One row of x: as many blocks as the device has processors, W through shared memory.

    Returns None for many columns, which fill the device many times over with smaller blocks, and
    for rows that do not consist of whole loads or of more than the registers have room for.
    """
    m, n, k, size = as_int(p, "m"), as_int(p, "n"), as_int(p, "k"), 4 if p["w_dtype"] == 0 else 2
    segments, parts = as_int(p, "segments"), 2 if p["gated"] else 1
    columns = blocks(n, PROCESSORS)
    lines = (k, *as_ints(p, "ldw")[:segments])
    if m != 1 or columns > _RING_COLUMNS or any(line * size % 16 for line in lines):
        return None
    loads = k * size // 16

    def shares(split: int) -> tuple[int, int]:  # columns of a group of warps, loads of a lane
        return blocks(columns, _RING_WARPS // split), blocks(loads, 32 * split)

    splits = [s for s in (1, 2, 4, 8) if shares(s)[1] * 16 // size <= _RING_ROW]
    if not splits or k == 0:
        return None
    split = min(splits, key=lambda s: (shares(s)[0] * shares(s)[1], s))
    rounds, steps = shares(split)
    slot = parts * steps * 512 * _RING_WARPS
    stages = min(rounds, _RING_BYTES // slot)
    if stages > 2:  # two of three were faster: the next launches find more room
        stages -= stages % 2
    if rounds == 0 or stages == 0:
        return None
    threads = 32 * _RING_WARPS
    defines = {
        "PATH": 5,
        "BLOCK": threads,
        "SPLIT": split,
        "COLUMNS": columns,
        "STAGES": stages,
        "AHEAD": min(rounds - stages, _RING_AHEAD // slot),
        "ARGUMENTS": arguments,
    }
    launch = Launch((blocks(n, columns), 1, 1), (threads, 1, 1), stages * slot)
    return Geometry((launch,), defines=defines)


def attention_step(p: Params) -> Geometry:
    """The rule of `attention_step`: a cluster a key/value head, whose warps share the keys."""
    kv_heads, head_dim, v_dim = as_int(p, "kv_heads"), as_int(p, "head_dim"), as_int(p, "v_dim")
    group = as_int(p, "heads") // kv_heads
    d_line, v_line = blocks(head_dim, 64) * 128, blocks(v_dim, 64) * 128
    share = blocks(group * v_dim // 2, _STEP_SPANS)  # of a block, in pairs

    def shared_of(warps: int) -> int:
        """Bytes of the queries, of what all warps of the cluster send, and of slices."""
        sent = 8 * _STEP_SPANS * warps * (share + group)
        slices = warps * _STEP_STAGES * _STEP_KEYS * (d_line + v_line)
        return _STEP_KEYS * d_line + sent + slices

    warps = 8
    while shared_of(warps) > _STEP_SHARED:
        warps //= 2
    shared = shared_of(warps)
    defines = {
        "BLOCK": 32 * warps,
        "STAGES": _STEP_STAGES,
        "SPANS": _STEP_SPANS,
        "SHARED": shared,
        "RESIDENT": 16 // warps if max(head_dim, v_dim) <= 128 else 1,
        "ARGUMENTS": 10,
    }
    heads = as_int(p, "batch") * kv_heads
    launch = Launch((_STEP_SPANS, heads, 1), (32 * warps, 1, 1), shared)
    return Geometry((launch,), failure=True, defines=defines)


RULES: Mapping[str, Rule] = {
    "attention_step": attention_step,
    "linear": linear,
    "normed_linear": normed_linear,
}
