"""Launch configurations of what a decoder runs for one token: linears of one row, attention_step.

Both are bound by memory: what counts is how early loads are issued, and how many are in flight. A
linear that `gemv_multistage.h` cannot compute is left to `matmul_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping

from npusim.abi.kernels import Params
from npusim.codegen.cuda import matmul_rules
from npusim.codegen.cuda.matmul_rules import (
    GPU,
    MOST_SHARED,
    PROCESSORS,
    epilogue_operands,
    on_tensor_cores,
)
from npusim.codegen.cuda.paths import KernelPath
from npusim.codegen.launch_config import Launch, LaunchConfig, Rule, as_int, as_ints, blocks

_FIT = GPU.decode
_GEMV_WARPS = 8
_GEMV_ROW_BYTES = 128  # of W in a stage: a block of K
_GEMV_COLUMNS = 256  # that a block may have: a thread each

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


def _multistage_gemv(p: Params, arguments: int) -> LaunchConfig | None:
    """Returns one block a multiprocessor, W through a multistage pipeline in shared memory.

    None for many columns, of which smaller blocks fill the device many times over, for dtypes that
    the tensor cores do not multiply, and for rows that are not whole loads of 16 bytes.
    """
    m, n, k = as_int(p, "m"), as_int(p, "n"), as_int(p, "k")
    segments, parts = as_int(p, "segments"), 2 if p["gated"] else 1
    columns = blocks(n, PROCESSORS)
    lines = (k, *as_ints(p, "ldw")[:segments])
    if m != 1 or 0 in (n, k) or columns > _GEMV_COLUMNS or any(line % 8 for line in lines):
        return None
    if not on_tensor_cores(p["x_dtype"], p["w_dtype"]):
        return None
    tiles = blocks(columns * parts, 16)
    rows = 16 if tiles > 1 or parts > 1 else blocks(columns, 4) * 4
    k_blocks = blocks(blocks(2 * k, _GEMV_ROW_BYTES), _GEMV_WARPS)  # that a warp loads of a tile
    stage_bytes = _GEMV_WARPS * rows * _GEMV_ROW_BYTES
    x = _GEMV_WARPS * k_blocks * _GEMV_ROW_BYTES * (2 if "norm_eps" in p else 1)
    stages = min(tiles * k_blocks, (_FIT.shared_bytes - x) // stage_bytes)
    if stages < 2 and tiles * k_blocks > 1:
        return None
    threads, shared, padded = 32 * _GEMV_WARPS, stages * stage_bytes + x, None
    if stages == tiles * k_blocks:
        small = _FIT.small_normed_shared_bytes if "norm_eps" in p else _FIT.small_shared_bytes
        padded = max(shared, small)
    defines = {
        "PATH": KernelPath.GEMV_MULTISTAGE,
        "BLOCK": threads,
        "COLUMNS": columns,
        "STAGES": stages,
        "SHARED": shared,
        "ARGUMENTS": arguments,
    }
    launch = Launch((PROCESSORS, 1, 1), (threads, 1, 1), shared, padded_shared=padded)
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
}
