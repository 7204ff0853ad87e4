"""The time of a command on a device that is known by what it reaches (`targets/roofline.py`).

    t = start + items * item + (compute^p + memory^p)^(1/p)

`compute` are the operations, of whole rounds of tiles, at the share of the peak that the command's
class reaches; `memory` are the bytes of its operands, each once, at the share of the rate of the
nearest memory that holds them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from npusim.abi.kernels import KERNELS, Params
from npusim.abi.scalar_cost import chain_multiply_adds
from npusim.ir.types import DTYPES
from npusim.targets.roofline import Roofline, RooflineClass

_DTYPES = {code: name for name, (code, *_) in DTYPES.items()}
_COMPUTED_IN = ("w_dtype", "b_dtype", "x_dtype", "dtype")  # fields that say it, the first there is


@dataclass(frozen=True, slots=True)
class Work:
    """What the formula asks of a command.

    Attributes:
        operations: by its kernel's definition.
        nbytes: of its operands, each once.
        dtype: of what it computes with.
        groups: products, rows, or other items that have nothing to do with each other.
        rows, columns: of what each of them computes.
    """

    operations: int
    nbytes: int
    dtype: str
    groups: int = 1
    rows: int = 1
    columns: int = 1

    def tiles(self, rows: int, columns: int) -> int:
        """Returns the tiles of such sizes that cover it."""
        return self.groups * -(-self.rows // rows) * -(-self.columns // columns)

    def whole(self, rows: int, columns: int, units: int) -> float:
        """Returns how much larger the work is of whole tiles, in whole rounds of so many."""
        covered = -(-self.tiles(rows, columns) // units) * units * rows * columns
        return covered / (self.groups * self.rows * self.columns)


@dataclass(frozen=True, slots=True)
class RooflineTime:
    """The seconds of a command, in parts.

    Attributes:
        start: fixed, with the time that its items take besides their arithmetic.
        compute, memory: what each would take alone.
        total: start, and the two of them as far as they do not hide each other.
        level: the memory that its operands are taken to lie in.
    """

    start: float
    compute: float
    memory: float
    total: float
    level: str


def work_of(stem: str, params: Params, operations: int, nbytes: int) -> Work:
    """Returns what the formula asks of a command.

    Args:
        stem: of its kernel.
        params: its kernel's fields; those that are 0 may be missing.
        operations, nbytes: as `npusim.abi.kernel_cost` counts them.
    """
    zeros = {name: 0 if count == 1 else (0,) * count for name, _, count in KERNELS[stem].fields}
    fields: Params = {**zeros, **params}
    groups, rows, columns = (max(1, size) for size in _SIZES.get(stem, _no_sizes)(fields))
    code = next((fields[k] for k in _COMPUTED_IN if k in fields), 0)
    dtype = _DTYPES[code[0] if isinstance(code, tuple) else code]
    if stem == "pointwise":  # whose functions differ by far
        each = chain_multiply_adds(fields["code"], fields["n_instructions"])
        operations = each * math.prod(fields["shape"])
    return Work(operations, nbytes, dtype, groups, rows, columns)


def command_time(work: Work, stem: str, device: Roofline) -> RooflineTime:
    """Returns how long a command takes."""
    kind, level = device.class_of(stem, work.rows), device.level(work.nbytes)
    peak = device.peak(work.dtype)
    reached = peak.product_tera_ops_per_second if kind.products else peak.vector_tera_ops_per_second
    tile = kind.tile_rows, kind.tile_columns
    compute = (
        work.operations * work.whole(*tile, kind.units) / (1e12 * reached * kind.compute_share)
    )
    memory = work.nbytes / (1e9 * level.giga_bytes_per_second * kind.memory_share)
    start = 1e-6 * (kind.start_us + kind.item_us * work.tiles(*tile))
    return RooflineTime(start, compute, memory, start + _either(compute, memory, kind), level.name)


def run_time(commands: list[RooflineTime], device: Roofline) -> float:
    """Returns the seconds of a run of commands in order."""
    hidden = 1e-6 * device.overlap_us
    return 1e-6 * device.call_us + sum(max(c.total - hidden, c.total - c.start) for c in commands)


def _either(compute: float, memory: float, kind: RooflineClass) -> float:
    most = max(compute, memory)
    if most == 0:
        return 0.0
    parts = (compute / most) ** kind.overlap + (memory / most) ** kind.overlap
    return most * parts ** (1 / kind.overlap)


# ---- how a kernel's work falls into items ----

Sizes = tuple[int, int, int]  # groups, rows, columns


def _no_sizes(_: Params) -> Sizes:
    return 1, 1, 1


def _product(p: Params) -> Sizes:
    return math.prod(max(1, b) for b in p.get("batch", ())), p["m"], p["n"]


def _convolution(p: Params) -> Sizes:
    out, groups = p["out_size"], p.get("groups", 1)  # pools have none
    planes = p["batch"] * out[0] * out[1]
    return planes * groups, out[2], p["out_channels"] // groups


def _attention(p: Params) -> Sizes:
    return p["batch"] * p["heads"], p["q_len"], p["kv_len"]


def _norm(p: Params) -> Sizes:
    return p["rows"], 1, p["size"]


def _lines(p: Params) -> Sizes:
    return p["outer"] * p["inner"], 1, p["size"]


def _reduce(p: Params) -> Sizes:
    out, inner = p["shape"][: p["rank"]], p["reduced"][: p["reduced_rank"]]
    return math.prod(out), 1, math.prod(inner)


def _copy(p: Params) -> Sizes:
    shape = p["shape"][: p["rank"]] or (1,)
    return math.prod(shape[:-1]), 1, shape[-1]


def _elements(p: Params) -> Sizes:
    return 1, 1, math.prod(p["shape"])


_PRODUCTS = (
    "gemm", "linear", "normed_linear", "linear_before_norm", "linear_behind_norm",
    "quantized_linear", "matmul", "grouped_matmul",
)  # fmt: skip
_WINDOWS = ("conv", "conv_depthwise", "conv_winograd", "conv_int8", "pool")
_SIZES: dict[str, Callable[[Params], Sizes]] = {
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_WINDOWS, _convolution),
    **dict.fromkeys(("softmax", "scan", "sort"), _lines),
    "attention": _attention,
    "norm": _norm,
    "reduce": _reduce,
    "copy": _copy,
    "pointwise": _elements,
}
