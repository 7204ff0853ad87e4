"""Products whose elements have the same bits for any number of rows: those of steps over pages.

A step has rows of many requests, and a request's answer is not to depend on how many others there
are. So K is cut into slices whose number follows from the weights alone, each is summed block by
block in order, and slices are added up in order, by whatever kernel is the fastest for the rows
there are. What cannot be loaded by TMA has tiles of one kind for all rows. Products over codes have
slices and tiles of their own (tma_codes.py).

Owns which kernels share an order, and which of them computes a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

from npusim.abi.kernels import Params
from npusim.codegen.cuda import (
    code_rows,
    decoding,
    matmul_rules,
    rows,
    swap_ab,
    tma_codes,
    tma_matmul,
)
from npusim.codegen.cuda.matmul_rules import (
    GPU,
    PROCESSORS,
    leaves_norm,
    on_tensor_cores,
    product_of,
    rotates,
    then_turned,
)
from npusim.codegen.cuda.tma_matmul import ClusterTile
from npusim.codegen.launch_config import LaunchConfig, as_int, blocks

PREFIX = "in one order: "  # of names
_TILES = PREFIX + "tiles"  # of ordinary kernels
_SLICES = (1, 2, 4, 8)  # of K: blocks of a cluster
_DEPTH, _GROUP_ROWS = 64, 64
_SQUARED_COLUMNS = 64  # whose squares before a norm are summed in the order of all
_OTHER_REGISTERS = 64  # of a thread, beside sums

_FIT = GPU.one_order
_ROOMY_TILES = tuple(ClusterTile(**asdict(tile)) for tile in _FIT.tiles)

Configs = Mapping[str, Callable[[], LaunchConfig]]


def slices_of(p: Params) -> int:
    """Returns into how many slices K is cut: by the sizes of the weights alone."""
    k_blocks = blocks(as_int(p, "k"), _DEPTH)
    tiles = blocks(as_int(p, "n") * (2 if p["gated"] else 1), _GROUP_ROWS)
    tile_bytes = _GROUP_ROWS * as_int(p, "k") * 2
    least = tiles * tile_bytes / GPU.tma_matmul.read_bytes_per_us

    def microseconds(slices: int) -> float:
        fullest = blocks(tiles * slices, PROCESSORS) / slices
        exchange = _FIT.slices_us + _FIT.slice_us * slices if slices > 1 else 0.0
        return max(least, fullest * tile_bytes / _FIT.processor_bytes_per_us) + exchange

    return min((s for s in _SLICES if s == 1 or k_blocks >= 2 * s), key=microseconds)


def ordered_tiles(p: Params, slices: int) -> list[ClusterTile]:
    """Returns tiles of many rows that add in this order, the fastest by an estimate first."""
    alone = [t for t in tma_matmul.TILES if (t.share_rows, t.share_columns) == (1, 1)]
    tiles = [replace(t, split_k=1, ordered_slices=slices) for t in (*_ROOMY_TILES, *alone)]
    found = {
        tile.name: tile
        for tile in tiles
        if not leaves_norm(p) or tile.columns % _SQUARED_COLUMNS == 0
        if _has_registers(tile) and tma_matmul.fits(p, tile)
    }
    return sorted(found.values(), key=lambda tile: tma_matmul.microseconds(p, tile))


def _has_registers(tile: ClusterTile) -> bool:
    """Tells whether a thread has room for the sums of a slice beside those of the others."""
    threads = tile.blocks_per_processor * (2 * tile.rows + 32 * tile.copy_warp)
    sums = tile.columns // 2 * 2  # of a slice, and of those that are finished
    return tile.ordered_slices == 1 or sums + _OTHER_REGISTERS <= min(255, 65536 // threads)


def linear_configs(p: Params) -> Configs:
    """Returns the ways to compute a linear, beside a norm or not, in one order; the rule's first.

    All of them have the same bits, for any number of rows, on devices with TMA.
    """
    slices, m = slices_of(p), as_int(p, "m")
    own = p if m <= _FIT.joined_rows and swap_ab.fits(p, 1) else product_of(p)
    turning_us = _FIT.turning_us if rotates(p) else 0.0
    found: dict[str, tuple[float, Callable[[], LaunchConfig]]] = {}
    if m and swap_ab.fits(own, 1):
        # Many rows of x are read by too many blocks, unless each has a slice of them.
        few = m <= (_FIT.swapped_rows if slices == 1 else swap_ab.MOST_ROWS)
        for groups in (1, 2) if few else ():
            tile = swap_ab.tile_of(own, groups, slices)
            if tile is not None:
                time = _swapped_us(own, groups, slices) + (0.0 if own is p else turning_us)
                config = _deferred(_swapped, p, own, tile, slices)
                found[PREFIX + tile.name(own, slices)] = time, config
        for ordered in ordered_tiles(p, slices):
            config = _deferred(tma_matmul.tma_matmul, p, ordered)
            time = tma_matmul.microseconds(p, ordered) + turning_us
            found[PREFIX + ordered.name] = time, config
    return {name: found[name][1] for name in sorted(found, key=lambda name: found[name][0])}


def _swapped(p: Params, own: Params, tile: swap_ab.SwapTile, slices: int) -> LaunchConfig:
    """Returns a command's configuration by a tile that does all of it, or its product (`own`)."""
    config = swap_ab.swap_ab(own, tile, slices)
    return config if own is p else then_turned(p, config)


def _deferred(make: Callable[..., LaunchConfig], *args: object) -> Callable[[], LaunchConfig]:
    return lambda: make(*args)


def _swapped_us(p: Params, groups: int, slices: int) -> float:
    """Returns about how long a product takes by swap_ab.h."""
    fit = GPU.tma_matmul
    m, k = as_int(p, "m"), as_int(p, "k")
    count = swap_ab.blocks_of(p, groups, slices)
    each = (groups * _GROUP_ROWS + m) * 2 * blocks(k, slices)
    weights = 2 * as_int(p, "n") * (2 if p["gated"] else 1) * k
    time = max(
        weights / fit.read_bytes_per_us,
        each * blocks(count, PROCESSORS) / fit.arriving_bytes_per_us,
        each * count / fit.all_arriving_bytes_per_us,
    )
    exchange = fit.exchange_us * slices + m * _GROUP_ROWS * groups * 4 / fit.exchanged_bytes_per_us
    return fit.begin_us + fit.end_us + time + (exchange if slices > 1 else 0.0)


def tiles(stem: str, p: Params) -> LaunchConfig:
    """Returns ordinary kernels that add in one order, for any number of rows."""
    if stem == "norm":
        return rows.norm_in_one_order(p)
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    if m * n == 0:
        return LaunchConfig(())
    codes = stem == "quantized_linear"
    if codes and decoding.split_of(p) is not None:
        return _code_rows(p)
    if codes:
        arguments = 1 + as_int(p, "segments") + matmul_rules.epilogue_operands(p)
    else:
        arguments = matmul_rules.linear_operands(p)
    tensor_cores = on_tensor_cores(p["x_dtype"], p["x_dtype" if codes else "w_dtype"])
    shapes: tuple[matmul_rules.TileShape, ...] = ()
    if not tensor_cores:  # one instruction for all rows, which sums K 16 in an order of its own
        shapes = tuple(t for t in matmul_rules.FLOAT_TILES if t.rows % _GROUP_ROWS == 0)
    slices = slices_of(p)
    if leaves_norm(p):  # squares are summed by tiles
        slices, shapes = 1, (matmul_rules.TILES[-1],)
    if rotates(p):  # scratch memory has the product
        slices = 1
    config = matmul_rules.tiled(
        *(m, n, k),
        parts=2 if p["gated"] else 1,
        tensor_cores=tensor_cores,
        arguments=arguments,
        shapes=shapes,
        splits=(slices,),
    )
    return then_turned(p, config)


def _code_rows(p: Params) -> LaunchConfig:
    """Returns a product over codes, of which more rows than a launch has are blocks of it."""
    if as_int(p, "m") <= code_rows.MOST_ROWS:
        return decoding.quantized_linear(p)
    arguments = 1 + as_int(p, "segments") + matmul_rules.epilogue_operands(p)
    config = code_rows.code_rows(p, arguments, decoding.split_of(p), most_rows=as_int(p, "m"))
    assert config is not None, p
    return config


STEMS = (*tma_matmul.STEMS, "quantized_linear", "norm")  # whose kernels have several orders


def configs(stem: str, p: Params) -> Configs:
    """Returns the ways to compute a command in one order, by name; the rule's first.

    The last, ordinary kernels, may have another order than those before: it comes first for all
    rows of a command or for none.
    """
    found: Configs = linear_configs(p) if stem in tma_matmul.STEMS else {}
    if stem in tma_codes.STEMS:
        found = {
            PREFIX + tile.name: _deferred(tma_codes.tma_codes, p, tile)
            for tile in tma_codes.ordered_tiles(p)
        }
    return {**found, _TILES: _deferred(tiles, stem, p)}


def variant_of(stem: str, p: Params, tma: bool, how: str) -> str | None:
    """Returns the name of the one that is chosen; None: the order is not to be kept, or there is
    only one.

    Args:
        tma: whether the target loads tiles by TMA.
        how: `TargetConfig.batch_invariance`.
    """
    if stem not in STEMS or how == "none":
        return None
    first = next(iter(configs(stem, p))) if tma else _TILES
    if how == "auto" and stem == "quantized_linear" and first == _TILES:
        few = as_int(p, "m") <= code_rows.MOST_ROWS and decoding.split_of(p) is not None
        return _TILES if few else None
    if how == "auto" and stem in tma_matmul.STEMS and first == _TILES:
        return None  # few rows are streamed faster
    return first
