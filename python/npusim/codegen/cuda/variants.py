"""The configs among which tuning may choose, for the stems that have several."""

from __future__ import annotations

from collections.abc import Mapping

from npusim.abi.kernels import KERNELS, Params
from npusim.codegen.cuda import (
    attention_rules,
    convolutions,
    expanded_codes,
    matmul_rules,
    one_order,
    strips,
    tma_attention,
    tma_codes,
    tma_matmul,
)
from npusim.codegen.cuda.matmul_rules import linear_operands, on_tensor_cores
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.cuda.rules import RULES
from npusim.codegen.launch_config import LaunchConfig, as_int, as_ints

_SPLITS = (1, 2, 4, 8)
_MOST_TMA = 12  # of TMA tiles, the best by estimate
_MOST_EXPANDED = 4  # of them, over codes that are expanded first
CLUSTER = "cluster"  # whose blocks share the keys of attention
_MOST_SHARED = 99 << 10  # bytes of shared memory that a block may have on every device


def config_of(stem: str, params: bytes, variant: str) -> LaunchConfig:
    """Returns a command's launch configuration of a name; empty: the rule's."""
    fields = KERNELS[stem].unpack(params)
    if not variant:
        return RULES[stem](fields)
    if variant.startswith(one_order.PREFIX):
        return one_order.configs(stem, fields)[variant]()
    return variants(stem, params)[variant]


def variants(stem: str, params: bytes) -> Mapping[str, LaunchConfig]:
    """Returns other launch configurations than a kernel's rule has, by descriptive names."""
    fields = KERNELS[stem].unpack(params)
    if stem == "linear":
        return _linear(fields)
    if stem in tma_matmul.STEMS:
        return {
            tile.name: tma_matmul.tma_matmul(fields, tile)
            for tile in tma_matmul.tiles(fields, _MOST_TMA)
        }
    if stem in tma_codes.STEMS:
        codes = {t.name: tma_codes.tma_codes(fields, t) for t in tma_codes.tiles(fields, _MOST_TMA)}
        return codes | {
            expanded_codes.name_of(tile): expanded_codes.expanded(fields, tile)
            for tile in expanded_codes.tiles(fields, _MOST_EXPANDED)
        }
    if stem == "attention":
        return _attention(fields)
    if stem == "conv":
        return _conv(fields)
    if stem == "conv_depthwise":
        return {s.name: strips.strip_launch(fields, s) for s in strips.strips(fields)}
    return {}


def _linear(p: Params) -> dict[str, LaunchConfig]:
    m, n, k = (as_int(p, name) for name in "mnk")
    if m <= tma_matmul.FEW_ROWS or 0 in (n, k) or not on_tensor_cores(p["x_dtype"], p["w_dtype"]):
        return {}
    copied = {tile.name: tma_matmul.tma_matmul(p, tile) for tile in tma_matmul.tiles(p, _MOST_TMA)}
    return copied | {
        f"{tile.rows}x{tile.columns}/{split}": matmul_rules.tiled(
            m,
            n,
            k,
            parts=2 if p["gated"] else 1,
            tensor_cores=True,
            arguments=linear_operands(p),
            shapes=(tile,),
            splits=(split,),
        )
        for tile in matmul_rules.TILES
        for split in _SPLITS
        if split == 1 or k >= 128 * split
    }


def _attention(p: Params) -> dict[str, LaunchConfig]:
    copied = {t.name: tma_attention.tma_attention(p, t) for t in tma_attention.tiles(p)}
    config = attention_rules.attention_cluster(p)
    return copied if config is None else copied | {CLUSTER: config}


def _conv(p: Params) -> dict[str, LaunchConfig]:
    channels = as_int(p, "in_channels") // as_int(p, "groups")
    rule = convolutions.conv(p)
    if rule.launches and rule.defines["PATH"] == KernelPath.STRIP:
        return {s.name: strips.strip_launch(p, s) for s in strips.strips(p)}
    if not rule.launches or rule.defines["PATH"] != KernelPath.TILE_MMA:
        return {}
    depth = channels
    for taps in as_ints(p, "kernel"):
        depth *= taps
    configs = {
        f"{tile.rows}x{tile.columns}/{split}": convolutions.conv_tiles(p, tile, split)
        for tile in convolutions.TILES
        for split in _SPLITS
        if split == 1 or depth >= 128 * split
    }
    return {k: g for k, g in configs.items() if g.launches[0].shared <= _MOST_SHARED}
