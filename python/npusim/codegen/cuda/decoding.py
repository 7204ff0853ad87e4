"""Launch configurations of what a decoder runs for one token: linears of one row, attention_step.

Both are bound by memory: what counts is how early loads are issued, and how many are in flight. A
linear that `gemv_multistage.h` cannot compute is left to `matmul_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from npusim.abi.kernels import Params
from npusim.abi.quantization import BYTE_CODES
from npusim.codegen.cuda import code_rows, matmul_rules
from npusim.codegen.cuda.matmul_rules import (
    GPU,
    MOST_SHARED,
    PROCESSORS,
    epilogue_operands,
    on_tensor_cores,
)
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, as_int, as_ints, blocks
from npusim.targets.measured import CodeStreams

_FIT = GPU.decode
_GEMV_WARPS = 8
_GEMV_ROW_BYTES = 128  # of W in a stage: a block of K
_GEMV_COLUMNS = 256  # that a block may have: a thread each
_CODE_ROW_BYTES = (64, 128)  # likewise, of codes
_CODE_STAGE_BYTES = 32  # of a row, which take as long as a stage's waiting and turning
_CODE_ROWS = 8  # of x: columns of the tensor core's smallest product
_CODE_SUMS = 1024  # of a block, that warps leave each other
_ASYMMETRIC = 3  # a format of codes

_STEP_KEYS = 16  # of a slice
_STEP_CLUSTER = 8  # blocks of a cluster; every device with clusters takes as many
_STEP_WARPS = 8  # of a block
_STEP_READING = (
    4,
    2,
)  # of these, warps that read slices: the first for which there is shared memory


def linear(p: Params) -> LaunchConfig:
    """The rule of `linear`."""
    arguments = 1 + as_int(p, "segments") + epilogue_operands(p)
    return _multistage_gemv(p, arguments) or matmul_rules.linear(p)


def normed_linear(p: Params) -> LaunchConfig:
    """The rule of `normed_linear`."""
    arguments = 2 + as_int(p, "segments") + epilogue_operands(p)
    return _multistage_gemv(p, arguments) or matmul_rules.normed_linear(p)


def quantized_linear(p: Params) -> LaunchConfig:
    """The rule of `quantized_linear`."""
    arguments = 1 + as_int(p, "segments") + epilogue_operands(p)
    config, split = None, split_of(p)
    if as_int(p, "m") <= GPU.code_rows.multistage_rows:
        config = _multistage_codes(p, arguments)
        if config is not None and _split(config) != split:
            config = None
    config = config or code_rows.code_rows(p, arguments, split)
    return config or matmul_rules.quantized_linear(p)


def split_of(p: Params) -> tuple[int, int] | None:
    """Returns how the warps of a product of one row with codes share K, for more rows to follow.

    None: one row is computed in another way. Else the warps of a block, and the bytes of a row of W
    that they take turns at.
    """
    config = _multistage_codes({**p, "m": 1}, 0)
    return _split(config) if config else None


def _split(config: LaunchConfig) -> tuple[int, int]:
    return config.defines["BLOCK"] // 32, config.defines["ROW_BYTES"]


def normed_quantized_linear(p: Params) -> LaunchConfig:
    """The rule of `normed_quantized_linear`."""
    arguments = 2 + as_int(p, "segments") + epilogue_operands(p)
    config = LaunchConfig(()) if p["n"] == 0 else _multistage_codes(p, arguments)
    assert config is not None, p
    return config


@dataclass(frozen=True, slots=True)
class _Stage:
    """Rows of W as they lie in a stage, of which each has a block of K.

    Attributes:
        row_bytes: of a row. side_bytes: beside it, of scales and zero points.
        elements: of a block of K.
        row_blocks: blocks of K in a row of W.
        fit: what was measured of codes.
    """

    row_bytes: int
    elements: int
    row_blocks: int
    side_bytes: int = 0
    fit: CodeStreams | None = None


def _multistage_gemv(p: Params, arguments: int) -> LaunchConfig | None:
    """Returns one block a multiprocessor, W through a multistage pipeline in shared memory.

    None for many columns, of which smaller blocks fill the device many times over, for dtypes that
    the tensor cores do not multiply, and for rows that are not whole loads of 16 bytes.
    """
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    columns = blocks(n, PROCESSORS)
    lines = (k, *as_ints(p, "ldw")[: as_int(p, "segments")])
    if m != 1 or 0 in (n, k) or columns > _GEMV_COLUMNS or any(line % 8 for line in lines):
        return None
    if not on_tensor_cores(p["x_dtype"], p["w_dtype"]):
        return None
    stage = _Stage(_GEMV_ROW_BYTES, 64, blocks(2 * k, _GEMV_ROW_BYTES))
    return _multistage(p, stage, columns, arguments)


def _multistage_codes(p: Params, arguments: int) -> LaunchConfig | None:
    """Returns the same for codes: for many columns, several blocks a multiprocessor.

    None for more rows of x than the tensor cores multiply at once, or than there is room for.
    """
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    parts = 2 if p["gated"] else 1
    if m > _CODE_ROWS or 0 in (m, n, k) or k % 8:
        return None
    if not on_tensor_cores(p["x_dtype"], p["x_dtype"]):
        return None
    most = min(_GEMV_COLUMNS, _CODE_SUMS // (m * parts))
    each = blocks(blocks(n, PROCESSORS), most)  # blocks of a multiprocessor, two at a time
    grid = PROCESSORS * (each if each == 1 else blocks(each, 2) * 2)
    made = (_multistage(p, stage, blocks(n, grid), arguments, grid) for stage in _code_stages(p))
    return next((config for config in made if config is not None), None)


def _code_stages(p: Params) -> list[_Stage]:
    """Returns stages of codes, first the one that gives all warps about as much to do."""
    k, int8 = blocks(as_int(p, "k"), 128) * 128, p["format"] in BYTE_CODES
    codes, fit = k if int8 else k // 2, _FIT.bytes if int8 else _FIT.nibbles
    choices = []
    for row_bytes in _CODE_ROW_BYTES:
        if codes % row_bytes:
            continue
        elements, side = row_bytes, 0
        if not int8:
            elements = 2 * row_bytes
            groups = elements // as_int(p, "group")
            side = max(4, 2 * groups) + (max(4, groups) if p["format"] == _ASYMMETRIC else 0)
        row_blocks = codes // row_bytes
        time = blocks(row_blocks, fit.warps) * (row_bytes + side + _CODE_STAGE_BYTES)
        choices.append((time, _Stage(row_bytes, elements, row_blocks, side, fit)))
    return [stage for _, stage in sorted(choices, key=lambda choice: choice[0])]


def _multistage(
    p: Params, stage: _Stage, columns: int, arguments: int, grid: int = PROCESSORS
) -> LaunchConfig | None:
    """Returns blocks of so many columns of y; None where x leaves no room for two stages."""
    m, parts = as_int(p, "m"), 2 if p["gated"] else 1
    warps = stage.fit.warps if stage.fit else _GEMV_WARPS
    most, small = _FIT.shared_bytes, _FIT.small_shared_bytes
    if stage.fit is not None and stage.fit.shared_bytes:
        most = small = stage.fit.shared_bytes
    elif "norm_eps" in p:
        small = _FIT.small_normed_shared_bytes
    tiles = blocks(columns * parts, 16)
    covered = 32 * 16 // stage.row_bytes  # rows, by a load of a warp
    rows = 16 if tiles > 1 or parts > 1 else blocks(columns, covered) * covered
    k_blocks = blocks(stage.row_blocks, warps)  # that a warp loads of a tile
    stage_bytes = warps * rows * (stage.row_bytes + stage.side_bytes)
    x_row = k_blocks * stage.elements * 2 + (16 if m > 1 else 0)
    x = warps * x_row * (2 if "norm_eps" in p else m)
    sums = 4 * warps * tiles * 16 * m
    room = min(most, MOST_SHARED - sums) - x
    stages = min(tiles * k_blocks, room // stage_bytes)
    if stages < min(2, tiles * k_blocks):
        return None
    threads, shared, padded = 32 * warps, stages * stage_bytes + x, None
    if stages == tiles * k_blocks and grid == PROCESSORS:
        padded = max(shared, small)
    defines = {
        "PATH": KernelPath.GEMV_MULTISTAGE,
        "BLOCK": threads,
        "COLUMNS": columns,
        "STAGES": stages,
        "SHARED": shared,
        "ARGUMENTS": arguments,
    }
    if stage.fit is not None:
        defines["ROW_BYTES"] = stage.row_bytes
        defines["BLOCKS_PER_SM"] = stage.fit.register_blocks
    launch = Launch((grid, 1, 1), (threads, 1, 1), shared, padded_shared=padded)
    return LaunchConfig((launch,), defines=defines)


def attention_step(p: Params) -> LaunchConfig:
    """The rule of `attention_step`: a cluster a key/value head, whose warps divide the keys."""
    kv_heads, head_dim, v_dim = as_int(p, "kv_heads"), as_int(p, "head_dim"), as_int(p, "v_dim")
    group = as_int(p, "heads") // kv_heads
    d_line, v_line = blocks(head_dim, 64) * 128, blocks(v_dim, 64) * 128
    pairs = blocks(group * v_dim // 2, _STEP_CLUSTER)  # of elements of y, that a block stores

    def shared_by(reading: int) -> int:
        sent = 8 * _STEP_CLUSTER * reading * (pairs + group)  # bytes, by all warps of the cluster
        slices = reading * _FIT.step_stages * _STEP_KEYS * (d_line + v_line)
        return _STEP_KEYS * d_line + sent + slices

    reading = next((r for r in _STEP_READING if shared_by(r) <= MOST_SHARED), _STEP_READING[-1])
    shared = shared_by(reading)
    heads = as_int(p, "batch") * kv_heads
    each = _STEP_CLUSTER * reading * _STEP_KEYS  # keys that a cluster reads at once
    clusters = min(_FIT.step_clusters // heads, blocks(as_int(p, "limit"), each))
    scratch = 8 * group * v_dim * clusters * heads if clusters > 1 else 0
    defines = {
        "BLOCK": 32 * _STEP_WARPS,
        "STAGES": _FIT.step_stages,
        "CLUSTER_SIZE": _STEP_CLUSTER,
        "READING_WARPS": reading,
        "CLUSTERS": max(clusters, 1),
        "SHARED": shared,
        "BLOCKS_PER_SM": 16 // _STEP_WARPS if max(head_dim, v_dim) <= 128 else 1,
        "ARGUMENTS": 11 if scratch else 10,
    }
    launch = Launch(
        (_STEP_CLUSTER * defines["CLUSTERS"], heads, 1), (32 * _STEP_WARPS, 1, 1), shared
    )
    return LaunchConfig((launch,), scratch, failure=True, defines=defines)


RULES: Mapping[str, Rule] = {
    "attention_step": attention_step,
    "linear": linear,
    "normed_linear": normed_linear,
    "normed_quantized_linear": normed_quantized_linear,
    "quantized_linear": quantized_linear,
}
