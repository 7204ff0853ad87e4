"""Launch configurations of what works along rows: softmax, norms, reductions, scans, sorts."""

from __future__ import annotations

from math import prod

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import GPU, PROCESSORS
from npusim.codegen.launch_config import MAX_THREADS, Launch, LaunchConfig, Rule, blocks
from npusim.ir.types import DTYPES

_BLOCK = 256
_WARP = 32
_FIT = GPU.rows
_RESIDENT = PROCESSORS * GPU.processors.threads  # that fill it
_SHARED_ITEMS = 2048  # of a sort in shared memory: 12 bytes each, of 48 KiB
_ITEM_BYTES = 12
_STATE_BYTES = 16  # of the widest running value: an extreme with its position
_SAMPLE_RANKS = 8  # blocks of a cluster, which every device with clusters takes
_SAMPLE_EXCHANGE = 256 * 8 + 256  # some candidates, and a few sums
_VAR, _STD, _LOG_SUM_EXP = 9, 10, 14  # op of `reduce` (abi/kernels.py)
_TWO_PASSES = frozenset((_VAR, _STD, _LOG_SUM_EXP))

_SIZES = {code: size for code, size, _ in DTYPES.values()}
_INTEGERS = frozenset(code for code, _, kind in DTYPES.values() if kind != "float")


def _pack(size: int, strides: tuple[int, ...], bytes_each: int) -> int:
    """Returns the widest pack that divides a row and the distances between rows."""
    pack = 16 // bytes_each
    while any(n % pack for n in (size, *strides)):
        pack //= 2
    return pack


def _lanes(rows: int, size: int) -> int:
    """Returns how many threads share a row: a warp, or a block."""
    if size <= _FIT.warp_elements and (rows > PROCESSORS or size <= _FIT.short_elements):
        return _WARP
    if size <= _FIT.block_elements:
        return _BLOCK
    return MAX_THREADS


def _row_kernel(rows: int, size: int, pack: int, **defines: int) -> LaunchConfig:
    if rows == 0 or size == 0:
        return LaunchConfig(())
    lanes = _lanes(rows, size)
    block = max(lanes, _WARP * 4)
    launch = Launch((blocks(rows * lanes, block), 1, 1), (block, 1, 1))
    constants = {"BLOCK": block, "LANES": lanes, "PACK": pack, **defines}
    return LaunchConfig((launch,), defines=constants)


def _softmax(p: Params) -> LaunchConfig:
    widest = max(_SIZES[p["x_dtype"]], _SIZES[p["y_dtype"]])
    if p["inner"] == 1:
        return _row_kernel(p["outer"], p["size"], _pack(p["size"], (), widest))
    columns = p["outer"] * p["inner"] if p["size"] else 0
    if columns == 0:
        return LaunchConfig(())
    block = 64 if columns < _RESIDENT else _BLOCK
    launch = Launch((blocks(columns, block), 1, 1), (block, 1, 1))
    return LaunchConfig((launch,), defines={"BLOCK": block, "LANES": 32, "PACK": 1})


def _norm(p: Params) -> LaunchConfig:
    widest = max(_SIZES[p["x_dtype"]], _SIZES[p["y_dtype"]])
    pack = _pack(p["size"], (p["x_row_stride"], p["y_row_stride"]), widest)
    return _row_kernel(p["rows"], p["size"], pack, VECTORS=p["has_weight"] + p["has_bias"])


def _group_norm(p: Params) -> LaunchConfig:
    count = p["batch"] * p["groups"]
    elements = p["channels"] // max(p["groups"], 1) * p["spatial"]
    if count == 0 or elements == 0:
        return LaunchConfig(())
    block = MAX_THREADS if elements >= _FIT.block_elements else _BLOCK
    launch = Launch((count, 1, 1), (block, 1, 1))
    vectors = p["has_weight"] + p["has_bias"]
    return LaunchConfig((launch,), defines={"BLOCK": block, "VECTORS": vectors})


def _power_of_two(n: int) -> int:
    """Returns the smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()


def _reduce(p: Params) -> LaunchConfig:
    shape, reduced = p["shape"][: p["rank"]], p["reduced"][: p["reduced_rank"]]
    outputs, elements = prod(shape), prod(reduced)
    if outputs == 0:
        return LaunchConfig(())
    out_step = _innermost(shape, p["x_strides"])
    in_step = _innermost(reduced, p["reduced_strides"])
    across = int(outputs >= _WARP and out_step < in_step)
    wanted = _power_of_two(blocks(_RESIDENT, outputs))  # threads an output, to fill the device
    block = _BLOCK
    if across:
        block = MAX_THREADS if wanted > _BLOCK // _WARP and elements >= _BLOCK else _BLOCK
        parts = min(wanted, block // _WARP)
    else:
        block = MAX_THREADS if wanted >= MAX_THREADS and elements >= 8 * MAX_THREADS else _BLOCK
        parts = min(max(wanted, _WARP), block)
        if p["op"] not in _TWO_PASSES and elements >= 4 * _FIT.split_elements:
            split = min(blocks(elements, _FIT.split_elements), blocks(_RESIDENT // _BLOCK, outputs))
            if split > 1:
                return _split_reduce(outputs, split)
    parts = min(parts, _power_of_two(max(elements, 1)))
    launch = Launch((blocks(outputs, block // parts), 1, 1), (block, 1, 1))
    defines = {"BLOCK": block, "PARTS": parts, "ACROSS": across, "SPLIT": 1}
    return LaunchConfig((launch,), defines=defines)


def _split_reduce(outputs: int, split: int) -> LaunchConfig:
    """Few outputs of many elements: a block for each of `split` slices, then one an output."""
    launches = (
        Launch((outputs * split, 1, 1), (_BLOCK, 1, 1)),
        Launch((outputs, 1, 1), (_BLOCK, 1, 1), entry="npusim_combine"),
    )
    defines = {"BLOCK": _BLOCK, "PARTS": _BLOCK, "ACROSS": 0, "SPLIT": split}
    return LaunchConfig(launches, scratch=outputs * split * _STATE_BYTES, defines=defines)


def _innermost(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Returns the stride of the last dimension that moves; a large one when none does."""
    steps = [abs(s) for n, s in zip(shape, strides, strict=False) if n > 1]
    return steps[-1] if steps else 1 << 62


def _scan(p: Params) -> LaunchConfig:
    lanes = p["outer"] * p["inner"]
    if lanes == 0 or p["size"] == 0:
        return LaunchConfig(())
    few = p["inner"] == 1 or lanes < _FIT.scan_lanes
    together = p["size"] > _FIT.scan_elements and few
    threads = _BLOCK if together else 1
    launch = Launch((blocks(lanes * threads, _BLOCK), 1, 1), (_BLOCK, 1, 1))
    return LaunchConfig((launch,), defines={"BLOCK": _BLOCK, "LANES": threads})


def _sort(p: Params) -> LaunchConfig:
    lanes = p["outer"] * p["inner"]
    if lanes == 0 or p["k"] == 0:
        return LaunchConfig(())
    width = max(_power_of_two(p["size"]), 2)
    block = min(max(width // 2, _WARP), MAX_THREADS)
    shared = width <= _SHARED_ITEMS
    return LaunchConfig(
        (Launch((lanes, 1, 1), (block, 1, 1)),),
        scratch=0 if shared else lanes * width * _ITEM_BYTES,
        defines={"BLOCK": block, "WIDTH": width, "SCRATCH": int(not shared)},
    )


def _sample(p: Params) -> LaunchConfig:
    """A cluster shares the scores; after what its blocks exchange lie eight bytes a score."""
    launch = Launch((_SAMPLE_RANKS, 1, 1), (MAX_THREADS, 1, 1))
    defines = {"BLOCK": MAX_THREADS, "RANKS": _SAMPLE_RANKS, "EXCHANGE": _SAMPLE_EXCHANGE}
    scratch = _SAMPLE_EXCHANGE + 8 * (p["size"] + 3)
    return LaunchConfig((launch,), scratch=scratch, failure=True, defines=defines)


RULES: dict[str, Rule] = {
    "softmax": _softmax,
    "norm": _norm,
    "group_norm": _group_norm,
    "reduce": _reduce,
    "scan": _scan,
    "sort": _sort,
    "sample": _sample,
}
