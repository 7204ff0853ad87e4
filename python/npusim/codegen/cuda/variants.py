"""The geometries among which tuning may choose, for the stems that have several."""

from __future__ import annotations

from collections.abc import Mapping

from npusim.abi.kernels import KERNELS, Params
from npusim.codegen.cuda import bulk, convolutions, launch_products
from npusim.codegen.cuda.geometry import Geometry
from npusim.codegen.cuda.launch_products import as_int, as_ints, linear_operands, on_tensor_cores
from npusim.codegen.cuda.paths import KernelPath

_SPLITS = (1, 2, 4, 8)
_MOST_BULK = 12  # tiles copied in bulk, the best by estimate
CLUSTER = "cluster"  # whose blocks share the keys of attention
_MOST_SHARED = 99 << 10  # bytes of shared memory that a block may have on every device


def variants(stem: str, params: bytes) -> Mapping[str, Geometry]:
    """Returns other geometries of a kernel than its rule's, by a name that says what they are."""
    fields = KERNELS[stem].unpack(params)
    if stem == "linear":
        return _linear(fields)
    if stem in bulk.STEMS:
        return {tile.name: bulk.bulk(fields, tile) for tile in bulk.tiles(fields, _MOST_BULK)}
    if stem == "attention":
        geometry = launch_products.attention_cluster(fields)
        return {CLUSTER: geometry} if geometry is not None else {}
    if stem == "conv":
        return _conv(fields)
    return {}


def _linear(p: Params) -> dict[str, Geometry]:
    m, n, k = (as_int(p, name) for name in "mnk")
    if m <= 16 or 0 in (n, k) or not on_tensor_cores(p["x_dtype"], p["w_dtype"]):
        return {}
    copied = {tile.name: bulk.bulk(p, tile) for tile in bulk.tiles(p, _MOST_BULK)}
    return copied | {
        f"{tile.rows}x{tile.columns}/{split}": launch_products.tiled(
            m,
            n,
            k,
            parts=2 if p["gated"] else 1,
            pairs=True,
            arguments=linear_operands(p),
            shapes=(tile,),
            splits=(split,),
        )
        for tile in launch_products.TILES
        for split in _SPLITS
        if split == 1 or k >= 128 * split
    }


def _conv(p: Params) -> dict[str, Geometry]:
    channels = as_int(p, "in_channels") // as_int(p, "groups")
    rule = convolutions.conv(p)
    if not rule.launches or rule.defines["PATH"] != KernelPath.TILE_MMA:
        return {}
    depth = channels
    for taps in as_ints(p, "kernel"):
        depth *= taps
    geometries = {
        f"{tile.rows}x{tile.columns}/{split}": convolutions.conv_tiles(p, tile, split)
        for tile in convolutions.TILES
        for split in _SPLITS
        if split == 1 or depth >= 128 * split
    }
    return {k: g for k, g in geometries.items() if g.launches[0].shared <= _MOST_SHARED}
