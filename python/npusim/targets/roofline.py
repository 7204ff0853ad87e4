"""A device by what it reaches, not by how it is built: `[roofline]` of a target's file.

For processors and GPUs, whose commands are timed and not derived. The formula is
`simulate/roofline.py`'s, after S. Williams, A. Waterman, D. Patterson, "Roofline: an insightful
visual performance model for multicore architectures", CACM 52(4), 2009, with the smooth maximum of
an exponent. Shares and times are fitted (`npusim calibrate`); peaks are data sheets'.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from npusim.ir.types import DTYPES

# Rules that `simulate/shares.py` has, and the launch rules of a GPU (`simulate/launches.py`).
GRIDS = "panels", "blocks", "points", "launches"
LANES = 4, 8, 16  # float32 of the vectors that there are kernels for


@dataclass(frozen=True, slots=True)
class Peak:
    """Arithmetic on elements of a dtype; a multiplication with an addition is two operations.

    Attributes:
        dtype: of the elements that are multiplied.
        product_tera_ops_per_second: of products, by matrix units where there are any.
        vector_tera_ops_per_second: of everything else.
    """

    dtype: str
    product_tera_ops_per_second: float
    vector_tera_ops_per_second: float


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """A memory, or a cache of it.

    Attributes:
        name: such as "l2" or "dram".
        kib: that fit; 0: everything does.
        giga_bytes_per_second: 10^9 bytes a second.
    """

    name: str
    kib: int
    giga_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class RooflineClass:
    """Commands that reach the same shares of the peaks.

    Attributes:
        name: of the class.
        stems: kernels (`abi/kernels.py`) whose commands it holds; empty: those of no other class.
        start_us: fixed time of a command.
        compute_share, memory_share: of the peaks that it reaches; above 1 where the peaks are only
            nominal.
        overlap: exponent p of (compute^p + memory^p)^(1/p): 1, one after the other; the greater,
            the more the slower of the two hides the other.
        item_us: time of an item besides its arithmetic: a tile of a product, a row of a norm.
        tile_rows, tile_columns: what products are rounded up to.
        products: whether its arithmetic is that of products.
        units: that take tiles at once: their number is rounded up to whole rounds.
        most_rows: of an item of its commands; more make one of a later class, since products of
            few rows wait for memory and have kernels of their own. 0: any number.
        step_ns: time of a step of those that follow one another in an item, which is not hidden.
        cold_us: more of the fixed time where caches no longer hold the kernel's code.
        cool_us: likewise where a core's first cache no longer does, from a later one.
        hidden_us: of the fixed time that in a run passes while the commands before still run: a
            launch that is queued, operands that no other command writes and that come ahead.
        form: of operands (`simulate/forms.py`) that its commands have; empty: any. Which kernel
            computes a command follows from how its operands lie.
        least_rows, least_operations: of its commands; fewer make one of a later class. Libraries
            take products from such sizes on.
        far_us: more of the fixed time where an operand comes from the last memory: its latency.
        far_step_ns: likewise of a step, which waits for what it reads; products fetch it ahead.
        pack_ns: time to rearrange an element of a product's second factor, before it is multiplied;
            or of a piece that is fetched by itself (`simulate/gathered.py`), or of an element of a
            result that tiles store by itself (`simulate/launches.py`).
        task_rows, task_columns: of the largest part of a command that one core takes; 0: any.
        task_operations: of the smallest one, in whole tiles; 0: any.
        grid: the rule by which its kernels cut products into tasks (`simulate/shares.py`), in place
            of all three; empty: none is known. "launches": the arithmetic takes as long as a GPU's
            launch rule says of the tiles that it chooses, of which `compute_share` is reached.
        item_rows, item_columns, item_depth: of an item, where it is another part of a product than
            a tile: what a kernel multiplies at once. 0: a tile, of the whole sum.
        core_share: of a memory's rate that one core reaches by itself; 0: no more than its part of
            what all reach.
        finish_share: of the vector peak that activations of its products' results reach; 0: they
            take no time of their own.
        gather_ns: time of a byte of images, of which tiles are transformed, that the nearest memory
            does not hold: they are waited for, and no product hides that; of the grid "points".
        shared_us: more of the fixed time where cores share the command: who is done waits for the
            others.
    """

    name: str
    stems: tuple[str, ...]
    start_us: float
    compute_share: float
    memory_share: float
    overlap: float
    item_us: float
    tile_rows: int
    tile_columns: int
    products: bool
    units: int = 1
    most_rows: int = 0
    step_ns: float = 0.0
    cold_us: float = 0.0
    hidden_us: float = 0.0
    form: str = ""
    least_rows: int = 0
    least_operations: int = 0
    far_us: float = 0.0
    far_step_ns: float = 0.0
    pack_ns: float = 0.0
    task_rows: int = 0
    task_columns: int = 0
    task_operations: int = 0
    grid: str = ""
    item_rows: int = 0
    item_columns: int = 0
    item_depth: int = 0
    core_share: float = 0.0
    finish_share: float = 0.0
    gather_ns: float = 0.0
    shared_us: float = 0.0
    cool_us: float = 0.0

    def __post_init__(self) -> None:
        """Refuses numbers that mean nothing; ValueError says which."""
        if self.compute_share <= 0 or self.memory_share <= 0:
            raise ValueError(f"class '{self.name}' reaches nothing of a peak")
        if min(self.overlap, 1 + self.most_rows, self.tile_rows, self.tile_columns, self.units) < 1:
            raise ValueError(f"class '{self.name}' has an overlap, a tile or units below 1")
        if min(self.task_rows, self.task_columns, self.task_operations) < 0:
            raise ValueError(f"class '{self.name}' has a task of less than nothing")
        if (self.task_rows > 0) != (self.task_columns > 0):
            raise ValueError(f"class '{self.name}' has one of 'task_rows' and 'task_columns'")
        if self.grid not in ("", *GRIDS):
            known = ", ".join(GRIDS)
            raise ValueError(f"class '{self.name}' has the grid '{self.grid}'; there are {known}")
        if min(self.item_rows, self.item_columns, self.item_depth) < 0 or (
            (self.item_rows > 0) != (self.item_columns > 0)
        ):
            raise ValueError(f"class '{self.name}' has an item of no size")
        if self.finish_share < 0:
            raise ValueError(f"class '{self.name}' has activations that reach less than nothing")
        if not 0 <= self.core_share <= 1:
            raise ValueError(f"class '{self.name}' has a core that reaches more than all")

    def holds(self, rows: int, form: str, operations: int) -> bool:
        """Tells whether commands of its stems are its own."""
        few = rows <= (self.most_rows or rows)
        many = rows >= self.least_rows and operations >= self.least_operations
        return few and many and self._has(form)

    def covers(self, other: RooflineClass) -> bool:
        """Tells whether it holds all commands of a stem that another one could."""
        few = not self.most_rows or 0 < other.most_rows <= self.most_rows
        rows, operations = self.least_rows, self.least_operations
        many = rows <= other.least_rows and operations <= other.least_operations
        return few and many and self._has(other.form)

    def _has(self, form: str) -> bool:
        """Tells whether a form is the class's: the same, or one that says more behind a comma."""
        return self.form in ("", form) or form.startswith(f"{self.form},")


@dataclass(frozen=True, slots=True)
class Roofline:
    """A device by what it reaches.

    Attributes:
        call_us: fixed time of a run.
        peaks: a dtype each.
        memory: the nearest first; the last one holds everything.
        classes: the last one holds what no other does.
        dtypes: that values have that it takes and makes; empty: any. Others go to the host.
        cores: that share a command's tasks, where its class says what these are. Peaks, memories
            and classes are of all of them.
        threads: of the cores, that a run is given; 0: all.
        wake_us: more of a run in which cores share a command: they sleep between runs.
        wake_share: of a run, that waking takes at most: between short ones nobody falls asleep.
        lanes: float32 of a vector, by which kernels cut their work: 16, 8 or 4.
        first_kib: of a core's first cache, which holds the code of what ran just before; 0: none.
    """

    call_us: float
    peaks: tuple[Peak, ...]
    memory: tuple[MemoryLevel, ...]
    classes: tuple[RooflineClass, ...]
    dtypes: tuple[str, ...] = ()
    cores: int = 1
    threads: int = 0
    wake_us: float = 0.0
    wake_share: float = 0.03
    lanes: int = 16
    first_kib: int = 0

    def __post_init__(self) -> None:
        """Refuses numbers that contradict each other; ValueError says which."""
        if not self.peaks:
            raise ValueError("'peaks' is empty")
        if self.cores < 1:
            raise ValueError(f"'cores' is {self.cores}; 1 is the fewest")
        if not 0 <= self.threads <= self.cores:
            raise ValueError(
                f"'threads' is {self.threads}; the machine that was measured has {self.cores} "
                "cores, and 0 is all of them"
            )
        if self.lanes not in LANES:
            known = ", ".join(map(str, LANES))
            raise ValueError(f"'lanes' is {self.lanes}; there are kernels for {known}")
        if not 0 <= self.wake_share <= 1:
            raise ValueError(f"'wake_share' is {self.wake_share}; it is a part of a run")
        for dtype in self.dtypes:
            if dtype not in DTYPES:
                raise ValueError(f"'dtypes' has '{dtype}'; dtypes are {', '.join(DTYPES)}")
        if not self.memory or self.memory[-1].kib or not all(m.kib for m in self.memory[:-1]):
            raise ValueError("'memory' ends with the one level of kib = 0, which holds everything")
        for near, far in zip(self.memory, self.memory[1:], strict=False):
            if far.kib and far.kib <= near.kib:
                raise ValueError(
                    f"memory '{far.name}' of {far.kib} KiB is behind '{near.name}' of {near.kib} "
                    "KiB and not larger"
                )
        if (
            not self.classes
            or self.classes[-1].stems
            or not all(c.stems for c in self.classes[:-1])
        ):
            raise ValueError(
                "'classes' ends with the one class without stems, which holds all other kernels"
            )
        for at, kind in enumerate(self.classes):
            for other in self.classes[:at]:
                both = [stem for stem in kind.stems if stem in other.stems]
                if both and other.covers(kind):
                    names = f"'{other.name}' and '{kind.name}'"
                    raise ValueError(f"kernel '{both[0]}' is in the classes {names}")

    @property
    def working(self) -> int:
        """The cores that a run is given."""
        return self.threads or self.cores

    def class_of(
        self, stem: str, rows: int = sys.maxsize, form: str = "", operations: int = sys.maxsize
    ) -> RooflineClass:
        """Returns the class of a kernel's commands, of items of so many rows."""
        mine = (c for c in self.classes if stem in c.stems and c.holds(rows, form, operations))
        return next(mine, self.classes[-1])

    def level(self, nbytes: int) -> MemoryLevel:
        """Returns the nearest memory that holds so many bytes."""
        return next((m for m in self.memory if nbytes <= 1024 * m.kib), self.memory[-1])

    @property
    def caches(self) -> int:
        """The bytes that the memories in front of the last one hold; 0: there are none."""
        return max((1024 * m.kib for m in self.memory), default=0)

    def peak(self, dtype: str) -> Peak:
        """Returns the peak of a dtype, or of the first one where it has none."""
        return next((p for p in self.peaks if p.dtype == dtype), self.peaks[0])
