"""The time of a command on a device that is known by what it reaches (`targets/roofline.py`).

    t = start + items * item + steps * step + packed * pack + (compute^p + memory^p)^(1/p)

`compute` are the operations, of whole rounds of tiles, at the share of the peak that the command's
class reaches; `memory` are the bytes of its operands, each once, at the share of the rate of the
nearest memory that still holds them when the command begins (`profile/reuse.py`). `start` is longer
where caches no longer hold the kernel's code or an operand, and shorter in a run, by what passes of
it while the commands before still run. A `step` waits for what it reads, longer where that is far.
`packed` are the elements of a second factor that a kernel rearranges before it multiplies, or
pieces that are fetched one by one. Where
cores share a command's tasks and these do not come out even, what they do takes longer by as much;
what memory does, by less where one core reaches more than its part of the rate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from npusim.abi.kernels import KERNELS, Params
from npusim.abi.scalar_cost import activation_multiply_adds, chain_multiply_adds
from npusim.ir.types import DTYPE_NAMES
from npusim.profile.reuse import Reuse
from npusim.simulate.forms import form_of
from npusim.simulate.gathered import gathered
from npusim.simulate.launches import busy_seconds, form_in_launch, launch_of, stored_apart
from npusim.simulate.shares import (
    POINTS,
    WIDEST,
    busiest,
    row_blocks,
    sizes_for,
    tile_blocks,
    transformed,
)
from npusim.simulate.work_sizes import SIZES, most_keys, no_sizes
from npusim.targets.roofline import GRIDS, Roofline, RooflineClass

Seconds = float | np.ndarray
Moved = tuple[tuple[int, int], ...]  # bytes, and their reach

LAUNCHES = GRIDS[-1]
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
        depth: steps of an item that follow one another: of its sum, of its row, of all elements of
            its keys, of the keys of a cache.
        reuse: bytes of operands and their reach; empty: unknown, and then the command is taken to
            find what it touches in the nearest memory that holds all of it.
        code: bytes touched since a command of its kernel; 0: unknown or none.
        sized: whether rows and columns are known; else nothing is rounded up to tiles of them.
        longest: depth of the longest item, where they differ; 0: they are alike.
        form: of its operands (`forms.py`).
        finish: multiply-adds of activations of what a product computes.
        pieces: rows or elements that are fetched one by one; None: of another kind (`gathered.py`).
        stem, launch: of which a GPU's launch rules say how long its tiles take (`launches.py`).
        apart: elements of a product's result that are stored one by one.
        lanes: float32 of the vectors of the kernels that compute it.
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
    longest: int = 0
    form: str = ""
    finish: int = 0
    pieces: int | None = None
    stem: str = ""
    launch: bytes = b""
    apart: int = 0
    lanes: int = WIDEST

    def on(self, device: Roofline) -> Work:
        """Returns it as a device's kernels cut it."""
        return self if self.lanes == device.lanes else replace(self, lanes=device.lanes)

    def tiles(self, rows: int, columns: int) -> int:
        """Returns the tiles of such sizes that cover it."""
        return self.groups * -(-self.rows // rows) * -(-self.columns // columns)

    def steps(self, kind: RooflineClass) -> float:
        """Returns the steps that follow one another, of all rounds of tiles."""
        longest = self.longest or self.depth
        if kind.units == 1:
            return longest
        tiles = self.tiles(kind.tile_rows, kind.tile_columns)
        if self.longest:  # items even out: whoever has a short one takes the next
            return max(longest, tiles / kind.units * self.depth)
        return -(-tiles // kind.units) * longest

    def whole(self, kind: RooflineClass) -> float:
        """Returns how much larger the work is of whole tiles, in whole rounds of the units."""
        if not self.sized:
            return 1.0
        rounds = -(-self._covers(kind, kind.tile_rows, kind.tile_columns) // kind.units)
        covered = rounds * kind.units * kind.tile_rows * kind.tile_columns
        return covered / (self.groups * self.rows * self.columns)

    def _covers(self, kind: RooflineClass, rows: int, columns: int) -> int:
        """Returns the tiles of such sizes that cover it, of each block of rows by itself."""
        if kind.grid != POINTS:
            return self.tiles(rows, columns)
        high = sum(
            -(-tiles // rows)
            for tiles in tile_blocks(self.groups, self.rows, self.depth, self.lanes)
        )
        return self.groups * high * -(-self.columns // columns)

    @property
    def second(self) -> int:
        """The elements of a product's second factor."""
        return self.groups * self.columns * self.depth

    def packed(self, kind: RooflineClass) -> int:
        """Returns the elements of second factors that are packed, of each block of rows anew.

        Or those that are transformed, of images and of sums, or pieces that are put together.
        """
        if self.pieces is not None:
            return self.pieces
        if kind.grid == LAUNCHES:
            return self.apart
        if kind.grid == POINTS:
            return transformed(self.groups, self.rows, self.columns, self.depth, self.lanes)
        return self.second * (row_blocks(kind.grid, self.rows, self.lanes) if kind.grid else 1)

    def compute(self, kind: RooflineClass, device: Roofline) -> float:
        """Returns the seconds of its arithmetic, were all cores to reach the peak with it."""
        tiles = busy_seconds(self.stem, self.launch) if kind.grid == LAUNCHES else None
        if tiles is not None:
            return tiles
        peak = device.peak(self.dtype)
        reached = (
            peak.product_tera_ops_per_second if kind.products else peak.vector_tera_ops_per_second
        )
        return self.operations * self.whole(kind) / (1e12 * reached)

    def items(self, kind: RooflineClass) -> int:
        """Returns what `item_us` is the time of."""
        if not kind.item_rows:
            return self.tiles(kind.tile_rows, kind.tile_columns)
        deep = -(-self.depth // kind.item_depth) if kind.item_depth else 1
        return self._covers(kind, kind.item_rows, kind.item_columns) * deep

    def moves(self, kind: RooflineClass, cores: int) -> tuple[Moved, Moved]:
        """Returns the bytes, with their reach, that pass while it computes, and before it does.

        Before products pass the images whose tiles are transformed. Every block of tiles reads the
        kernels: until the next one does, the cores go through all of them, and each through its
        block.
        """
        known = self.reuse or ((self.nbytes, self.nbytes),)
        if kind.grid != POINTS:
            return known, ()
        kernels = 4 * self.second
        if not self.reuse:
            known = ((max(0, self.nbytes - kernels), self.nbytes), (kernels, self.nbytes))
        blocks = tile_blocks(self.groups, self.rows, self.depth, self.lanes)
        block = blocks[0] * self.groups * (self.depth + sizes_for(self.lanes).columns)
        again = (len(blocks) - 1) * kernels, 4 * (self.second + cores * block)
        return (known[1], again), (known[0], *known[2:])

    def uneven(self, kind: RooflineClass, cores: int, threads: int = 0) -> float:
        """Returns how much longer its tasks take than if all cores had equal parts of it.

        Args:
            threads: of the cores, that compute it; 0: all.
        """
        working = threads or cores
        if working > 1 and kind.grid not in ("", LAUNCHES):
            sizes = self.groups, self.rows, self.columns, self.depth
            return cores * busiest(kind.grid, sizes, working, self.lanes)
        if working == 1 or not (kind.task_rows or kind.task_operations):
            return cores / working
        tasks: float = math.inf
        if kind.task_rows:
            tasks = self.tiles(kind.task_rows, kind.task_columns)
        if kind.task_operations:
            tasks = min(tasks, max(1, self.operations * self.whole(kind) // kind.task_operations))
        return -(-tasks // working) * cores / tasks

    def is_far(self, device: Roofline) -> bool:
        """Tells whether an operand comes from behind all caches; without any, none does."""
        return 0 < device.caches < max((reach for _, reach in self.reuse), default=self.nbytes)

    def is_cool(self, device: Roofline) -> bool:
        """Tells whether its kernel's code has left a core's first cache; without one, never."""
        return 0 < 1024 * device.first_kib < self.code

    def kind(self, stem: str, device: Roofline) -> RooflineClass:
        """Returns the class of the command."""
        return device.class_of(stem, self.rows, self.form, self.operations)


@dataclass(frozen=True, slots=True)
class StartPart:
    """Something that a command's fixed time consists of: so many, each of so many nanoseconds.

    Attributes:
        afar: whether it is there since caches do not hold what the command begins with.
        due: the cause that its time is due to: "dispatch", "compute" or "dram".
    """

    what: str
    count: float
    each_ns: float
    afar: bool = False
    due: str = "dispatch"

    @property
    def seconds(self) -> float:
        """Of all of them."""
        return 1e-9 * self.count * self.each_ns


@dataclass(frozen=True, slots=True)
class RooflineTime:
    """The seconds of a command, in parts.

    Attributes:
        parts: what is fixed, with the time that its items take besides their arithmetic.
        start: of these together.
        compute, memory: what each would take alone.
        total: start, and the two of them as far as they do not hide each other.
        level: the memory that takes longest to deliver operands.
        hidden: of the start in a run, at most.
        shared: whether cores share it.
    """

    parts: tuple[StartPart, ...]
    start: float
    compute: float
    memory: float
    total: float
    level: str
    hidden: float
    shared: bool

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
    sizes = SIZES.get(stem, no_sizes)(fields)
    groups, rows, columns, depth = (max(1, size) for size in sizes)
    code = next((fields[k] for k in _COMPUTED_IN if k in fields), 0)
    dtype = DTYPE_NAMES[code[0] if isinstance(code, tuple) else code]
    longest = 0
    if stem == "attention":  # keys that count, of a cache as of those that come later
        depth = max(1, operations // (4 * groups * rows * fields["head_dim"]))
        longest = most_keys(fields, depth)
        if not fields["has_position"]:  # a cache's keys are split, and what comes of a part awaited
            depth, longest = (n * fields["head_dim"] for n in (depth, longest))
    if stem == "conv_winograd":
        operations = 2 * groups * rows * columns * depth
    if stem == "pointwise":  # whose functions differ by far
        each = chain_multiply_adds(fields["code"], fields["n_instructions"])
        operations = each * math.prod(fields["shape"])
    found = (reuse.operands, reuse.code) if reuse is not None else ((), 0)
    launch = launch_of(stem, fields)
    return Work(
        *(operations, nbytes, dtype, groups, rows, columns, depth, *found),
        sized=stem in SIZES,
        longest=longest,
        form=form_in_launch(stem, form_of(stem, fields), launch),
        finish=_finish(stem, fields, groups * rows * columns),
        pieces=gathered(stem, fields),
        stem=stem,
        launch=launch,
        apart=stored_apart(stem, fields),
    )


def _finish(stem: str, p: Params, elements: int) -> int:
    if stem == "conv_winograd":  # whose rows are tiles
        elements = p["batch"] * math.prod(p["out_size"]) * p["out_channels"]
    return elements * activation_multiply_adds(p.get("act", 0))


def command_time(work: Work, stem: str, device: Roofline) -> RooflineTime:
    """Returns how long a command takes."""
    work = work.on(device)
    kind = work.kind(stem, device)
    uneven = work.uneven(kind, device.cores, device.threads)
    compute = work.compute(kind, device) / kind.compute_share * uneven
    moved, before = work.moves(kind, device.cores)
    level, alone = _memory(moved, device)
    memory = alone / kind.memory_share * slower_memory(kind, uneven, device.cores)
    near = 1024 * device.memory[0].kib
    gathered = sum(nbytes for nbytes, reach in before if reach > near) if near else 0
    parts = _start_parts(work, kind, device, uneven, gathered)
    start = sum(part.seconds for part in parts)
    afar = sum(part.seconds for part in parts if part.afar)
    # What may begin while others run has fetched by then what comes from afar.
    hidden = kind.hidden_us + 1e6 * afar if kind.hidden_us > 0 else 0.0
    total = start + float(either(compute, memory, kind.overlap))
    shared = uneven < device.cores
    return RooflineTime(parts, start, compute, memory, total, level, 1e-6 * hidden, shared)


def _start_parts(
    work: Work, kind: RooflineClass, device: Roofline, uneven: float, gathered: int
) -> tuple[StartPart, ...]:
    """Returns what a command's fixed time consists of, without what comes to nothing.

    Args:
        gathered: bytes of images that the nearest memory does not hold.
    """
    items = work.items(kind) * (uneven if kind.grid else device.cores / device.working)
    cold, far = work.code > device.caches, work.is_far(device)
    cool = work.is_cool(device)
    steps = work.steps(kind)
    reached = 1e3 * device.peak(work.dtype).vector_tera_ops_per_second * kind.finish_share
    finish = 1 / reached if reached else 0.0  # nanoseconds
    parts = (
        StartPart("start", 1, 1e3 * kind.start_us),
        StartPart("cores that share it", uneven < device.cores, 1e3 * kind.shared_us),
        StartPart("items", items, 1e3 * kind.item_us),
        StartPart("steps", steps, kind.step_ns),
        StartPart("packed elements", work.packed(kind) * uneven, kind.pack_ns, due="compute"),
        StartPart("activations' multiply-adds", work.finish * uneven, finish, due="compute"),
        StartPart("gathered bytes", gathered * uneven, kind.gather_ns, due="dram"),
        StartPart("steps that wait for memory", far * steps, kind.far_step_ns),
        StartPart("code out of the first cache", cool, 1e3 * kind.cool_us),
        StartPart("code out of caches", cold, 1e3 * kind.cold_us, afar=True),
        StartPart("operands out of caches", far, 1e3 * kind.far_us, afar=True),
    )
    return tuple(part for part in parts if part.seconds > 0)


def slower_memory(kind: RooflineClass, uneven: float, cores: int) -> float:
    """Returns how much longer memory takes of tasks so uneven.

    Cores share its rate; one by itself reaches more than its part.
    """
    return max(1.0, uneven / cores / kind.core_share) if kind.core_share else uneven


def run_time(commands: list[RooflineTime], device: Roofline) -> float:
    """Returns the seconds of a run of commands in order."""
    return call_time(commands, device) + sum(command.in_run for command in commands)


def call_time(commands: Sequence[RooflineTime], device: Roofline) -> float:
    """Returns the seconds of a run besides its commands.

    Between short runs that follow one another cores do not fall asleep: waking them takes no more
    than a part of a run.
    """
    wakes = 0.0
    if any(command.shared for command in commands):
        busy = sum(command.in_run for command in commands)
        wakes = min(1e-6 * device.wake_us, device.wake_share * busy)
    return 1e-6 * device.call_us + wakes


def _memory(moved: Moved, device: Roofline) -> tuple[str, float]:
    """Returns the memory that takes longest, and the seconds of all at their full rates."""
    seconds = dict.fromkeys((level.name for level in device.memory), 0.0)
    for nbytes, reach in moved:
        level = device.level(reach)
        seconds[level.name] += nbytes / (1e9 * level.giga_bytes_per_second)
    return max(seconds, key=lambda name: seconds[name]), sum(seconds.values())


def either(compute: Seconds, memory: Seconds, overlap: float) -> Seconds:
    """Returns the time of both, of which the slower one hides the other; of arrays: of each."""
    most = np.maximum(compute, memory)
    least = np.minimum(compute, memory) / np.maximum(most, 1e-30)
    return most * (1 + least**overlap) ** (1 / overlap)
