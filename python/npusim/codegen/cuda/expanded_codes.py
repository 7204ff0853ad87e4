"""Products over codes that are expanded first: a launch that writes 16-bit floats, and a `linear`.

Codes cost a product of many rows more than their expansion does, which is paid once, whatever the
number of rows (kernels/cuda/quantization/expanded_codes.h). Owns which products those are.
"""

from __future__ import annotations

from dataclasses import replace

from npusim.abi.kernels import KERNELS, LINEAR_SEGMENTS, Params
from npusim.abi.quantization import BYTE_CODES
from npusim.codegen.cuda import tma_codes, tma_matmul
from npusim.codegen.cuda.code_rows import MOST_ROWS
from npusim.codegen.cuda.matmul_rules import GPU, epilogue_operands, on_tensor_cores
from npusim.codegen.cuda.tma_matmul import ClusterTile
from npusim.codegen.launch_config import Launch, LaunchConfig, as_int, as_ints, blocks

_PREFIX = "expanded "
_PADDING = 128  # elements, to a multiple of which rows of codes are padded
_CHUNK = 8  # elements, 16 bytes of the expanded matrix
_BLOCK, _CHUNKS = 256, 4  # threads, and chunks of each
_LINE = 64  # bytes, from which the scales lie
_FIT = GPU.code_rows


def name_of(tile: ClusterTile) -> str:
    """What tuning files call it."""
    return _PREFIX + tile.name


def product_of(p: Params) -> Params:
    """Returns the `linear` over the expanded matrix, one segment, that a product becomes."""
    names = {name for name, _, _ in KERNELS["linear"].fields}
    rest = (0,) * (LINEAR_SEGMENTS - 1)
    own = {name: value for name, value in p.items() if name in names}
    return own | {
        "rows": (_rows(p), *rest),
        "ldw": (_padded(p), *rest),
        "segments": 1,
        "w_dtype": p["x_dtype"],
    }


def tiles(p: Params, most: int) -> list[ClusterTile]:
    """Returns the tiles that fit the product, the fastest first; none where there is no room."""
    segments = as_ints(p, "rows")[: as_int(p, "segments")]
    few = as_int(p, "m") <= MOST_ROWS or 0 in segments
    if few or not on_tensor_cores(p["x_dtype"], p["x_dtype"]):
        return []
    if _scratch(p) > _FIT.most_expanded_bytes:
        return []
    return tma_matmul.tiles(product_of(p), most)


def microseconds(p: Params, tile: ClusterTile) -> float:
    """Returns about how long expansion and product take."""
    row_bytes = _padded(p) if p["format"] in BYTE_CODES else _padded(p) // 2
    moved = _rows(p) * row_bytes + _matrix(p)
    expansion = _FIT.expand_begin_us + moved / _FIT.expanded_bytes_per_us
    return expansion + tma_matmul.microseconds(product_of(p), tile)


def expanded(p: Params, tile: ClusterTile) -> LaunchConfig:
    """Returns the launches of a product by a tile that fits."""
    segments = as_int(p, "segments")
    scratch_at = 1 + segments + epilogue_operands(p)  # the argument after the operands
    product = tma_matmul.tma_matmul(product_of(p), tile)
    x, w = product.maps
    longest = max(as_ints(p, "rows")[:segments]) * _padded(p) // _CHUNK
    grid = (blocks(longest, _BLOCK * _CHUNKS), segments, 1)
    scales = {"SCALES_AT": _scales_at(p)} if p["format"] in BYTE_CODES else {}
    return LaunchConfig(
        (Launch(grid, (_BLOCK, 1, 1), entry="npusim_expand"), *product.launches),
        _scratch(p),
        maps=(x, replace(w, operand=scratch_at)),
        product=product_of(p),
        defines={
            **product.defines,
            **scales,
            "EXPANDED": 1,
            "EXPAND_BLOCK": _BLOCK,
            "CHUNKS": _CHUNKS,
            "ARGUMENTS": scratch_at + 1,
        },
    )


def best(p: Params) -> str:
    """Returns the name of the fastest way over codes by TMA, expanded or not; "": there is none."""
    found = [(tma_codes.microseconds(p, tile), tile.name) for tile in tma_codes.tiles(p, 1)]
    found += [(microseconds(p, tile), name_of(tile)) for tile in tiles(p, 1)]
    return min(found)[1] if found else ""


def _padded(p: Params) -> int:
    return blocks(as_int(p, "k"), _PADDING) * _PADDING


def _rows(p: Params) -> int:
    return as_int(p, "n") * (2 if p["gated"] else 1)


def _matrix(p: Params) -> int:
    """Bytes of the expanded matrix."""
    return 2 * _rows(p) * _padded(p)


def _scales_at(p: Params) -> int:
    return blocks(_matrix(p), _LINE) * _LINE


def _scratch(p: Params) -> int:
    return _scales_at(p) + (4 * _rows(p) if p["format"] in BYTE_CODES else 0)
