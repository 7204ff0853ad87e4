"""The time of a command on a device that is known by what it reaches (`targets/roofline.py`).

    t = start + items * item + steps * step + (compute^p + memory^p)^(1/p)

`compute` are the operations, of whole rounds of tiles, at the share of the peak that the command's
class reaches; `memory` are the bytes of its operands, each once, at the share of the rate of the
nearest memory that still holds them when the command begins (`profile/reuse.py`). `start` is longer
where caches no longer hold the kernel's code, and shorter in a run, by what passes of it while the
commands before still run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from npusim.abi.kernels import KERNELS, Params
from npusim.abi.scalar_cost import chain_multiply_adds
from npusim.ir.types import DTYPE_NAMES
from npusim.profile.reuse import Reuse
from npusim.targets.roofline import Roofline

Seconds = float | np.ndarray

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
        depth: steps of an item that follow one another: of its sum, of its keys, of its row.
        reuse: bytes of operands and their reach; empty: unknown, and then the command is taken to
            find what it touches in the nearest memory that holds all of it.
        code: bytes touched since a command of its kernel; 0: unknown or none.
        sized: whether rows and columns are known; else nothing is rounded up to tiles of them.
    """

    operations: int
    nbytes: int
    dtype: str
    groups: int = 1
    rows: int = 1
    columns: int = 1
    depth: int = 1
    reuse: tuple[tuple[int, int], ...] = ()
    code: int = 0
    sized: bool = True

    def tiles(self, rows: int, columns: int) -> int:
        """Returns the tiles of such sizes that cover it."""
        return self.groups * -(-self.rows // rows) * -(-self.columns // columns)

    def steps(self, rows: int, columns: int, units: int) -> int:
        """Returns the steps that follow one another, of all rounds of such tiles."""
        rounds = -(-self.tiles(rows, columns) // units) if units > 1 else 1
        return rounds * self.depth

    def whole(self, rows: int, columns: int, units: int) -> float:
        """Returns how much larger the work is of whole tiles, in whole rounds of so many."""
        if not self.sized:
            return 1.0
        covered = -(-self.tiles(rows, columns) // units) * units * rows * columns
        return covered / (self.groups * self.rows * self.columns)


@dataclass(frozen=True, slots=True)
class RooflineTime:
    """The seconds of a command, in parts.

    Attributes:
        start: fixed, with the time that its items take besides their arithmetic.
        compute, memory: what each would take alone.
        total: start, and the two of them as far as they do not hide each other.
        level: the memory that takes longest to deliver operands.
        hidden: of the start in a run, at most.
    """

    start: float
    compute: float
    memory: float
    total: float
    level: str
    hidden: float = 0.0

    @property
    def begins(self) -> float:
        """What is left of the start in a run, whose commands begin while others still end."""
        return max(0.0, self.start - self.hidden)

    @property
    def in_run(self) -> float:
        """What the command adds to a run."""
        return self.begins + self.total - self.start


def work_of(
    stem: str, params: Params, operations: int, nbytes: int, reuse: Reuse | None = None
) -> Work:
    """Returns what the formula asks of a command.

    Args:
        stem: of its kernel.
        params: its kernel's fields; those that are 0 may be missing.
        operations, nbytes: as `npusim.abi.kernel_cost` counts them.
        reuse: what it finds in caches; None: unknown.
    """
    zeros = {name: 0 if count == 1 else (0,) * count for name, _, count in KERNELS[stem].fields}
    fields: Params = {**zeros, **params}
    sizes = _SIZES.get(stem, _no_sizes)(fields)
    groups, rows, columns, depth = (max(1, size) for size in sizes)
    code = next((fields[k] for k in _COMPUTED_IN if k in fields), 0)
    dtype = DTYPE_NAMES[code[0] if isinstance(code, tuple) else code]
    if stem == "attention":  # keys that count, of a cache as of those that come later
        depth = max(1, operations // (4 * groups * rows * fields["head_dim"]))
    if stem == "pointwise":  # whose functions differ by far
        each = chain_multiply_adds(fields["code"], fields["n_instructions"])
        operations = each * math.prod(fields["shape"])
    found = (reuse.operands, reuse.code) if reuse is not None else ((), 0)
    return Work(
        operations, nbytes, dtype, groups, rows, columns, depth, *found, sized=stem in _SIZES
    )


def command_time(work: Work, stem: str, device: Roofline) -> RooflineTime:
    """Returns how long a command takes."""
    kind = device.class_of(stem, work.rows)
    peak = device.peak(work.dtype)
    reached = peak.product_tera_ops_per_second if kind.products else peak.vector_tera_ops_per_second
    tile = kind.tile_rows, kind.tile_columns
    compute = (
        work.operations * work.whole(*tile, kind.units) / (1e12 * reached * kind.compute_share)
    )
    level, alone = _memory(work, device)
    memory = alone / kind.memory_share
    start = 1e-6 * (kind.start_us + kind.item_us * work.tiles(*tile))
    start += 1e-9 * kind.step_ns * work.steps(*tile, kind.units)
    if work.code > device.caches:
        start += 1e-6 * kind.cold_us
    total = start + float(either(compute, memory, kind.overlap))
    return RooflineTime(start, compute, memory, total, level, 1e-6 * kind.hidden_us)


def run_time(commands: list[RooflineTime], device: Roofline) -> float:
    """Returns the seconds of a run of commands in order."""
    return 1e-6 * device.call_us + sum(command.in_run for command in commands)


def _memory(work: Work, device: Roofline) -> tuple[str, float]:
    """Returns the memory that takes longest, and the seconds of all at their full rates."""
    seconds = dict.fromkeys((level.name for level in device.memory), 0.0)
    for nbytes, reach in work.reuse or ((work.nbytes, work.nbytes),):
        level = device.level(reach)
        seconds[level.name] += nbytes / (1e9 * level.giga_bytes_per_second)
    return max(seconds, key=lambda name: seconds[name]), sum(seconds.values())


def either(compute: Seconds, memory: Seconds, overlap: float) -> Seconds:
    """Returns the time of both, of which the slower one hides the other; of arrays: of each."""
    most = np.maximum(compute, memory)
    least = np.minimum(compute, memory) / np.maximum(most, 1e-30)
    return most * (1 + least**overlap) ** (1 / overlap)


# ---- how a kernel's work falls into items ----

Sizes = tuple[int, int, int, int]  # groups, rows, columns, depth


def _no_sizes(_: Params) -> Sizes:
    return 1, 1, 1, 1


def _product(p: Params) -> Sizes:
    return math.prod(max(1, b) for b in p.get("batch", ())), p["m"], p["n"], p["k"]


def _depthwise(p: Params) -> Sizes:
    """Returns elements: each is computed by itself."""
    elements = p["batch"] * math.prod(p["out_size"]) * p["out_channels"]
    return 1, 1, elements, math.prod(p["kernel"])


def _convolution(p: Params) -> Sizes:
    out, groups = p["out_size"], max(1, p.get("groups", 1))  # pools have none
    planes = p["batch"] * out[0] * out[1]
    depth = math.prod(p["kernel"]) * (p.get("in_channels", groups) // groups)
    return planes * groups, out[2], p["out_channels"] // groups, depth


def _attention(p: Params) -> Sizes:
    """Returns the queries of each head: a tile of them goes through all keys."""
    return p["batch"] * p["heads"], p["q_len"], 1, p["kv_len"]


def _norm(p: Params) -> Sizes:
    return p["rows"], 1, p["size"], p["size"]


def _group_norm(p: Params) -> Sizes:
    size = p["spatial"] * p["channels"] // max(1, p["groups"])
    return p["batch"] * p["groups"], 1, size, size


def _lines(p: Params) -> Sizes:
    return p["outer"] * p["inner"], 1, p["size"], p["size"]


def _reduce(p: Params) -> Sizes:
    out, inner = p["shape"][: p["rank"]], p["reduced"][: p["reduced_rank"]]
    return math.prod(out), 1, math.prod(inner), math.prod(inner)


def _copy(p: Params) -> Sizes:
    shape = p["shape"][: p["rank"]] or (1,)
    return math.prod(shape[:-1]), 1, shape[-1], 1


def _elements(p: Params) -> Sizes:
    return 1, 1, math.prod(p["shape"]), 1


_PRODUCTS = (
    "gemm", "linear", "normed_linear", "linear_before_norm", "linear_behind_norm",
    "quantized_linear", "matmul", "grouped_matmul",
)  # fmt: skip
_WINDOWS = ("conv", "conv_winograd", "conv_int8", "pool")
_SIZES: dict[str, Callable[[Params], Sizes]] = {
    **dict.fromkeys(_PRODUCTS, _product),
    **dict.fromkeys(_WINDOWS, _convolution),
    **dict.fromkeys(("softmax", "scan", "sort"), _lines),
    "conv_depthwise": _depthwise,
    "attention": _attention,
    "norm": _norm,
    "group_norm": _group_norm,
    "reduce": _reduce,
    "copy": _copy,
    "pointwise": _elements,
}
