"""What launch rules take commands to last: the time of the tiles that they choose.

A rule chooses tiles by what these were measured to take (`targets/architectures/`): rounds of tiles
over the processors, slices of K, what passes the second cache. Who predicts commands
(`simulate/launches.py`) asks here, so that a prediction is of the tiles that are launched.
"""

from __future__ import annotations

from math import prod

from npusim.abi.kernels import Params
from npusim.codegen.cuda import (
    convolutions,
    group_norms,
    matmul_rules,
    strips,
    tma_attention,
    tma_matmul,
)
from npusim.codegen.cuda.matmul_rules import GPU, on_tensor_cores
from npusim.codegen.cuda.rows import RULES as ROWS
from npusim.codegen.launch_config import as_int, as_ints


def busy_microseconds(stem: str, p: Params) -> float | None:
    """Returns about how long the chosen tiles take, without what any launch takes to begin.

    Args:
        stem: of the kernel.
        p: all of its fields.

    Returns:
        None where no rule says it, as of commands that are not computed in tiles, or of no work.
    """
    if stem in tma_matmul.STEMS:
        return _linear(p)
    if stem == "matmul":
        empty = as_int(p, "m") * as_int(p, "n") * prod(as_ints(p, "batch")) == 0
        return None if empty else matmul_rules.matmul_microseconds(p)
    if stem == "conv":
        return _convolution(p)
    if stem == "conv_depthwise":
        strip = strips.best_strip(p) if prod(as_ints(p, "out_size")) else None
        return None if strip is None else _strip(p, strip)
    if stem == "attention":
        return _attention(p)
    if stem == "group_norm":
        config = ROWS[stem](p)
        return group_norms.busy_microseconds(p, config) if config.launches else None
    return None


def _linear(p: Params) -> float | None:
    m, n, k = (as_int(p, name) for name in "mnk")
    if 0 in (m, n, k):
        return None
    tiles = tma_matmul.tiles(p, 1)
    if tiles:
        return tma_matmul.busy_microseconds(p, tiles[0])
    tensor_cores = on_tensor_cores(p["x_dtype"], p["w_dtype"])
    parts = 2 if p["gated"] else 1
    return matmul_rules.tiled_microseconds(m, n, k, parts=parts, tensor_cores=tensor_cores)


def _convolution(p: Params) -> float | None:
    """Returns the time of tiles, of patches or of strips."""
    groups = as_int(p, "groups")
    if groups < 1:
        return None
    positions = as_int(p, "batch") * prod(as_ints(p, "out_size"))
    columns, channels = as_int(p, "out_channels") // groups, as_int(p, "in_channels") // groups
    k = prod(as_ints(p, "kernel")) * channels
    if 0 in (positions, columns, k):
        return None
    along = as_ints(p, "x_strides")[1] == 1
    tensor_cores = on_tensor_cores(p["x_dtype"], p["w_dtype"])
    if convolutions.in_patches(p):
        return convolutions.patch_microseconds(p)
    if tensor_cores and channels % 8 == 0 and along:
        residual = bool(p["residual"])
        return convolutions.tile_microseconds(
            positions, columns, k, groups=groups, residual=residual
        )
    strip = strips.best_strip(p) if groups > 1 and not p["transposed"] and along else None
    if strip is not None:
        return _strip(p, strip)
    return matmul_rules.tiled_microseconds(positions, columns, k, tensor_cores=False, batch=groups)


def _strip(p: Params, strip: strips.Strip) -> float:
    return strips.strip_instructions(p, strip) / GPU.processors.instructions_per_us


def _attention(p: Params) -> float | None:
    """Returns the time of the tiles for 16 bits; those of others have no estimate."""
    empty = 0 in (as_int(p, name) for name in ("q_len", "kv_len", "batch", "kv_heads", "head_dim"))
    if empty or not on_tensor_cores(p["dtype"], p["dtype"]):
        return None
    tile = tma_attention.best(p)
    if tile is not None:
        return tma_attention.busy_microseconds(p, tile)
    return tma_attention.plain_microseconds(p)
