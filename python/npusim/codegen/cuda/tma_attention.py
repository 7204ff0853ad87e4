"""Launch configurations of attention of many rows on Hopper.

Their kernel is kernels/cuda/attention/tma_attention.h. Owns which tiles there are, and which
commands they can compute. Their code runs everywhere, but is made for sm_90a: elsewhere a block's
rows go by smaller tiles, one after the other.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from npusim.abi.kernels import Params
from npusim.codegen.cuda.matmul_rules import GPU, PROCESSORS, on_tensor_cores
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig, TensorMap, as_int, as_ints, blocks
from npusim.targets import measured

_LINE = 64  # elements of a row of a TMA tile
_FEW_ROWS = 32  # that other paths share warps for
_GROUP_ROWS = 64  # of queries, that four warps multiply
_PLAIN_ROWS, _PLAIN_KEYS = 64, 64  # of the tiles of devices without TMA
_BARRIERS = 40  # bytes of a stage's barriers, and of one more
# Columns of values that wgmma instructions are made for.
_VALUE_COLUMNS = (32, 40, 48, 56, 64, 72, 80, 88, 96, 112, 128, 160, 192, 256)
_KEYS = (64, 80, 96, 112, 128)  # likewise, of a tile
_OTHER_REGISTERS = 40  # of a thread, beside its sums, scores and weights
_MASK_REGISTERS = 24  # more where scores are masked or capped one by one
_REGISTERS = 168  # that a thread may have of 9 to 12 warps
_LOADING_REGISTERS = 24  # that threads which only load keep


@dataclass(frozen=True, slots=True)
class AttentionTile(measured.AttentionTile):
    """A tile as launches have it."""

    @property
    def name(self) -> str:
        """What tuning files call it."""
        return f"bulk {self.rows}x{self.keys} s{self.stages} b{self.blocks_per_processor}"

    def shared(self, head_dim: int, v_dim: int) -> int:
        """Bytes of shared memory: queries, tiles of keys and values, barriers."""
        d, v = (blocks(size, _LINE) * _LINE * 2 for size in (head_dim, v_dim))
        return self.rows * max(d, v) + self.stages * (self.keys * (d + v) + _BARRIERS) + _BARRIERS


def key_map(operand: int, p: Params, strides: str, columns: int, box: int) -> TensorMap | None:
    """Returns keys or values of all heads as one matrix, or None where they are not.

    A head begins some rows down and some columns to the right of the one before, as the strides of
    heads and of batch items are some rows and a rest.
    """
    *outer, row_stride = as_ints(p, strides)
    if row_stride < columns or row_stride % 8:
        return None
    rows, width = as_int(p, "kv_len"), columns
    for count, stride in zip(("batch", "kv_heads"), outer, strict=True):
        rows += (as_int(p, count) - 1) * (stride // row_stride)
        width += (as_int(p, count) - 1) * (stride % row_stride)
    if width > row_stride or rows >= 2**31:
        return None
    return TensorMap(operand, rows, width, 2 * row_stride, box)


def fits(p: Params, tile: AttentionTile) -> bool:
    """Tells whether a tile can compute an `attention`."""
    head_dim, v_dim = as_int(p, "head_dim"), as_int(p, "v_dim")
    empty = 0 in (as_int(p, "q_len"), as_int(p, "kv_len"))
    if empty or not on_tensor_cores(p["dtype"], p["dtype"]):
        return False
    if head_dim % 8 or not 16 <= head_dim <= 256 or v_dim not in _VALUE_COLUMNS:
        return False
    if any(s % 8 for s in as_ints(p, "q_strides")):
        return False
    if any(
        key_map(0, p, *x, tile.keys) is None
        for x in (("k_strides", head_dim), ("v_strides", v_dim))
    ):
        return False
    processors, each = GPU.processors, tile.blocks_per_processor
    shared = tile.shared(head_dim, v_dim)
    return (
        shared <= processors.block_shared_bytes
        and shared * each <= processors.shared_bytes
        and _needed_registers(p, tile) <= _registers(p, tile)
    )


def _needed_registers(p: Params, tile: AttentionTile) -> int:
    """Returns about how many registers a thread that multiplies needs."""
    numbers = as_int(p, "v_dim") // 2 + tile.keys // 2 + tile.keys // 4
    masked = bool(p["has_mask"]) or bool(p["softcap"])
    return numbers + _OTHER_REGISTERS + _MASK_REGISTERS * masked


def _moves_registers(p: Params, tile: AttentionTile) -> bool:
    """Tells whether four warps load, though one could, so that others take their registers."""
    return tile.rows > _GROUP_ROWS and _needed_registers(p, tile) > _REGISTERS


def _registers(p: Params, tile: AttentionTile) -> int:
    """Returns the registers that a thread which multiplies may have.

    A quarter of a processor has 512 a lane.
    """
    warps = _threads(p, tile) // 32 * tile.blocks_per_processor
    each = min(512 // blocks(warps, 4) // 8 * 8, 255)
    if _moves_registers(p, tile):
        groups = tile.rows // _GROUP_ROWS
        return min(each + (each - _LOADING_REGISTERS) // groups // 8 * 8, 240)
    return each


def _threads(p: Params, tile: AttentionTile) -> int:
    """Returns the threads of a block: four warps for 64 rows, and one that loads."""
    return tile.rows * 2 + (128 if _moves_registers(p, tile) else 32)


def tma_attention(p: Params, tile: AttentionTile) -> LaunchConfig:
    """Returns the launch configuration of an `attention` by a tile that fits."""
    kv_heads, head_dim, v_dim = as_int(p, "kv_heads"), as_int(p, "head_dim"), as_int(p, "v_dim")
    rows = _rows(p)
    has_position, threads = bool(p["has_position"]), _threads(p, tile)
    keys = key_map(1, p, "k_strides", head_dim, tile.keys)
    values = key_map(2, p, "v_strides", v_dim, tile.keys)
    assert keys is not None and values is not None
    plain_warps = min(8, tile.rows // 16)  # two for the same rows, where there are so many
    defines = {
        "PATH": KernelPath.TMA,
        "BLOCK": threads,
        "SPLIT": 1,
        "WARPS": plain_warps,
        "ROW_WARPS": _PLAIN_ROWS // 16,
        "CLUSTERED": 0,
        "FEW_TURNS": 1,
        "TMA_ROWS": tile.rows,
        "TILE_KEYS": tile.keys,
        "PIPELINE_STAGES": tile.stages,
        "BLOCKS_PER_SM": tile.blocks_per_processor,
        "REGISTERS": _registers(p, tile) if _moves_registers(p, tile) else 0,
        "ARGUMENTS": 4 + int(bool(p["has_mask"])) + 2 * has_position,
    }
    d, v = (blocks(size, _LINE) * _LINE * 2 for size in (head_dim, v_dim))
    sums = 16 * plain_warps * (blocks(v_dim, 16) * 16 + 10) * 4
    plain = max(_PLAIN_ROWS * d + 2 * _PLAIN_KEYS * (d + v), sums)
    shared = max(tile.shared(head_dim, v_dim), plain)
    grid = (blocks(rows, tile.rows), as_int(p, "batch") * kv_heads, 1)
    launch = Launch(grid, (threads, 1, 1), shared, elsewhere=plain)
    return LaunchConfig(
        (launch,), 0, has_position, overlaps=False, maps=(keys, values), defines=defines
    )


_PLAIN, _FIT = GPU.attention, GPU.attention.tma
TILES = tuple(AttentionTile(**asdict(tile)) for tile in _FIT.tiles)


def tiles(p: Params) -> list[AttentionTile]:
    """Returns the tiles that fit an `attention`, the fastest by `microseconds` first."""
    found = [tile for tile in TILES if fits(p, tile)]
    return sorted(found, key=lambda tile: microseconds(p, tile))


def best(p: Params) -> AttentionTile | None:
    """Returns the fastest tile, or None where the smaller ones of other paths are faster."""
    found = tiles(p)
    if not found or _rows(p) <= _FEW_ROWS:
        return None
    faster = microseconds(p, found[0]) < _PLAIN.begin_us + plain_microseconds(p)
    return found[0] if faster else None


def plain_microseconds(p: Params) -> float:
    """Returns about how long an `attention` takes by the smaller tiles, without its begin."""
    heads = as_int(p, "batch") * as_int(p, "kv_heads")
    rows = blocks(_rows(p), _PLAIN_ROWS) * _PLAIN_ROWS
    keys = blocks(int(_keys(p, _PLAIN_ROWS)[0]), _PLAIN_KEYS) * _PLAIN_KEYS
    columns = max(as_int(p, "head_dim"), _LINE) + max(as_int(p, "v_dim"), _LINE)
    products = heads * rows * keys * columns  # of shorter heads the scores take as long
    return products / _PLAIN.multiplications_per_us


def microseconds(p: Params, tile: AttentionTile) -> float:
    """Returns about how long an `attention` takes by a tile, by what was measured.

    For an H200 that is benchmarks/results/cuda_attention_h200.txt.
    """
    return _FIT.begin_us + busy_microseconds(p, tile)


def busy_microseconds(p: Params, tile: AttentionTile) -> float:
    """Returns the same without what any launch takes to begin."""
    heads = as_int(p, "batch") * as_int(p, "kv_heads")
    count = blocks(_rows(p), tile.rows) * heads
    mean, most = (blocks(int(keys), tile.keys) for keys in _keys(p, tile.rows))
    columns = as_int(p, "head_dim") + as_int(p, "v_dim")
    side_by_side = min(tile.blocks_per_processor, blocks(count, PROCESSORS))
    step = tile.rows * tile.keys * (_FIT.score_us + _FIT.multiply_us / 2 * columns)
    step += _FIT.step_us / side_by_side
    if tile.rows * side_by_side == _GROUP_ROWS:
        step *= _FIT.alone
    # Blocks even out where some see far fewer keys than others; blocks that are alike do not.
    uneven = (blocks(count, PROCESSORS) - count / PROCESSORS) * max(0.0, 2 * mean / most - 1)
    share = count / PROCESSORS + uneven
    longest = most * step + _FIT.block_us
    return max(longest, share * (mean * step + _FIT.block_us / side_by_side))


def _rows(p: Params) -> int:
    """Returns the rows of queries that share a key/value head."""
    return as_int(p, "heads") // as_int(p, "kv_heads") * as_int(p, "q_len")


def _keys(p: Params, rows: int) -> tuple[float, float]:
    """Returns how many keys a block of rows sees: of all blocks the mean, and the most.

    A cache is taken to be half full.
    """
    q_len, kv_len = as_int(p, "q_len"), as_int(p, "kv_len")
    if not p["causal"]:
        return kv_len, kv_len
    offset = (kv_len - q_len) // 2 if p["has_position"] else as_int(p, "causal_offset")
    queries = blocks(rows, as_int(p, "heads") // as_int(p, "kv_heads"))
    limit = as_int(p, "window") + queries if p["window"] else kv_len
    most = max(1, min(kv_len, limit, offset + q_len))
    return max(1, min(most, offset + (q_len + queries) / 2)), most
