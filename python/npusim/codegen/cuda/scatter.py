"""Launch configurations of scatter on CUDA: the walk, atomic operations, or items that are sorted.

All give the bits of row-major order (kernels/cuda/indexing/scatter.cu); the choice is one of time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd, prod

from npusim.abi.kernels import RANK, Params
from npusim.codegen.cuda.matmul_rules import GPU, PROCESSORS
from npusim.codegen.indexed import apart_dims, dims_mask, extents, reporting, scatter_walk
from npusim.codegen.launch_config import MAX_GRID, Launch, LaunchConfig, Rule, blocks
from npusim.ir.types import DTYPES

_WALK, _ATOMIC, _SORTED = range(3)  # NPUSIM_WAY
_SET, _ADD, _MUL, _MAX, _MIN = range(5)  # mode (abi/kernels.py)
_ORDER_FREE = (_ADD, _MAX, _MIN)  # of whole words
_WORDS = (DTYPES["int32"][0], DTYPES["int64"][0])
_BLOCK = 256
_DIGIT_BITS = 8  # of a pass, at most: a thread a digit
_HEADER_WORDS = 64
_WIDE = 8  # columns of a long run, that a block takes: of most dtypes a sector of memory
_RESIDENT = PROCESSORS * GPU.processors.threads
_FIT = GPU.scatter


@dataclass(frozen=True)
class _Sort:
    """How items are sorted.

    Attributes:
        columns: dimensions whose positions share an order.
        items, keys: how many there are; an item that goes nowhere has key `keys`.
        key_step: elements of y from one key to the next.
        passes, digit_bits: of the sort.
        tile: items of a block.
    """

    columns: list[int]
    items: int
    keys: int
    key_step: int
    passes: int
    digit_bits: int
    tile: int

    @property
    def tiles(self) -> int:
        """Blocks of a pass."""
        return blocks(self.items, self.tile)

    @property
    def scratch(self) -> int:
        """Bytes: counts, and twice a key and an item each."""
        words = _HEADER_WORDS + (1 + self.tiles) * (1 << self.digit_bits) + 4 * self.items
        return 4 * words

    @property
    def us(self) -> float:
        """Time beside that of combining; a pass over the only tile takes as long as a launch."""
        launches = 2 + (3 * self.passes if self.tiles > 1 else 1 + self.passes)
        return launches * _FIT.launch_us + self.passes * self.items * _FIT.item_us


def _scatter(p: Params) -> LaunchConfig:
    walk = scatter_walk(p)
    if not walk.launches:
        return walk
    steps = walk.defines["STEPS"]
    if steps >= _FIT.atomic_steps and p["mode"] in _ORDER_FREE and p["dtype"] in _WORDS:
        items = prod(p["shape"][: p["rank"]])
        return reporting(items, p, WAY=_ATOMIC, ITEMS=items)
    sort = _sort(p)
    if sort is not None and sort.us < steps * _FIT.step_us:
        return _sorted(p, sort)
    return replace(walk, defines={**walk.defines, "WAY": _WALK})


def _sort(p: Params) -> _Sort | None:
    """Returns how to sort the items; None where keys or items are too many."""
    shape = p["shape"][: p["rank"]]
    n = p["n"]
    columns = [
        d for d in apart_dims(p) if not any(p["idx_strides"][k * RANK + d] for k in range(n))
    ]
    digits = [(shape[d], p["y_strides"][d]) for d in range(p["rank"]) if d not in columns]
    digits += list(zip(extents(p), p["k_stride"][:n], strict=True))
    digits = [(size, stride) for size, stride in digits if size > 1 and stride != 0]
    if any(stride < 0 for _, stride in digits):
        return None
    step = gcd(*(stride for _, stride in digits)) or 1
    keys = sum((size - 1) * stride for size, stride in digits) // step + 1
    items = prod(shape) // prod(shape[d] for d in columns)
    if max(keys, items) >= MAX_GRID[0]:
        return None
    passes = blocks(keys.bit_length(), _DIGIT_BITS)
    tile = _FIT.tile * (2 if _FIT.tile < items <= 2 * _FIT.tile else 1)
    bits = blocks(keys.bit_length(), passes)
    sort = _Sort(columns, items, keys, step, passes, bits, tile)
    return sort if sort.scratch <= _FIT.scratch_bytes else None


def _long(sort: _Sort, columns: int) -> int:
    """Returns the items of a run, above which a block takes it and not a thread a column."""
    mean = sort.items / sort.keys
    rounds = blocks(sort.keys * blocks(columns, _WIDE), PROCESSORS * _FIT.beside)
    by_blocks = rounds * (_FIT.block_us + mean * _FIT.block_item_us)
    by_threads = max(1.0, sort.keys * columns / _RESIDENT) * mean * _FIT.thread_us
    if by_blocks < by_threads:
        return _FIT.few_long
    return max(_FIT.many_long, int(_FIT.times_mean * mean))


def _sorted(p: Params, sort: _Sort) -> LaunchConfig:
    columns = prod(p["shape"][d] for d in sort.columns)
    span = min(max(sort.items * columns // _RESIDENT, 1), _FIT.span)
    folding = blocks(blocks(sort.items, span) * columns, _BLOCK)
    tiles = sort.tiles

    def launch(grid: int, entry: str) -> Launch:
        return Launch((grid, 1, 1), (_BLOCK, 1, 1), entry=f"npusim_{entry}")

    launches = [launch(1, "kernel")] if tiles == 1 else []
    for number in range(sort.passes if tiles > 1 else 0):
        launches.append(launch(tiles, "count" if number else "kernel"))
        launches.append(launch(1 << sort.digit_bits, "scan"))
        launches.append(launch(tiles, "move"))
    launches.append(launch(folding, "fold"))
    long, wide = _long(sort, columns), blocks(columns, _WIDE)
    if p["mode"] != _SET and sort.items > long:
        grid = min(sort.items // long * wide, PROCESSORS * _FIT.beside)
        launches.append(launch(grid, "fold_long"))
    defines = {
        "BLOCK": _BLOCK,
        "ARGUMENTS": p["n"] + 4,
        "WAY": _SORTED,
        "APART": dims_mask(sort.columns),
        "ITEMS": sort.items,
        "KEYS": sort.keys,
        "KEY_STEP": sort.key_step,
        "COLUMNS": columns,
        "PASSES": sort.passes,
        "DIGIT_BITS": sort.digit_bits,
        "TILE": sort.tile,
        "SPAN": span,
        "LONG": long,
        "WIDE": _WIDE,
    }
    return LaunchConfig(tuple(launches), scratch=sort.scratch, failure=True, defines=defines)


RULES: dict[str, Rule] = {"scatter": _scatter}
